"""The Python API: load, save, optimize, verify, stats. The command line is a thin layer over it."""

from typing import TYPE_CHECKING

from onnxopt.api.files import optimize_file
from onnxopt.api.options import OptimizeOptions
from onnxopt.api.results import DifferentResult, Report, Result, RolledBack
from onnxopt.io import load, save
from onnxopt.lazy import lazy, listing
from onnxopt.verification import VerifyOptions

if TYPE_CHECKING:
    from onnxopt.api.counting import stats
    from onnxopt.api.models import optimize, optimize_model
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
        "api.models": ("optimize", "optimize_model"),
        "verification.files": ("verify",),
        "verification.records": ("Verification",),
    },
)
