"""Records of one model or of two compared models: counterparts of nodes, removed nodes, history of a run, latency."""

from onnxopt.comparison.compare import compare_files
from onnxopt.comparison.history import read_history

__all__ = ["compare_files", "read_history"]
