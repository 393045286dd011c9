"""Optimization of a file or an in-memory model: options, a single run, and results."""

from onnxopt.optimizer.attempt import DifferentResult, Report, RolledBack, attempt, optimize_model
from onnxopt.optimizer.options import OptimizeOptions

__all__ = ["DifferentResult", "OptimizeOptions", "Report", "RolledBack", "attempt", "optimize_model"]
