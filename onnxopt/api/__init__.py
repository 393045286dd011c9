"""The Python API: the commands as functions of files and ModelProtos."""

from typing import TYPE_CHECKING

from onnxopt.startup import lazy, listing

if TYPE_CHECKING:
    from onnxopt.api.bisecting import bisect
    from onnxopt.api.counting import stats
    from onnxopt.api.finding import Found, find
    from onnxopt.api.optimizing import optimize, optimize_file
    from onnxopt.api.page import Page, diff, report
    from onnxopt.api.result import Result
    from onnxopt.api.verifying import verify
    from onnxopt.bisection import Finding
    from onnxopt.io.load import load
    from onnxopt.io.save import save
    from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report, RolledBack, optimize_model
    from onnxopt.verification import Verification, VerifyOptions

__all__ = [
    "DifferentResult",
    "Finding",
    "Found",
    "OptimizeOptions",
    "Page",
    "Report",
    "Result",
    "RolledBack",
    "Verification",
    "VerifyOptions",
    "bisect",
    "diff",
    "find",
    "load",
    "optimize",
    "optimize_file",
    "optimize_model",
    "report",
    "save",
    "stats",
    "verify",
]

__dir__ = listing(__name__)
__getattr__ = lazy(
    "onnxopt",
    {
        "api.bisecting": ("bisect",),
        "api.counting": ("stats",),
        "api.finding": ("Found", "find"),
        "api.page": ("Page", "diff", "report"),
        "api.verifying": ("verify",),
        "bisection": ("Finding",),
        "api.optimizing": ("optimize", "optimize_file"),
        "api.result": ("Result",),
        "io": ("load", "save"),
        "optimizer": ("DifferentResult", "OptimizeOptions", "Report", "RolledBack", "optimize_model"),
        "verification.options": ("VerifyOptions",),
        "verification.records": ("Verification",),
    },
)
