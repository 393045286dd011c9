"""File input and output: loading, saving, external data."""

from onnxopt.io.layout import check_choice
from onnxopt.io.load import blaming, from_proto, load
from onnxopt.io.save import Staged, refuse_overwriting_input, save

__all__ = ["Staged", "blaming", "check_choice", "from_proto", "load", "refuse_overwriting_input", "save"]
