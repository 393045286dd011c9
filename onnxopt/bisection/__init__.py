"""Bisection: find the rewrite that makes a result wrong."""

from onnxopt.bisection.finding import Finding, describe
from onnxopt.bisection.search import bisect, guilty
from onnxopt.bisection.suspects import explain, goes_wrong, narrowings, suspected
from onnxopt.bisection.trials import Trials

__all__ = [
    "Finding",
    "Trials",
    "bisect",
    "describe",
    "explain",
    "goes_wrong",
    "guilty",
    "narrowings",
    "suspected",
]
