"""Modules straight from their byte code, wherever Python itself would find just that.

For each of the hundreds of modules of a small run Python asks several finders, which try suffix after suffix and join
one path after another: together a twentieth of the run. Here a module is looked for as most are there: a `.py` file,
with byte code that belongs to it. All else is left to Python. The command and its workers begin like this; who uses
onnxopt as a library imports as they always did.
"""

from __future__ import annotations

import _imp
import marshal
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    BuiltinImporter,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from importlib.util import MAGIC_NUMBER
from io import FileIO
from types import CodeType, ModuleType
from typing import Any, Final

_HEADER: Final = 16  # bytes: a magic number, flags, time and size of the source
_NO_FLAGS: Final = b"\0\0\0\0"  # by its time the byte code is told to belong to the source, not by a hash
_MASK_32: Final = 0xFFFFFFFF
_PYTHONS: Final = [BuiltinImporter, FrozenImporter, PathFinder]
_HOOKS: Final = ("zipimport", "_frozen_importlib_external")  # Python's own
_set_source: Final[Callable[[CodeType, str], None] | None] = getattr(_imp, "_fix_co_filename", None)


class _Loader(SourceFileLoader):
    """Has the code already; who loads the module anew reads it as ever."""

    code: CodeType | None = None

    def get_code(self, fullname: str) -> CodeType | None:
        code, self.code = self.code, None
        return super().get_code(fullname) if code is None else code


class _Finder:
    """Comes before those of Python, and after all others."""

    def __init__(self) -> None:
        self._listed: dict[str, frozenset[str] | None] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if _imp.is_builtin(name) or _imp.is_frozen(name):
            return None
        stem = name.rpartition(".")[2]
        for folder in sys.path if path is None else path:
            names = self._names(folder)
            if names is None:
                return None
            if stem in names:
                return self._found(name, f"{folder}{os.sep}{stem}", "__init__", is_package=True)
            if f"{stem}.py" in names:
                return self._found(name, folder, stem, is_package=False)
            if _is_compiled(stem, names):
                return None
        return None

    def _found(self, name: str, folder: str, stem: str, *, is_package: bool) -> ModuleSpec | None:
        names = self._names(folder)
        if names is None or f"{stem}.py" not in names or _is_compiled(stem, names):
            return None
        source = f"{folder}{os.sep}{stem}.py"
        cached = f"{folder}{os.sep}__pycache__{os.sep}{stem}.{sys.implementation.cache_tag}.pyc"
        code = _code(source, cached)
        if code is None:
            return None
        loader = _Loader(name, source)
        loader.code = code
        spec = ModuleSpec(name, loader, origin=source, is_package=is_package)
        spec.has_location, spec.cached = True, cached
        if is_package:
            spec.submodule_search_locations = [folder]
        return spec

    def _names(self, folder: str) -> frozenset[str] | None:
        """What lies there: what comes later Python finds. None of what is no folder, and may be an archive, and where
        Python would write the path otherwise."""
        if folder not in self._listed:
            self._listed[folder] = _list(folder)
        return self._listed[folder]


def _list(folder: str) -> frozenset[str] | None:
    if not os.path.isabs(folder) or folder.endswith(os.sep):
        return None
    try:
        return frozenset(os.listdir(folder))
    except FileNotFoundError:
        return frozenset()
    except OSError:
        return None


def _is_compiled(stem: str, names: frozenset[str]) -> bool:
    """Is there a module in C of that name, which comes first?"""
    for suffix in EXTENSION_SUFFIXES:
        if stem + suffix in names:
            return True
    return False


def _code(source: str, cached: str) -> CodeType | None:
    """What was compiled of `source` as it is; None where that cannot be said."""
    try:
        with FileIO(cached) as f:
            data = f.readall()
        made = os.stat(source)
    except OSError:
        return None
    stamp = (int(made.st_mtime) & _MASK_32 | (made.st_size & _MASK_32) << 32).to_bytes(8, "little")
    if data[:_HEADER] != MAGIC_NUMBER + _NO_FLAGS + stamp:
        return None
    code: CodeType = marshal.loads(memoryview(data)[_HEADER:])
    if _set_source is not None:
        _set_source(code, source)  # it may have been compiled elsewhere
    return code if code.co_filename == source else None


def import_from_byte_code() -> None:
    """Called before what is to be found like that is imported. Without effect where byte code is kept otherwise, or
    somebody else has a say in what a folder holds."""
    is_kept = not sys.flags.optimize and sys.pycache_prefix is None and sys.implementation.cache_tag
    is_plain = all(getattr(hook, "__module__", "") in _HOOKS for hook in sys.path_hooks)
    finders: list[Any] = sys.meta_path[-len(_PYTHONS) :]  # others come before
    if is_kept and is_plain and finders == _PYTHONS and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(-len(_PYTHONS), _Finder())
