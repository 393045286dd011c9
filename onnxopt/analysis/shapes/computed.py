"""Types from rules instead of onnx's inference, where the rules give all of them.

Operators without a line in the table of signatures are left to inference, and so are graphs with bodies and sizes that
no rule gives. A test compares these types with those of onnx.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxopt.analysis.inference import skeleton
from onnxopt.analysis.shapes.integers import CONTENTS
from onnxopt.analysis.shapes.sizes import SHAPE_RULES
from onnxopt.analysis.shapes.sweep import ShapeData
from onnxopt.analysis.shapes.symbolic import Size
from onnxopt.analysis.types import learn
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.operators.signatures import tabled
from onnxopt.proto.messages import tensor_type


def are_types_computed(model: Model) -> bool:
    """Store the types of the inputs; those of all values of the main graph too, if rules give them. Returns whether
    rules do."""
    graph = model.graph
    types = {i.name: tensor_type(i.type) for i in skeleton(model, ()).graph.input}
    for value in graph.inputs:
        value.dtype, value.shape = types.get(value.name, (value.dtype, value.shape))
    if graph.owners or not all(_is_ruled(op, graph) for op in graph.by_op):
        return False
    data = ShapeData(assumed=True)
    return _store(model, data, data.sweep(graph))


def is_type_computed(node: Node, graph: Graph, partly: bool = False) -> bool:
    """Store the types of the results of a node made for `graph`, if rules give them, or `partly` all but some dims.
    Returns whether rules do."""
    if not _is_ruled(node.op, graph) or node.bodies or node.has_references:
        return False
    data = ShapeData(assumed=True)
    return _store(graph.model, data, data.visit(node), node.operands, partly)


def compute_types(graph: Graph, nodes: Iterable[Node]) -> tuple[list[Node], list[Value]]:
    """Store the types of results that rules give. Returns (other nodes, values with more precise types)."""
    others, better = list[Node](), list[Value]()
    for node in nodes:
        before = [(v, v.dtype, v.shape) for v in node.results]
        if is_type_computed(node, graph):
            better += [v for v, kind, dims in before if (kind, dims) != (v.dtype, v.shape)]
        else:
            others.append(node)
    return others, better


def _is_ruled(op: str, graph: Graph) -> bool:
    is_tabled = tabled(op, graph.opset()) is not None and (op in SHAPE_RULES or op in CONTENTS or op == "Constant")
    return is_tabled and not graph.model.has_function(op)


def _store(
    model: Model, data: ShapeData, visited: Iterable[Node], read: Iterable[Value] = (), partly: bool = False
) -> bool:
    """Store the types if all dims are settled: numbers, symbols of the file, expressions of these, dims of `read`.

    `partly`: other dims are unknown, for a node just made. A node that a rule drops again adds no fact to the graph.
    """
    allowed, model.inference_allowed = model.inference_allowed, False
    found: dict[Value, Shape] = {}
    try:
        for node in visited:
            for v in node.results:
                if not v.constant:
                    dims = data.dims.get(v)
                    if dims is None or not v.dtype:
                        return False
                    found[v] = tuple([_settled(d, read) for d in dims])
                    if (None in found[v] and not partly) or v.shape not in (None, found[v]):
                        return False  # inference finds sizes that are equal, and renames them everywhere
    finally:
        model.inference_allowed = allowed
    for v, shape in found.items():
        learn(v, shape, asked=model.is_vague and not v.unasked and not partly)
        model.is_vague |= None in shape
    return True


def _settled(size: Size, read: Iterable[Value]) -> Dim:
    if isinstance(size, int):
        return size if size >= 0 else None
    return size.name if "@" not in size.name or any(size.name in (v.shape or ()) for v in read) else None
