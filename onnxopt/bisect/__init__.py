"""Which rewrite makes a result wrong."""

from onnxopt.bisect.finding import Finding, describe
from onnxopt.bisect.search import bisect, guilty
from onnxopt.bisect.suspects import explain, goes_wrong, narrowings, suspects
from onnxopt.bisect.trials import Trials

__all__ = [
    "Finding",
    "Trials",
    "bisect",
    "describe",
    "explain",
    "goes_wrong",
    "guilty",
    "narrowings",
    "suspects",
]
