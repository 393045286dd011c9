"""One optimization of a file, or of a model in memory: its options, the attempt, and what comes of it."""

from onnxopt.optimizer.attempt import optimize_file, optimize_model
from onnxopt.optimizer.options import OptimizeOptions
from onnxopt.optimizer.results import DifferentResult, Report, Result, RolledBack

__all__ = ["DifferentResult", "OptimizeOptions", "Report", "Result", "RolledBack", "optimize_file", "optimize_model"]
