"""Every error a user can meet: one line of message, one hint, the exit code of the command."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Final

MAKE_ROOM: Final = "raise its limits (ulimit -a), or make room"
_LEAST_DATA: Final = 112 << 20  # bytes that Python, numpy and onnx take for themselves
_LEAST_SPACE: Final = 176 << 20
_EACH_CORE: Final = 8 << 20  # of a thread of OpenBLAS, which ends a process that cannot start one
_OURS: Final = ("onnxopt", "onnx", "onnxruntime", "numpy")
_INSTALLED: Final = {"site-packages", "dist-packages"}
_GIT_LFS: Final = b"version https://git-lfs."
_PACKED: Final = (b"\x1f\x8b", b"PK\x03\x04")  # gzip; zip, as PyTorch saves
_OF_A_PROCESS: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/")
_SLIP: Final = 0.9  # how like a name one is that can be no other
_REMEDIES: Final = {
    errno.ENOMEM: MAKE_ROOM,
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or write to another file system",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EROFS: "it is on a file system that is only read: write elsewhere",
}
# What the system says of itself, whatever was asked for: no bug of ours.
_REFUSED: Final = (
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS),
)
_NO_ROOM: Final = ("failed to map segment", "annot allocate memory")  # as dynamic loaders put it
_FILES: Final = 10_000  # of a folder, that are looked at
# How Python says of its own code in C that it failed, or did not, and left no word, or one, of why.
_WORDLESS: Final = ("exception set", "setting an exception")


class OnnxOptError(Exception):
    """Base of all errors raised on purpose. `hint` says what to try next; `exit_code` ends the command."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.failed: tuple[int, str] | None = None  # which pass of a run raised it: how many ran before, its text
        self.told = False  # does a program that asked for JSON have it?

    def __str__(self) -> str:
        return self.message

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """What Python writes below the message, where nobody catches the error."""
        return [f"hint: {self.hint}"] if self.hint else []


class UsageError(OnnxOptError):
    """Options contradict each other, or contain an unknown name."""


class ModelError(OnnxOptError):
    """The input is missing, unreadable, not ONNX, or inconsistent."""


class WriteError(OnnxOptError):
    """The result could not be written; nothing was left behind."""


class StartError(OnnxOptError):
    """No worker process could be started; the model is not at fault."""


class VerificationError(OnnxOptError):
    """The result differs from the original."""

    exit_code = 1


class PreconditionError(OnnxOptError):
    """The `requires` of a pass rejected the model: the pass does not support the model."""


class InvariantError(OnnxOptError):
    """The in-memory graph broke one of its own rules: a bug in a pass or in the graph."""

    exit_code = 4


class PassError(OnnxOptError):
    """A pass or rule raised, or has no fixed point: a bug in the pass."""

    exit_code = 4


class InstrumentError(OnnxOptError):
    """An instrument or trace function raised: a bug in the instrument, not in a pass."""

    exit_code = 4


class EmissionError(PassError):
    """A pass created a node against the operator's definition, or an invalid replacement: a bug in the pass."""


class MistypedError(EmissionError):
    """A pass created an operand or a replacement of the wrong type."""

    def __init__(self, message: str, hint: str = "", objection: str = "") -> None:
        super().__init__(message, hint)
        self.objection = objection  # the message without the place


class DomainError(UsageError):
    """A pass creates an operator of a domain that is not allowed: a decision of the user, no bug."""


class NoFixpointError(PassError):
    """The rewrites reached no fixed point within the budget; the message names the rules in the cycle."""


def is_starved(error: BaseException) -> bool:
    """Was this process refused memory, which is nobody's bug? Where its allocations fail CPython says SystemError, too:
    in code in C that lost the error, or was not told of it. Without a limit it is a bug in such code."""
    if isinstance(error, SystemError) and any(words in str(error) for words in _WORDLESS):
        return is_limited()
    return isinstance(error, MemoryError)


def is_no_fault(error: BaseException) -> bool:
    """Is what somebody's code raised no fault of that code? All else is, also what is no `Exception`: SystemExit, which
    would end a command as if all were done, and what pytest skips and fails with."""
    return isinstance(error, KeyboardInterrupt) or is_starved(error)


def note_where(interruption: KeyboardInterrupt, where: str) -> None:
    """Note what ran when it came, with the line of somebody else's code: that may be what never ends."""
    line = line_of(interruption)
    interruption.add_note(where + (f" ({line})" if line else ""))


def noted(interruption: BaseException | None) -> str:
    """What ran when it came, the innermost of several; empty where nobody noted it."""
    notes: list[str] = getattr(interruption, "__notes__", [])
    return notes[0] if notes else ""


def is_limited() -> bool:
    """May this process take less memory than there is?"""
    if sys.platform == "win32":
        return False
    import resource

    return any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    )


def is_short() -> bool:
    """May this process take so little memory that a library, refused it, would end the process in the middle?"""
    if sys.platform == "win32":
        return False
    import resource

    each = len(os.sched_getaffinity(0)) * _EACH_CORE if hasattr(os, "sched_getaffinity") else 0
    limits = ((resource.RLIMIT_DATA, _LEAST_DATA), (resource.RLIMIT_AS, _LEAST_SPACE))
    found = [(resource.getrlimit(kind)[0], least + each) for kind, least in limits]
    return any(limit != resource.RLIM_INFINITY and limit < least for limit, least in found)


def refused(error: Exception) -> str:
    """What the system does not give, empty where this is no such error."""
    if is_starved(error):
        return "it has no more memory"
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return str(error.strerror)
    if isinstance(error, ImportError) and any(words in str(error) for words in _NO_ROOM):
        return "there is no room for a library"
    return str(error) if isinstance(error, RuntimeError) and "start new thread" in str(error) else ""


def broken(what: str, error: BaseException, name: str, kind: str) -> PassError:
    """What to say of the pass or the rule (`kind`) called `name`, which raised."""
    whose = "ONNXOPT_DEBUG=1 shows the traceback" if line_of(error) else "report it"
    return PassError(
        f"{what}: {told(error)}", f"this is a bug in the {kind}; go on without it by --disable {name}, and {whose}"
    )


def told(error: BaseException) -> str:
    """`KeyError: 'x' (passes.py:12)`: in one line, with the place, if it is in somebody else's code."""
    where = line_of(error)
    return f"{type(error).__name__}: {in_a_line(error)}" + (f" ({where})" if where else "")


def in_a_line(error: BaseException) -> str:
    """What it says, which may take lines, or fail."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return "it cannot say what"


def line_of(error: BaseException) -> str:
    """`passes.py:12`: the innermost line on the way to it that is neither ours nor a library's; else empty. An
    installed plugin lies where libraries do: theirs is the line if there is no other."""
    found, installed, tb = "", "", error.__traceback__
    while tb is not None:
        package = str(tb.tb_frame.f_globals.get("__name__")).partition(".")[0]
        file = os.path.basename(tb.tb_frame.f_code.co_filename)
        if (
            package not in _OURS and package not in sys.stdlib_module_names and not file.startswith("<")
        ):  # made by a library
            where = f"{file}:{tb.tb_lineno}"
            if _INSTALLED.isdisjoint(Path(tb.tb_frame.f_code.co_filename).parts):
                found = where
            else:
                installed = where
        tb = tb.tb_next
    return found or installed


def nearest(name: str, known: Iterable[str], otherwise: str, ending: str = "") -> str:
    """The hint for a name that does not exist: those like it, which end so, or what to say if there are none."""
    import difflib

    known = list(known)
    near = difflib.get_close_matches(name, known, cutoff=_SLIP) or difflib.get_close_matches(name, known)
    return f"did you mean {any_of([n + ending for n in near])}?" if near else otherwise


def nearest_file(path: object, otherwise: str = "check the path") -> str:
    """The hint for a file that does not exist: those of its kind that are called like it, in its folder."""
    if any(c in str(path) for c in "*?["):
        from glob import iglob

        is_any = next(iglob(str(path)), None) is not None
        return "the shell expands patterns: write it without quotes" if is_any else "no file is called like that"
    if os.path.exists(str(path)) and not os.path.isdir(str(path)) and not os.path.isfile(str(path)):
        return "it is a pipe or a device"
    if os.path.islink(str(path)):
        return f"it is a link to {os.readlink(str(path))}, where no file is"
    folder, name = os.path.split(str(path))
    stem, ending = os.path.splitext(name)
    ending = ending or ".onnx"
    try:
        with os.scandir(folder or ".") as entries:
            stems = [e.name.removesuffix(ending) for e in islice(entries, _FILES) if e.name.endswith(ending)]
    except OSError:
        return f"there is no folder {folder}" if folder and not os.path.exists(folder) else otherwise
    return nearest(stem, sorted(stems), otherwise, ending)


def inside(folder: object) -> str:
    """The hint for a folder in the place of a model: the pattern for those in it, or in the folders below it."""
    import shlex

    try:
        with os.scandir(str(folder)) as entries:
            found = list(islice(entries, _FILES))
    except OSError:
        found = []
    if not any(e.name.endswith(".onnx") for e in found):
        below = sorted(e.path for e in found if e.is_dir() and any(n.endswith(".onnx") for n in _listed(e.path)))
        if not below:
            return "there is no .onnx file in it; a model is one file"
        return f"name the models in it: {few([f'{shlex.quote(path)}/*.onnx' for path in below])}"
    return f"name the models in it: {shlex.quote(str(folder))}/*.onnx"


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def any_of(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def few(names: Sequence[str], shown: int = 3) -> str:
    """`a, b, c and 22 more`."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def unreadable(path: object, error: Exception) -> ModelError:
    """What to say of a file that cannot be opened, or parsed."""
    if isinstance(error, FileNotFoundError):
        hint = "only `onnxopt optimize` reads stdin" if str(path) == "-" else nearest_file(path)
        return ModelError(f"{path}: no such file", hint)
    if isinstance(error, IsADirectoryError):
        return ModelError(f"{path} is a directory", inside(path))
    if isinstance(error, OSError):
        hint = _REMEDIES.get(error.errno or 0, "check that the file can be read")
        return ModelError(f"{path}: {error.strerror or error}", hint)
    return ModelError(f"{path} is not an ONNX model, or is truncated: the protobuf cannot be parsed", _kind_of(path))


def refuse_pipe(path: Path) -> None:
    """Raises ModelError for a pipe or a device, which gives its bytes once, or without an end: a model is read again by
    other processes, for whom /dev/stdin is something else."""
    if str(path).startswith(_OF_A_PROCESS) or (path.exists() and not (path.is_file() or path.is_dir())):
        hint = "copy the model into a file; `onnxopt optimize - OUT` reads stdin"
        raise ModelError(f"{path} is a pipe or a device, not a file", hint)


def plain(path: str, flags: int) -> int:
    """An `opener` for `open`. Raises OSError for what became a pipe or a device since somebody looked: one would be
    waited for, the other has no end."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not (S_ISREG(mode) or S_ISDIR(mode)):  # of a folder `open` says it
        os.close(descriptor)
        raise OSError(errno.ESPIPE, "it is a pipe or a device, not a file", path)
    return descriptor


def _kind_of(path: object) -> str:
    """The hint for a file that is no protobuf, by its first bytes."""
    first = b""
    if os.path.isfile(str(path)):
        with suppress(OSError), open(str(path), "rb") as f:
            first = f.read(len(_GIT_LFS))
    if first == _GIT_LFS:
        return "it is a pointer of Git LFS: `git lfs pull` fetches the file"
    if first.startswith(_PACKED):
        return "it is compressed, an archive, or a file of PyTorch: unpack it, or export the model"
    if first[4:8] == b"TFL3":
        return "it is a TensorFlow Lite model: tf2onnx converts those"
    return "export or download it again; text, JSON and ORT-format models are not read"


def unwritable(path: object, error: OSError, hint: str) -> WriteError:
    """What to say of a file or folder that cannot be written; `hint` where the system does not say more."""
    return WriteError(f"cannot write {path}: {error.strerror or error}", _REMEDIES.get(error.errno or 0, hint))


def file_path(model: object) -> Path:
    """Where a model is. Raises UsageError for what is no path."""
    if not isinstance(model, (str, os.PathLike)):
        hint = "onnx.save writes a ModelProto to a file"
        if isinstance(model, (bytes, bytearray, memoryview)):
            hint = "onnx.load_model_from_string makes a ModelProto of bytes, which `optimize` takes, too"
        raise UsageError(f"the path of a model is expected, not {type(model).__name__}", hint)
    return Path(model)
