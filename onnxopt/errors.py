"""Errors that a user can meet: a message in one line, a hint, and the exit code of the command."""

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
_LEAST_DATA: Final = 112 << 20  # bytes taken by Python, numpy and onnx
_LEAST_SPACE: Final = 176 << 20
_EACH_CORE: Final = 8 << 20  # bytes of a thread of OpenBLAS, which ends the process if a thread cannot start
_OURS: Final = ("onnxopt", "onnx", "onnxruntime", "numpy")
_INSTALLED: Final = {"site-packages", "dist-packages"}
_GIT_LFS: Final = b"version https://git-lfs."
_PACKED: Final = (b"\x1f\x8b", b"PK\x03\x04")  # gzip; zip, as PyTorch saves
_OF_A_PROCESS: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/")
_SLIP: Final = 0.9  # similarity of a misspelled name to the only possible one
_REMEDIES: Final = {
    errno.ENOMEM: MAKE_ROOM,
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or write to another file system",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EROFS: "it is on a file system that is only read: write elsewhere",
}
# Errors of the system, independent of the request: no bug.
_REFUSED: Final = (
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS),
)
_NO_ROOM: Final = ("failed to map segment", "annot allocate memory")  # messages of dynamic loaders
_FILES: Final = 10_000  # files of a folder that are read for a hint
# Messages of CPython for code in C that failed without an exception, or returned a result with one.
_WORDLESS: Final = ("exception set", "setting an exception")


class OnnxOptError(Exception):
    """Base of all errors raised on purpose. `hint`: the next step to try; `exit_code` ends the command."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.failed: tuple[int, str] | None = None  # the failed pass of a run: number of passes before, text
        self.told = False  # whether the JSON output already contains the error

    def __str__(self) -> str:
        return self.message

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """The lines that Python writes below the message of an uncaught error."""
        return [f"hint: {self.hint}"] if self.hint else []


class UsageError(OnnxOptError):
    """Options contradict each other, or contain an unknown name."""


class ModelError(OnnxOptError):
    """The input is missing, unreadable, not ONNX, or inconsistent."""


class WriteError(OnnxOptError):
    """The result could not be written; no partial file remains."""


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
    """A pass creates an operator of a domain that the user has not allowed: no bug."""


class NoFixpointError(PassError):
    """The rewrites reached no fixed point within the budget; the message names the rules in the cycle."""


def is_starved(error: BaseException) -> bool:
    """Returns whether the system refused memory to this process, which is no bug.

    CPython raises SystemError as well, if code in C loses the MemoryError. Without a limit, a SystemError is a bug.
    """
    if isinstance(error, SystemError) and any(words in str(error) for words in _WORDLESS):
        return is_limited()
    return isinstance(error, MemoryError)


def is_no_fault(error: BaseException) -> bool:
    """Returns whether an exception is no fault of the code that raised it: an interruption, or refused memory.

    SystemExit is a fault, since it would end a command as if complete; so are pytest's outcomes.
    """
    return isinstance(error, KeyboardInterrupt) or is_starved(error)


def note_where(interruption: KeyboardInterrupt, where: str) -> None:
    """Add a note with the running part, and the line of foreign code: perhaps an endless loop."""
    line = line_of(interruption)
    interruption.add_note(where + (f" ({line})" if line else ""))


def noted(interruption: BaseException | None) -> str:
    """Returns the innermost running part noted for an interruption; empty without a note."""
    notes: list[str] = getattr(interruption, "__notes__", [])
    return notes[0] if notes else ""


def is_limited() -> bool:
    """Returns whether the memory of this process is limited."""
    if sys.platform == "win32":
        return False
    import resource

    return any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    )


def is_short() -> bool:
    """Returns whether the limit is so low that a library would end the process when refused memory."""
    if sys.platform == "win32":
        return False
    import resource

    each = len(os.sched_getaffinity(0)) * _EACH_CORE if hasattr(os, "sched_getaffinity") else 0
    limits = ((resource.RLIMIT_DATA, _LEAST_DATA), (resource.RLIMIT_AS, _LEAST_SPACE))
    found = [(resource.getrlimit(kind)[0], least + each) for kind, least in limits]
    return any(limit != resource.RLIM_INFINITY and limit < least for limit, least in found)


def refused(error: Exception) -> str:
    """Returns the resource that the system refused, or an empty string for other errors."""
    if is_starved(error):
        return "it has no more memory"
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return str(error.strerror)
    if isinstance(error, ImportError) and any(words in str(error) for words in _NO_ROOM):
        return "there is no room for a library"
    return str(error) if isinstance(error, RuntimeError) and "start new thread" in str(error) else ""


def broken(what: str, error: BaseException, name: str, kind: str) -> PassError:
    """Returns the error for a pass or rule (`kind`) called `name` that raised `error`."""
    whose = "ONNXOPT_DEBUG=1 shows the traceback" if line_of(error) else "report it"
    return PassError(
        f"{what}: {told(error)}", f"this is a bug in the {kind}; go on without it by --disable {name}, and {whose}"
    )


def told(error: BaseException) -> str:
    """Returns `KeyError: 'x' (passes.py:12)`: an error in one line, with its place in foreign code."""
    where = line_of(error)
    return f"{type(error).__name__}: {in_a_line(error)}" + (f" ({where})" if where else "")


def in_a_line(error: BaseException) -> str:
    """Returns the message of an error in one line, also if it has many lines or cannot be made."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return "its message cannot be made"


def line_of(error: BaseException) -> str:
    """Returns `passes.py:12`, the innermost line outside onnxopt and libraries; empty if there is none.

    An installed plugin lies among libraries: the line of a library is the answer if no other line exists.
    """
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
    """Returns a hint for an unknown name: similar names, each with `ending`; `otherwise` without similar names."""
    import difflib

    known = list(known)
    near = difflib.get_close_matches(name, known, cutoff=_SLIP) or difflib.get_close_matches(name, known)
    return f"did you mean {any_of([n + ending for n in near])}?" if near else otherwise


def nearest_file(path: object, otherwise: str = "check the path") -> str:
    """Returns a hint for a missing file: files of the same folder and kind with similar names."""
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
    """Returns a hint for a folder in place of a model: a pattern for the models inside, or in the folders below."""
    import shlex

    try:
        with os.scandir(str(folder)) as entries:
            found = list(islice(entries, _FILES))
    except OSError:
        found = []
    if not any(e.name.endswith(".onnx") for e in found):
        below = sorted(e.path for e in found if e.is_dir() and any(n.endswith(".onnx") for n in listed(e.path)))
        if not below:
            return "there is no .onnx file in it; a model is one file"
        return f"name the models in it: {few([f'{shlex.quote(path)}/*.onnx' for path in below])}"
    return f"name the models in it: {shlex.quote(str(folder))}/*.onnx"


def listed(folder: str | Path) -> list[str]:
    """Returns the names in a folder; none if it cannot be listed."""
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
    """Returns the error for a file that cannot be opened or parsed."""
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
    """Raise ModelError for a pipe or a device: its bytes can be read once, or never end.

    Several processes read a model, and /dev/stdin differs in each.
    """
    if str(path).startswith(_OF_A_PROCESS) or (path.exists() and not (path.is_file() or path.is_dir())):
        hint = "copy the model into a file; `onnxopt optimize - OUT` reads stdin"
        raise ModelError(f"{path} is a pipe or a device, not a file", hint)


def plain(path: str, flags: int) -> int:
    """Opener for `open` that raises OSError for a file replaced by a pipe or a device since the last look.

    Opening a pipe waits for a writer, and a device may never end.
    """
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not (S_ISREG(mode) or S_ISDIR(mode)):  # `open` itself refuses a folder
        os.close(descriptor)
        raise OSError(errno.ESPIPE, "it is a pipe or a device, not a file", path)
    return descriptor


def _kind_of(path: object) -> str:
    """Returns a hint for a file that is no protobuf, from its first bytes."""
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
    """Returns the error for a file or folder that cannot be written; `hint` if the system names no reason."""
    return WriteError(f"cannot write {path}: {error.strerror or error}", _REMEDIES.get(error.errno or 0, hint))


def file_path(model: object) -> Path:
    """Returns the path of a model. Raises UsageError for other types."""
    if not isinstance(model, (str, os.PathLike)):
        hint = "onnx.save writes a ModelProto to a file"
        if isinstance(model, (bytes, bytearray, memoryview)):
            hint = "onnx.load_model_from_string makes a ModelProto of bytes, which `optimize` takes, too"
        raise UsageError(f"the path of a model is expected, not {type(model).__name__}", hint)
    return Path(model)
