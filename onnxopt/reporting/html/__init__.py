"""The report of an optimization as a self-contained HTML page."""

from onnxopt.reporting.html.page import page

__all__ = ["page"]
