"""onnxopt: optimize ONNX models, prove that nothing broke, and say what was done.

import onnxopt
result = onnxopt.optimize("model.onnx")
onnxopt.optimize_file("model.onnx", "model.opt.onnx")  # verified against the original
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxopt.api import (
        OptimizeOptions,
        Report,
        Result,
        load,
        optimize,
        optimize_file,
        optimize_model,
        save,
        stats,
        verify,
    )
    from onnxopt.errors import OnnxOptError

__version__ = "0.1.0"

__all__ = [
    "OnnxOptError",
    "OptimizeOptions",
    "Report",
    "Result",
    "__version__",
    "load",
    "optimize",
    "optimize_file",
    "optimize_model",
    "save",
    "stats",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `onnxopt --help` does not pay for onnx."""
    if name not in __all__:
        raise AttributeError(f"module 'onnxopt' has no attribute {name!r}")
    return getattr(import_module("onnxopt.errors" if name == "OnnxOptError" else "onnxopt.api"), name)
