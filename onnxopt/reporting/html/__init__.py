"""The report of an optimization as one HTML page that needs nothing else."""

from onnxopt.reporting.html.page import page

__all__ = ["page"]
