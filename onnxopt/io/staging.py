"""Staged output: written in a locked folder beside the destination, and moved into place at the end.

New data files are renamed first, then the model; replaced files are removed last. At any moment readers find the old
model with old data, or the new one with new data. Locks end with the process, in any way.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from onnxopt.errors import OnnxOptError, WriteError, listed

CAN_LOCK: Final = sys.platform != "win32"  # whether the system can lock folders
MANY: Final = "onnxopt"  # staging name for results of many models
_PATIENCE: Final = 10.0  # seconds for a lock; exclusive work takes milliseconds
_PAUSE: Final = 0.01
_TRIES: Final = 40 if sys.platform == "win32" else 0  # attempts of a rename before the last
_RETRY_PAUSE: Final = 0.05
_MAX_NAME_BYTES: Final = 200  # bytes of a name, of 255 in most file systems
_RESERVED_BYTES: Final = 1 << 20
_TOKEN_LENGTH: Final = 12  # hexadecimal digits
_DATA_ENDING: Final = rf"\.[0-9a-f]{{{_TOKEN_LENGTH}}}\.data"
_RANDOM: Final = "[a-z0-9_]{8}"  # made by tempfile
# locked while the process lives; lists the data files about to appear beside the destination
_OWNER: Final = "onnxopt.owner"

# -- locks ---------------------------------------------------------------------------------------------------------


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Context with exclusive rights to rename or clear staged files in a folder.

    Without folder locks (Windows, some file systems) there is no waiting.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY) if sys.platform != "win32" else -1
    except OSError:  # writable folder without list permission
        descriptor = -1
    try:
        deadline = time.monotonic() + _PATIENCE
        while descriptor >= 0 and not _lock(descriptor) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def own(file: Path) -> IO[bytes]:
    """Create a file locked until closed. Raises OSError."""
    made = open(file, "xb")  # noqa: SIM115 - closed by the caller
    _lock(made.fileno())
    return made


def is_owned(file: Path) -> bool:
    """Whether a living process holds the file; True if unknown, False if it is not a regular file."""
    if sys.platform == "win32":
        try:
            os.rename(file, file)  # refused for open files
        except OSError:
            return True
        return False
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


if sys.platform == "win32":

    def _lock(descriptor: int) -> bool:
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


# -- data files, and renaming into place ---------------------------------------------------------------------------


def data_name(model: str, digest: str) -> str:
    """Return the name of a model's data file: different contents have different names, so no data file is
    overwritten."""
    return f"{model}.{digest[:_TOKEN_LENGTH]}.data"


def is_data_of(model: str, file: str) -> bool:
    """Whether `file` is a name made by `data_name` for this model."""
    return file.startswith(model) and re.fullmatch(_DATA_ENDING, file[len(model) :]) is not None


def _outdated(model: Path, names: Collection[str], target: Path, backup: Path | None) -> list[str]:
    """Return the data files of `target` that neither the new model nor `backup` reads."""
    old = {*_ours(target)}.difference(names)
    if old:  # the new model may refer to old data files
        old -= _read_by(model) | ({*_ours(target, backup)} if backup is not None else set())
    return sorted(old)


def put_in_place(
    model: Path,
    data: Sequence[Path],
    target: Path,
    intend: Callable[[str, Sequence[str]], None],
    backup: Path | None = None,
) -> None:
    """Rename `data` and `model` into place, on the same file system, and remove data files read only by the old
    `target`.

    `intend` is called with all affected data files before any change. `backup`, a model beside `target`, keeps its
    data. Raises OSError, and WriteError if `target` is not a regular file.
    """
    refuse_special(target)
    names = [file.name for file in data]
    with alone_in(target.parent):
        old = _outdated(model, names, target, backup)
        intend(target.name, [*names, *old])
        for file in [*data, model] if target.exists() else []:
            file.chmod(stat.S_IMODE(target.stat().st_mode))
        try:
            for file in data:
                move(file, target.parent / file.name)
            move(model, target)
        except BaseException:
            remove_unread(target, [*names, *old])
            raise
        for name in old:
            _remove(target.parent / name)


def move(file: Path, target: Path) -> None:
    """Rename `file`, replacing `target`. Raises OSError.

    Retries on Windows, which refuses while a search index or virus scanner has a file open.
    """
    for _ in range(_TRIES):
        with suppress(PermissionError):
            return os.replace(file, target)
        time.sleep(_RETRY_PAUSE)
    return os.replace(file, target)


def refuse_special(target: Path) -> None:
    """Raise WriteError if `target` is not a regular file (a device, pipe or folder), which a rename would replace."""
    try:
        mode = target.stat().st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode):
        raise WriteError(f"{target} is a directory", "name the file to write")
    if not stat.S_ISREG(mode):
        raise WriteError(f"{target} is not a file, and is not replaced", "name a file to write")


def remove_unread(target: Path, names: Iterable[str]) -> None:
    """Remove onnxopt's data files in `names` not read by the model `target`, if it exists."""
    found = [n for n in names if is_data_of(target.name, n) and (target.parent / n).exists()]
    if not found:
        return
    try:
        read = _read_by(target) if target.exists() else set()
    except OnnxOptError:  # its reads are unknown
        return
    for name in found:
        if name not in read:
            _remove(target.parent / name)


def _ours(target: Path, reader: Path | None = None) -> list[str]:
    """Return onnxopt's data files for `target` read by `reader`, by default the present file."""
    called, reader = target.name, reader or target
    if not reader.exists() or not any(is_data_of(called, name) for name in listed(target.parent)):
        return []
    try:
        return sorted(n for n in _read_by(reader) if is_data_of(called, n))
    except OnnxOptError:  # not a model
        return []


def _read_by(model: Path) -> set[str]:
    from onnxopt.io.load import named_files

    return {*named_files(model)}


def _remove(file: Path) -> None:
    try:
        if stat.S_ISREG(file.lstat().st_mode):
            file.unlink()
    except OSError:  # open in another process (Windows), or already removed
        return


# -- folders of unfinished output ----------------------------------------------------------------------------------


class StagingFolder:
    """The folder `.NAME.XXXXXXXX.tmp` in `parent`, with `NAME` the file to be written. Raises OSError.

    Owned through a lock that ends with the process. The next staging folder for the same name removes unlocked ones,
    and data files put in place for a model that never followed.
    """

    def __init__(self, parent: Path, name: str, *others: str) -> None:
        """`others`: names whose leftovers are cleared, too."""
        self._parent, self._prefix = parent, _prefix(name)
        # Memory reserved for clean-up when memory is exhausted; mapped, since malloc keeps freed memory.
        self._reserved = mmap.mmap(-1, _RESERVED_BYTES, access=mmap.ACCESS_COPY)
        self._model: tuple[Path, IO[bytes]] | None = None
        try:
            with alone_in(parent):
                clear(parent, name, *others, MANY)
                self.path = Path(tempfile.mkdtemp(prefix=self._prefix, suffix=".tmp", dir=parent))
                self._owner = own(self.path / _OWNER)
        except BaseException:  # an interrupt during creation
            with alone_in(parent):
                if hasattr(self, "_owner"):
                    self._owner.close()
                if hasattr(self, "path"):
                    _remove_folder(self.path)
                clear(parent, name)  # a folder without a known path yet
            raise

    def files(self) -> list[Path]:
        """Return the staged files."""
        return [f for f in sorted(self.path.iterdir()) if f.name != _OWNER]

    def file_in(self, folder: Path) -> Path:
        """Return a hidden file name for a model readable only beside its data. Raises OSError."""
        if self._model is None:
            middle = self.path.name[len(self._prefix) : -len(".tmp")]
            file = folder / f"{self._prefix}{middle}.onnx.tmp"
            with alone_in(folder):
                self._model = file, own(file)
        return self._model[0]

    def intend(self, model: str, names: Sequence[str]) -> None:
        """Record the data files of a model, beside this folder, about to be created or removed."""
        self._owner.write("".join(f"{name}\n" for name in (model, *names)).encode("utf-8", "surrogateescape"))
        self._owner.flush()

    def let_go(self) -> None:
        """Close the hidden file before its rename on Windows, where open files cannot be renamed."""
        if self._model is not None and sys.platform == "win32":
            self._model[1].close()

    def __enter__(self) -> StagingFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder and its contents."""
        self._reserved.close()
        self._owner.close()
        _remove_folder(self.path)
        if self._model is not None:
            self._model[1].close()
            self._model[0].unlink(missing_ok=True)


def _prefix(name: str) -> str:
    """Return the prefix of staging names for `name`, within the length limit of file systems."""
    short = name
    while len(os.fsencode(short)) > _MAX_NAME_BYTES:
        short = short[: len(short) - max(1, (len(os.fsencode(short)) - _MAX_NAME_BYTES) // 4)]
    if short != name:  # keeps long names with a common beginning apart
        import zlib  # few names are long

        short += f"~{zlib.crc32(os.fsencode(name)):08x}"
    return f".{short}."


def clear(parent: Path, *names: str) -> None:
    """Remove leftovers of killed processes in `parent` under these names."""
    prefixes = tuple({_prefix(name) for name in names})
    hidden = [f for f in listed(parent) if f.startswith(prefixes)]
    for found, prefix in itertools.product(hidden, prefixes):
        if found.startswith(prefix):
            _clear_entry(parent / found, prefix)


def _clear_entry(entry: Path, prefix: str) -> None:
    if re.fullmatch(rf"{re.escape(prefix)}{_RANDOM}\.tmp", entry.name):
        if entry.is_dir() and not entry.is_symlink():
            _clear_folder(entry)
    elif re.fullmatch(rf"{re.escape(prefix)}{_RANDOM}\.onnx\.tmp", entry.name):
        if _is_file(entry) and not is_owned(entry):
            entry.unlink(missing_ok=True)


def _clear_folder(entry: Path) -> None:
    owner = entry / _OWNER
    if not _is_file(owner):
        if CAN_LOCK:  # not being created at this moment
            _remove_empty(entry)
        return
    if is_owned(owner):
        return
    try:
        text = owner.read_bytes()
    except OSError:  # not a leftover: its owner is removing it now
        return
    model, *names = text.decode("utf-8", "surrogateescape").splitlines() or [""]
    if model and os.path.basename(model) == model:
        remove_unread(entry.parent / model, names)
    _remove_folder(entry)


def _remove_folder(folder: Path) -> None:
    """Remove the owner's file last: without it the contents are unknown."""
    for path in sorted((folder / name for name in listed(folder)), key=lambda path: path.name == _OWNER):
        if path.is_dir() and not path.is_symlink():
            import shutil  # reads compression modules

            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
