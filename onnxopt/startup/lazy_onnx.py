"""`import onnx` in parts: its messages first, a submodule when it is asked for, the rest only if need be.

What `onnx/__init__.py` imports (formats of JSON and text, checkers, composing) takes half as long as numpy, and most
runs need messages, schemas and inference alone. The command and its workers begin like this; who uses onnxopt as a
library has the onnx that they imported, and before a plugin is loaded the package becomes what it is everywhere else.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any, Final

from onnxopt.startup.lazy_modules import LazyModule, complete_modules, turns

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
