"""The user's key that authenticates cache entries, in a file made on first use."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

VARIABLE: Final = "ONNXOPT_CACHE_KEY"  # a secret of a build system, whose machines have no permanent home
_BYTES: Final = 32


def cache_key() -> bytes:
    """Return the key. Raises OSError if no key can be stored, or the file is readable by others."""
    given = os.environ.get(VARIABLE, "")
    if given:
        return hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
    file = _folder() / "cache.key"
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read(file)
        _make(file)
        return _read(file)
    except OSError as e:
        if e.strerror is None:  # the message is complete
            raise
        raise OSError(f"its key cannot be kept at {file}: {e.strerror}; {VARIABLE} gives one") from None


def is_own(found: os.stat_result) -> bool:
    """Return whether a file or folder belongs to the current user; always True on systems without POSIX ids."""
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def _folder() -> Path:
    """Return the user's configuration folder, not the cache, which may be copied between machines."""
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", "")
    try:
        return Path(base) / "onnxopt" if os.path.isabs(base) else Path.home() / ".config" / "onnxopt"
    except RuntimeError as e:
        raise OSError(str(e)) from None


def _read(file: Path) -> bytes:
    with open(os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)), "rb") as f:
        found = os.fstat(f.fileno())
        if not is_own(found) or (os.name == "posix" and stat.S_IMODE(found.st_mode) & 0o077):
            raise PermissionError(f"{file} can be read by others: remove it")
        key = f.read(_BYTES + 1)
    if len(key) != _BYTES:
        raise OSError(f"{file} is no key: remove it")
    return key


def _make(file: Path) -> None:
    """Create the key file with its content at once. If several processes create it, the first wins."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=file.parent, prefix=".cache.key.")  # readable by the user only
    try:
        with open(handle, "wb") as f:
            f.write(secrets.token_bytes(_BYTES))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(new, file)
        except OSError:  # a file system without hard links
            os.replace(new, file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
