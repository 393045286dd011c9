"""Keeps the start of a process short: names that import a module on demand (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from threading import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

_MESSAGES: Final = ("onnx.onnx_ml_pb2", "onnx.onnx_data_pb2")


def _of_onnx(name: str) -> Any:
    """Return a message or submodule of onnx; None for another name."""
    for home in _MESSAGES:
        if hasattr(import_module(home), name):
            return getattr(sys.modules[home], name)
    with suppress(ModuleNotFoundError):
        return import_module(f"onnx.{name}")
    return None


def _functions(module: str, *known: str) -> Callable[[str], Any]:
    """Return the known names of a postponed module: functions that run it when they are called."""

    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        _run(module)
        return getattr(sys.modules[module], name)(*args, **kwargs)

    return lambda name: partial(call, name) if name in known else None


def _of_datetime(name: str) -> Any:
    """Return a class of the C module; None if Python has no C module, and for another name."""
    with suppress(ModuleNotFoundError):
        return getattr(import_module("_datetime"), name, None)
    return None


def _of_platform(name: str) -> Any:
    """Return `system`, which uuid calls on Linux; None for another name."""
    return (lambda: "Linux") if name == "system" and sys.platform == "linux" else None


# Modules that packages import and a command does not read. With onnx, a third of the instructions on a small model.
_UNREAD: Final = (
    "calendar",  # dates, for protobuf
    "copy",
    "google.protobuf.descriptor_database",
    "google.protobuf.internal.python_message",  # messages without C
    "google.protobuf.text_encoding",
    "ipaddress",  # addresses in URLs, for pathlib
    "linecache",  # sources, for inspect
    "numpy._core._add_newdocs",  # docstrings of C functions
    "numpy._core._add_newdocs_scalars",
    "numpy._core._internal",  # records, and arrays of ctypes
    "numpy.lib.mixins",
    "numpy.lib.scimath",
    "pickle",  # files of objects, for numpy
    "shutil",  # removal of folders, for tempfile
    "textwrap",  # docstrings, for numpy
    "tokenize",
)
# {postponed module: its names that are known without a run}
_POSTPONED: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(_UNREAD, lambda name: None),
    "datetime": _of_datetime,
    "numpy.linalg": _functions("numpy.linalg", "eigvals", "inv", "lstsq", "matrix_power"),
    "onnx": _of_onnx,  # its text formats, checker and composing take as long as numpy
    "platform": _of_platform,
    "urllib.parse": _functions("urllib.parse", "quote_from_bytes"),
}


def lazy(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`; `homes`: names by module of the package."""

    def getattribute(name: str) -> Any:
        for module, names in homes.items():
            if name in names:
                return getattr(import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattribute


def listing(package: str) -> Callable[[], list[str]]:
    """Return the `__dir__` of `package`, which also lists names not imported yet."""
    names = vars(sys.modules[package])
    return lambda: sorted({*names, *names["__all__"]})


class _Postponed:
    """Finder and loader of modules of `_POSTPONED`: a module runs when a name is read that is not known (PEP 562)."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._running: set[int] = set()  # threads that run the module; a second run sets the same names
        self._has_run = False

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a postponed module; None for others."""
        spec = PathFinder.find_spec(name, path) if name in _POSTPONED else None
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, cls(spec.loader))
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module a `__getattr__`, instead of a run."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        vars(module)["__getattr__"] = partial(self._read, module)

    def _read(self, module: ModuleType, name: str) -> Any:
        """Return a name of a module: a known name, or a name set by the run."""
        names = vars(module)
        if not self._has_run and name != "__path__":  # asked by `from`, of any module
            if not name.startswith("_") and (known := _POSTPONED[module.__name__](name)) is not None:
                return names.setdefault(name, known)
            if get_ident() not in self._running:
                self._running.add(get_ident())
                try:
                    self._loader.exec_module(module)
                finally:
                    self._running.remove(get_ident())
                self._has_run = True
        if name in names:
            return names[name]
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")


def postpone_imports() -> None:
    """Postpone the run of modules of `_POSTPONED` that are imported from now on, for a command and its workers."""
    if _Postponed not in sys.meta_path:
        sys.meta_path.insert(0, cast(Any, _Postponed))


def import_the_rest() -> None:
    """Run `onnx/__init__.py` and other postponed modules, for code that lists or changes onnx, or reads it in threads.

    Submodules of onnx import each other in cycles, and Python refuses cycles of imports in several threads.
    """
    import_module("onnx")
    for name in _POSTPONED:
        _run(name)


def _run(module: str) -> None:
    """Run a postponed module that is imported."""
    getattr(sys.modules.get(module), "__version__", None)  # no known name
