"""The report of an optimization as one HTML page that needs nothing else."""

from onnxopt.report.html.page import page

__all__ = ["page"]
