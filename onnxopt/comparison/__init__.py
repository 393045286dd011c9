"""Two models side by side: which node became which, what vanished, and what a run says about it. Plain records."""

from onnxopt.comparison.blocks import Block, blocks
from onnxopt.comparison.compare import compare_files
from onnxopt.comparison.counterparts import Counterparts, match
from onnxopt.comparison.history import History, judge, read_history, repeat
from onnxopt.comparison.records import GraphRecord, graph_record

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
]
