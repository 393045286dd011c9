"""Which rewrite makes a result wrong."""

from onnxopt.bisect.finding import Finding, describe
from onnxopt.bisect.search import bisect
from onnxopt.bisect.suspects import made, rewrites, suspects

__all__ = ["Finding", "bisect", "describe", "made", "rewrites", "suspects"]
