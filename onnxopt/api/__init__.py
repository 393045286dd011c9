"""The Python API: load, save, optimize, verify, stats. The command line is a thin layer over it."""

from typing import TYPE_CHECKING

from onnxopt.io import load, save
from onnxopt.lazy import lazy, listing
from onnxopt.optimizer import (
    DifferentResult,
    OptimizeOptions,
    Report,
    Result,
    RolledBack,
    optimize_file,
    optimize_model,
)
from onnxopt.verification import VerifyOptions

if TYPE_CHECKING:
    from onnxopt.api.counting import stats
    from onnxopt.api.models import optimize
    from onnxopt.verification import Verification, verify

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
        "api.models": ("optimize",),
        "verification.files": ("verify",),
        "verification.records": ("Verification",),
    },
)
