"""`import onnx` in parts: its messages first, a submodule when it is asked for, the rest only if need be.

What `onnx/__init__.py` imports (formats of JSON and text, checkers, composing) takes half as long as numpy, and most
runs need messages, schemas and inference alone. The command and its workers begin like this; who uses onnxopt as a
library has the onnx that they imported, and before a plugin is loaded the package becomes what it is everywhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any, Final

_MESSAGES: Final = ("onnx.onnx_ml_pb2", "onnx.onnx_data_pb2")
_PATIENCE: Final = 5.0  # seconds; far more than all of onnx takes
_lock: Final = RLock()


class _Parts(ModuleType):
    """The package, whose `__init__.py` runs when somebody asks for what only that defines."""

    def __getattr__(self, name: str) -> Any:
        with _one_at_a_time():
            found = vars(self).get(name)  # another thread may have asked for it meanwhile
            if found is None and not name.startswith("__"):
                found = _part(self.__name__, name)
            if found is None:
                _complete(self)
                return ModuleType.__getattribute__(self, name)
            setattr(self, name, found)
            return found


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Modules that import each other, numpy's among them, do not survive being imported by many threads at once.

    A thread that imports a part by its name may ask while another holds the lock and waits for that part: it goes on
    without the lock after a while, so that nothing waits for ever.
    """
    held = _lock.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if held:
            _lock.release()


def _part(package: str, name: str) -> Any:
    for home in _MESSAGES:
        message = getattr(import_module(home), name, None)
        if message is not None:
            return message
    try:
        return import_module(f"{package}.{name}")
    except ModuleNotFoundError:
        return None


def _complete(package: _Parts) -> None:
    run = vars(package).pop("_run", None)
    if run is None:
        return
    try:
        run(package)
    except BaseException:
        vars(package)["_run"] = run  # whoever asks next is told the same
        raise
    package.__class__ = ModuleType  # type: ignore[assignment]


def import_all_of_onnx() -> None:
    """What others do with a package: list what it has, print its messages, put something of theirs into it."""
    package = import_module("onnx")
    if isinstance(package, _Parts):
        with _one_at_a_time():
            _complete(package)


def import_onnx_in_parts() -> None:
    """Called before anything imports onnx; without effect if something did."""
    spec = None if "onnx" in sys.modules else find_spec("onnx")
    if spec is not None and spec.loader is not None:
        package = module_from_spec(spec)
        package.__class__ = _Parts
        vars(package)["_run"] = spec.loader.exec_module
        sys.modules["onnx"] = package
