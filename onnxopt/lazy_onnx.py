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
from threading import RLock, get_ident
from types import FrameType, ModuleType
from typing import Any, Final

_MESSAGES: Final = ("onnx.onnx_ml_pb2", "onnx.onnx_data_pb2")
_LOOK: Final = 0.005  # seconds: who waits looks that often whether it is waited for
_IMPORTLIB: Final = "<frozen importlib"


class _Parts(ModuleType):
    """The package, whose `__init__.py` runs when somebody asks for what only that defines."""

    def __getattr__(self, name: str) -> Any:
        with _turns.one():
            found = vars(self).get(name)  # another thread may have asked for it meanwhile
            if found is None and not name.startswith("__"):
                found = _part(self.__name__, name)
            if found is None:
                _complete(self)
                return ModuleType.__getattribute__(self, name)
            setattr(self, name, found)
            return found


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


_turns: Final = _Turns()


def is_importing(frame: FrameType | None) -> bool:
    """Is this the frame of an import, or below one?"""
    while frame is not None and not frame.f_code.co_filename.startswith(_IMPORTLIB):
        frame = frame.f_back
    return frame is not None


def _waits_for_module(frame: FrameType | None) -> bool:
    """Does the thread whose frame this is wait for the lock of a module?"""
    return frame is not None and frame.f_code.co_filename.startswith(_IMPORTLIB) and frame.f_code.co_name == "acquire"


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
        with _turns.one():
            _complete(package)


def import_onnx_in_parts() -> None:
    """Called before anything imports onnx; without effect if something did."""
    spec = None if "onnx" in sys.modules else find_spec("onnx")
    if spec is not None and spec.loader is not None:
        package = module_from_spec(spec)
        package.__class__ = _Parts
        vars(package)["_run"] = spec.loader.exec_module
        sys.modules["onnx"] = package
