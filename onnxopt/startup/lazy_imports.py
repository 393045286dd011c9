"""Imports of third parties, postponed until a name of the module is read.

The command and its workers begin by postponing. A library user keeps the modules that they imported. A postponed module
behaves as any other: reading its first name runs the module, except for functions that importers store without calling.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from threading import RLock, get_ident
from types import FrameType, ModuleType
from typing import Any, Final

# Modules that a run imports without use: a sixth of the time of a small model.
_POSTPONED: Final = frozenset(
    {
        "bz2",  # archives of shutil
        "calendar",  # dates, for protobuf's well-known types
        "copy",  # for dataclasses and weak references
        "fnmatch",  # patterns of file names, for pathlib and shutil
        "google.protobuf.internal.python_message",  # messages without C, and the text format
        "ipaddress",  # addresses in URLs, for pathlib
        "linecache",  # lines of source, for inspect and traceback
        "lzma",  # as bz2
        "numpy._core._add_newdocs",  # docstrings of C functions
        "numpy._core._add_newdocs_scalars",
        "numpy._core._internal",  # records, and ctypes
        "numpy.lib.format",  # files of arrays
        "numpy.lib.introspect",
        "numpy.lib.mixins",
        "numpy.lib.npyio",
        "numpy.lib.scimath",
        "numpy.lib.stride_tricks",
        "numpy.linalg",  # imports numpy._typing, and half of LAPACK
        "pickle",  # pickled arrays
        "platform",  # numpy's description of the machine
        "shutil",  # for tempfile
        "textwrap",  # descriptions of numpy
        "tokenize",  # as linecache
        "urllib.parse",  # addresses of files, for pathlib
        "uuid",  # a type of options
    }
)
_POLL: Final = 0.005  # seconds between checks for a deadlock
_IMPORTLIB: Final = "<frozen importlib"
# (importer, module, name): functions stored at import time and called later, if at all.
_TAKEN: Final = frozenset(
    {
        ("click.types", "uuid", "UUID"),
        ("numpy.lib._polynomial_impl", "numpy.linalg", "eigvals"),
        ("numpy.lib._polynomial_impl", "numpy.linalg", "inv"),
        ("numpy.lib._polynomial_impl", "numpy.linalg", "lstsq"),
        ("numpy.matrixlib.defmatrix", "numpy.linalg", "matrix_power"),
        ("pathlib", "urllib.parse", "quote_from_bytes"),
    }
)


class LazyModule(ModuleType):
    """A module whose code runs when a missing name is read."""

    def __getattr__(self, name: str) -> Any:
        with turns.one():
            found = vars(self).get(name)  # set by another thread in the meantime
            if name == "__path__" and found is None:  # `from` reads it of every module
                raise AttributeError(name)
            if found is None and (_asker(sys._getframe(1)), self.__name__, name) in _TAKEN:
                return _waiting(self, name)
            if found is None and not name.startswith("__"):
                found = self.part(name)
            if found is None:
                self.complete()
                return ModuleType.__getattribute__(self, name)
            setattr(self, name, found)
            return found

    def part(self, name: str) -> Any:
        """Return a name available without running the module; None if there is none."""
        return None

    def complete(self) -> None:
        """Run the module, unless it runs or ran already. Afterwards it is a plain module."""
        run = vars(self).pop("_run", None)
        if run is None:
            return
        try:
            run(self)
        except BaseException:
            vars(self)["_run"] = run  # the next reader gets the same error
            raise
        self.__class__ = ModuleType  # type: ignore[assignment]


def _asker(frame: FrameType | None) -> Any:
    """Return the name of the module whose import code reads the name; None outside an import."""
    while frame is not None and frame.f_code.co_filename.startswith(_IMPORTLIB):
        frame = frame.f_back
    return frame.f_globals.get("__name__") if frame is not None and frame.f_code.co_name == "<module>" else None


def _waiting(module: LazyModule, name: str) -> Callable[..., Any]:
    """Return a function that calls the function `name` of the module, which runs then."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(module, name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return call


class _Turns:
    """Mutual exclusion of threads that run postponed modules: cyclic imports, as in numpy, fail in several at once.

    A thread that imports a submodule by name holds the lock of this module. If the thread in turn waits for the same
    lock, the importing thread goes on out of turn; otherwise both would wait forever.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._holder = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        while not (held := self._lock.acquire(timeout=_POLL)):
            if is_importing(sys._getframe()) and _waits_for_module(sys._current_frames().get(self._holder)):
                break
        if held:
            self._holder = get_ident()
        try:
            yield
        finally:
            if held:
                self._lock.release()


turns: Final = _Turns()


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame belongs to an import."""
    while frame is not None and not frame.f_code.co_filename.startswith(_IMPORTLIB):
        frame = frame.f_back
    return frame is not None


def _waits_for_module(frame: FrameType | None) -> bool:
    """Whether the thread of a frame waits for the lock of a module."""
    return frame is not None and frame.f_code.co_filename.startswith(_IMPORTLIB) and frame.f_code.co_name == "acquire"


class _Postponing:
    """The loader of a postponed module."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        vars(module)["_run"] = self._loader.exec_module


class _Finder:
    """Finds postponed modules on the normal path."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _POSTPONED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Postponing(spec.loader)  # type: ignore[assignment]
        return spec


def postpone_modules() -> None:
    """Postpone the modules of `_POSTPONED` that are not imported yet."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def complete_modules() -> None:
    """Run all postponed modules, and postpone no more: for code that lists a module's names, or shows docstrings."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in _POSTPONED:
        module = sys.modules.get(name)
        if isinstance(module, LazyModule):
            with turns.one():
                module.complete()


# -- onnx in parts: messages first, a submodule on demand, the rest if necessary -----------------------------------
#
# The imports of `onnx/__init__.py` (JSON and text formats, checkers, composing) take half as long as numpy. Most runs
# need messages, schemas and inference only. Before a plugin is loaded, the package is completed.

_MESSAGES: Final = ("onnx.onnx_ml_pb2", "onnx.onnx_data_pb2")


class _Parts(LazyModule):
    """The package onnx. `__init__.py` runs when a name is read that only it defines."""

    def part(self, name: str) -> Any:
        for home in _MESSAGES:
            message = getattr(import_module(home), name, None)
            if message is not None:
                return message
        try:
            return import_module(f"{self.__name__}.{name}")
        except ModuleNotFoundError:
            return None


def import_all_of_onnx() -> None:
    """Complete onnx and all postponed modules, for code that lists or changes the package."""
    package = import_module("onnx")
    if isinstance(package, _Parts):
        with turns.one():
            package.complete()
    complete_modules()


def import_onnx_in_parts() -> None:
    """Install the package onnx in parts, unless it is imported already."""
    spec = None if "onnx" in sys.modules else find_spec("onnx")
    if spec is not None and spec.loader is not None:
        package = module_from_spec(spec)
        package.__class__ = _Parts
        vars(package)["_run"] = spec.loader.exec_module
        sys.modules["onnx"] = package
