"""One optimization of a file, or of a model in memory: its options, the attempt, and what comes of it."""

from onnxopt.optimizer.attempt import attempt, optimize_model
from onnxopt.optimizer.options import OptimizeOptions
from onnxopt.optimizer.results import DifferentResult, Report, RolledBack

__all__ = ["DifferentResult", "OptimizeOptions", "Report", "RolledBack", "attempt", "optimize_model"]
