"""The Python API: the commands as functions of files and ModelProtos."""

from itertools import chain
from typing import TYPE_CHECKING, Final

from onnxopt.startup import lazy, listing

if TYPE_CHECKING:
    from onnxopt.api.analyses import Found as Found
    from onnxopt.api.analyses import bisect as bisect
    from onnxopt.api.analyses import find as find
    from onnxopt.api.analyses import stats as stats
    from onnxopt.api.analyses import verify as verify
    from onnxopt.api.optimizing import Result as Result
    from onnxopt.api.optimizing import optimize as optimize
    from onnxopt.api.optimizing import optimize_file as optimize_file
    from onnxopt.api.page import Page as Page
    from onnxopt.api.page import diff as diff
    from onnxopt.api.page import report as report
    from onnxopt.bisection import Finding as Finding
    from onnxopt.io.load import load as load
    from onnxopt.io.save import save as save
    from onnxopt.optimizer import DifferentResult as DifferentResult
    from onnxopt.optimizer import OptimizeOptions as OptimizeOptions
    from onnxopt.optimizer import Report as Report
    from onnxopt.optimizer import RolledBack as RolledBack
    from onnxopt.optimizer import optimize_model as optimize_model
    from onnxopt.verification import Verification as Verification
    from onnxopt.verification import VerifyOptions as VerifyOptions

_HOMES: Final = {
    "api.analyses": ("Found", "bisect", "find", "stats", "verify"),
    "api.optimizing": ("Result", "optimize", "optimize_file"),
    "api.page": ("Page", "diff", "report"),
    "bisection": ("Finding",),
    "io": ("load", "save"),
    "optimizer": ("DifferentResult", "OptimizeOptions", "Report", "RolledBack", "optimize_model"),
    "verification": ("VerifyOptions",),
    "verification.records": ("Verification",),
}
__all__ = sorted(chain.from_iterable(_HOMES.values()))
__dir__ = listing(__name__)
__getattr__ = lazy("onnxopt", _HOMES)
