"""Records of one model or of two compared models: counterparts of nodes, removed nodes, history of a run, latency."""

from typing import TYPE_CHECKING

from onnxopt.comparison.blocks import Block, blocks
from onnxopt.comparison.compare import compare_files, view_file
from onnxopt.comparison.counterparts import Counterparts, match
from onnxopt.comparison.history import History, read_history
from onnxopt.comparison.records import GraphRecord, graph_record
from onnxopt.startup import lazy, listing

if TYPE_CHECKING:
    from onnxopt.comparison.repetition import judge, repeat

__all__ = [
    "Block",
    "Counterparts",
    "GraphRecord",
    "History",
    "blocks",
    "compare_files",
    "graph_record",
    "judge",
    "match",
    "read_history",
    "repeat",
    "view_file",
]

__dir__ = listing(__name__)
__getattr__ = lazy(__name__, {"repetition": ("judge", "repeat")})
