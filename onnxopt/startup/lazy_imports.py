"""Imports of third parties, postponed until a name of the module is read."""

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

# Modules of others that a run imports and does not ask for: they run when somebody does.
#
# A sixth of a small model's time was these. What is postponed is a module like any other to whoever uses it: the first
# name that is asked of it runs it, but for what others take and do not call. The command and its workers begin
# like this; who uses onnxopt as a library has the modules that they imported.

_POSTPONED: Final = frozenset(
    {
        "bz2",  # what shutil does with archives
        "calendar",  # dates, for messages of protobuf's own
        "copy",  # for dataclasses and weak references
        "fnmatch",  # patterns of file names, for pathlib and shutil
        "google.protobuf.internal.python_message",  # messages where there is no C, and with them their text format
        "ipaddress",  # addresses in URLs, for pathlib
        "linecache",  # lines of source, for inspect and traceback
        "lzma",  # as bz2
        "numpy._core._add_newdocs",  # docstrings of what is written in C
        "numpy._core._add_newdocs_scalars",
        "numpy._core._internal",  # records, and ctypes
        "numpy.lib.format",  # files of arrays
        "numpy.lib.introspect",
        "numpy.lib.mixins",
        "numpy.lib.npyio",
        "numpy.lib.scimath",
        "numpy.lib.stride_tricks",
        "numpy.linalg",  # with it numpy._typing, and half of LAPACK
        "pickle",  # arrays that are pickled
        "platform",  # for what numpy shows of a machine
        "shutil",  # for tempfile
        "textwrap",  # descriptions of numpy
        "tokenize",  # as linecache
        "urllib.parse",  # addresses of files, for pathlib
        "uuid",  # a type of options
    }
)
_LOOK: Final = 0.005  # seconds: who waits looks that often whether it is waited for
_IMPORTLIB: Final = "<frozen importlib"
# What some modules take from others as they are imported, to call it later, if at all.
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
    """A module that runs when somebody asks for what is not there yet."""

    def __getattr__(self, name: str) -> Any:
        with turns.one():
            found = vars(self).get(name)  # another thread may have asked for it meanwhile
            if name == "__path__" and found is None:  # `from` asks for it, of what is no package, too
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
        """What can be had without running the module; None if it has to be run."""
        return None

    def complete(self) -> None:
        """Run it, unless it runs or ran already: it is a module like any other then."""
        run = vars(self).pop("_run", None)
        if run is None:
            return
        try:
            run(self)
        except BaseException:
            vars(self)["_run"] = run  # whoever asks next is told the same
            raise
        self.__class__ = ModuleType  # type: ignore[assignment]


def _asker(frame: FrameType | None) -> Any:
    """The name of the module that asks as it is imported."""
    while frame is not None and frame.f_code.co_filename.startswith(_IMPORTLIB):
        frame = frame.f_back
    return frame.f_globals.get("__name__") if frame is not None and frame.f_code.co_name == "<module>" else None


def _waiting(module: LazyModule, name: str) -> Callable[..., Any]:
    """A function of the module, which runs that when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(module, name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return call


class _Turns:
    """Modules that import each other, numpy's among them, do not survive being imported by many threads at once.

    A thread that imports a part by its name has that module's lock already, for which the one whose turn it is may
    wait: it goes on out of turn, or both would wait for ever.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._holder = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        while not (held := self._lock.acquire(timeout=_LOOK)):
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
    """Is this the frame of an import, or below one?"""
    while frame is not None and not frame.f_code.co_filename.startswith(_IMPORTLIB):
        frame = frame.f_back
    return frame is not None


def _waits_for_module(frame: FrameType | None) -> bool:
    """Does the thread whose frame this is wait for the lock of a module?"""
    return frame is not None and frame.f_code.co_filename.startswith(_IMPORTLIB) and frame.f_code.co_name == "acquire"


class _Postponing:
    """The loader of a module that is postponed."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        vars(module)["_run"] = self._loader.exec_module


class _Finder:
    """Finds what is postponed where it would be found anyway."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _POSTPONED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Postponing(spec.loader)  # type: ignore[assignment]
        return spec


def postpone_modules() -> None:
    """Called before anything imports them; without effect on those that are there already."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def complete_modules() -> None:
    """Run what was postponed, and postpone no more: for who lists what a module has, or shows the docstrings that
    another gets from it."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in _POSTPONED:
        module = sys.modules.get(name)
        if isinstance(module, LazyModule):
            with turns.one():
                module.complete()


# `import onnx` in parts: its messages first, a submodule when it is asked for, the rest only if need be.
#
# What `onnx/__init__.py` imports (formats of JSON and text, checkers, composing) takes half as long as numpy, and most
# runs need messages, schemas and inference alone. The command and its workers begin like this; who uses onnxopt as a
# library has the onnx that they imported, and before a plugin is loaded the package becomes what it is everywhere else.

_MESSAGES: Final = ("onnx.onnx_ml_pb2", "onnx.onnx_data_pb2")


class _Parts(LazyModule):
    """The package, whose `__init__.py` runs when somebody asks for what only that defines."""

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
    """What others do with a package: list what it has, print its messages, put something of theirs into it."""
    package = import_module("onnx")
    if isinstance(package, _Parts):
        with turns.one():
            package.complete()
    complete_modules()


def import_onnx_in_parts() -> None:
    """Called before anything imports onnx; without effect if something did."""
    spec = None if "onnx" in sys.modules else find_spec("onnx")
    if spec is not None and spec.loader is not None:
        package = module_from_spec(spec)
        package.__class__ = _Parts
        vars(package)["_run"] = spec.loader.exec_module
        sys.modules["onnx"] = package
