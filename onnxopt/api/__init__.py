"""The Python API: the commands as functions of files and ModelProtos."""

from typing import TYPE_CHECKING

from onnxopt.startup import lazy, listing

if TYPE_CHECKING:
    from onnxopt.api.analyses import Found, bisect, find, stats, verify
    from onnxopt.api.optimizing import Result, optimize, optimize_file
    from onnxopt.api.page import Page, diff, report
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
        "api.analyses": ("Found", "bisect", "find", "stats", "verify"),
        "api.optimizing": ("Result", "optimize", "optimize_file"),
        "api.page": ("Page", "diff", "report"),
        "bisection": ("Finding",),
        "io": ("load", "save"),
        "optimizer": ("DifferentResult", "OptimizeOptions", "Report", "RolledBack", "optimize_model"),
        "verification": ("VerifyOptions",),
        "verification.records": ("Verification",),
    },
)
