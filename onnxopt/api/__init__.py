"""The Python API: what the commands do, as functions that take files and ModelProtos."""

from typing import TYPE_CHECKING

from onnxopt.lazy import lazy, listing

if TYPE_CHECKING:
    from onnxopt.api.counting import stats
    from onnxopt.api.optimizing import optimize, optimize_file
    from onnxopt.api.result import Result
    from onnxopt.io.load import load
    from onnxopt.io.save import save
    from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report, RolledBack, optimize_model
    from onnxopt.verification import Verification, VerifyOptions, verify

__all__ = [
    "DifferentResult",
    "OptimizeOptions",
    "Report",
    "Result",
    "RolledBack",
    "Verification",
    "VerifyOptions",
    "load",
    "optimize",
    "optimize_file",
    "optimize_model",
    "save",
    "stats",
    "verify",
]

__dir__ = listing(__name__)
__getattr__ = lazy(
    "onnxopt",
    {
        "api.counting": ("stats",),
        "api.optimizing": ("optimize", "optimize_file"),
        "api.result": ("Result",),
        "io": ("load", "save"),
        "optimizer": ("DifferentResult", "OptimizeOptions", "Report", "RolledBack", "optimize_model"),
        "verification.files": ("verify",),
        "verification.options": ("VerifyOptions",),
        "verification.records": ("Verification",),
    },
)
