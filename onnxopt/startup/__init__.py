"""Keeps the start of a process short: names that import a module on demand (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader, find_spec, module_from_spec
from threading import get_ident
from types import ModuleType
from typing import Any, Final

_MESSAGES: Final = ("onnx.onnx_ml_pb2", "onnx.onnx_data_pb2")
# Modules that packages import once and do not read: a sixth of a process on a small model.
_UNREAD: Final = (
    "calendar",  # dates, for protobuf
    "google.protobuf.descriptor_database",
    "google.protobuf.internal.python_message",  # messages without C
    "google.protobuf.text_encoding",
    "ipaddress",  # addresses in URLs, for pathlib
    "linecache",  # sources, for inspect
    "numpy._core._add_newdocs",  # docstrings of C functions
    "numpy._core._add_newdocs_scalars",
    "numpy._core._internal",  # records, and arrays of ctypes
    "textwrap",  # docstrings, for numpy
    "tokenize",
)


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


class _Unread:
    """Finds modules of `_UNREAD`, which run when a name of them is read."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in _UNREAD else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def import_onnx_in_parts() -> None:
    """Import the package onnx, unless it is imported already, without running `onnx/__init__.py`, for a command.

    The imports of `__init__.py` (text formats, checker, composing) take as long as numpy. A command and its workers
    mostly read messages and a few submodules, each imported when it is read. Another name runs `__init__.py`. Modules
    of `_UNREAD` do not run either.
    """
    spec = None if "onnx" in sys.modules else find_spec("onnx")
    if spec is None or spec.loader is None:
        return
    package, loader = module_from_spec(spec), spec.loader
    running: set[int] = set()  # threads that run `__init__.py`; a second run sets the same names
    is_complete = False

    def getattribute(name: str) -> Any:
        nonlocal is_complete
        if not is_complete and not name.startswith("_"):
            for home in _MESSAGES:
                if hasattr(import_module(home), name):
                    return vars(package).setdefault(name, getattr(sys.modules[home], name))
            with suppress(ModuleNotFoundError):
                return import_module(f"onnx.{name}")
        if not is_complete and get_ident() not in running:
            running.add(get_ident())
            try:
                loader.exec_module(package)
            finally:
                running.remove(get_ident())
            is_complete = True
        if name in vars(package):
            return vars(package)[name]
        raise AttributeError(f"module 'onnx' has no attribute {name!r}")

    sys.meta_path.insert(0, _Unread)
    vars(package)["__getattr__"] = getattribute
    sys.modules["onnx"] = package


def import_the_rest() -> None:
    """Run `onnx/__init__.py` and unread modules, for code that lists or changes the package, or reads it in threads.

    Submodules of onnx import each other in cycles, and Python refuses cycles of imports in several threads.
    """
    import_module("onnx").__version__  # noqa: B018 (`__init__.py` defines the name)
    for name in _UNREAD:
        getattr(sys.modules.get(name), "__doc__", None)
