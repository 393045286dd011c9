"""Types from rules instead of onnx's inference, where the rules give all of them.

Operators without a line in the table of signatures are left to inference, and so are graphs with bodies and sizes that
no rule gives. A test compares these types with those of onnx.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxopt.analysis.inference import skeleton
from onnxopt.analysis.shapes.integers import CONTENTS
from onnxopt.analysis.shapes.sizes import SHAPE_RULES, Dims
from onnxopt.analysis.shapes.sweep import ShapeData
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
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


def is_type_computed(node: Node, graph: Graph) -> bool:
    """Store the types of the results of a node made for `graph`, if rules give them. Returns whether rules do."""
    if not _is_ruled(node.op, graph) or node.bodies or node.has_references:
        return False
    data = ShapeData(assumed=True)
    return _store(graph.model, data, data.visit(node), node.operands)


def _is_ruled(op: str, graph: Graph) -> bool:
    is_tabled = tabled(op, graph.opset()) is not None and (op in SHAPE_RULES or op in CONTENTS or op == "Constant")
    return is_tabled and not graph.model.has_function(op)


def _store(model: Model, data: ShapeData, visited: Iterable[Node], read: Iterable[Value] = ()) -> bool:
    """Store the types if all sizes are settled: numbers, symbols of the file, symbols in shapes of `read`."""
    allowed, model.inference_allowed = model.inference_allowed, False
    found: dict[Value, Shape | None] = {}
    try:
        for node in visited:
            for v in node.results:
                if not v.constant:
                    dims = found[v] = _settled(data.dims.get(v), read)
                    if dims is None or not v.dtype:
                        return False
    finally:
        model.inference_allowed = allowed
    for v, dims in found.items():
        v.shape = v.shape if v.shape is not None else dims
    return True


def _settled(dims: Dims | None, read: Iterable[Value]) -> Shape | None:
    """Return dims that are numbers, symbols of the file, expressions of these, or dims of `read`; None if a dim is none
    of them."""
    named = [d if isinstance(d, int) else d.name for d in dims or ()]
    known = {d for v in read for d in v.shape or ()}
    is_open = any(d < 0 if isinstance(d, int) else "@" in d and d not in known for d in named)
    return None if dims is None or is_open else tuple(named)
