"""Records of one model or of two compared models: counterparts of nodes, removed nodes, history of a run, latency."""

from onnxopt.comparison.compare import compare_files, view_file
from onnxopt.comparison.history import read_history

__all__ = ["compare_files", "read_history", "view_file"]
