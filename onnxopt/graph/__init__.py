"""The in-memory graph: a slim index over a ModelProto."""

from typing import TYPE_CHECKING

from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import UNKNOWN, Node
from onnxopt.graph.reader import read_model
from onnxopt.graph.schema import declare_domain
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.graph.writer import write_model
from onnxopt.startup import lazy, listing

if TYPE_CHECKING:
    from onnxopt.graph.structure import check_model

__all__ = [
    "UNKNOWN",
    "Dim",
    "Graph",
    "Model",
    "Node",
    "Shape",
    "Value",
    "check_model",
    "declare_domain",
    "read_model",
    "write_model",
]

__dir__ = listing(__name__)
__getattr__ = lazy(__name__, {"structure": ("check_model",)})
