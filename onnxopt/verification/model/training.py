"""Dropout that is told not to train draws nothing: it may be gone in the other model, or in a function that is inlined."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

from onnxopt.verification.model.constants import constants
from onnxopt.verification.model.order import bodies_of, operator_names

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

_MODE: Final = 2  # the operand of Dropout that says whether it trains


def leave_out_false_modes(model: ModelProto) -> None:
    """Take `training_mode` from each Dropout of the model, its bodies and functions that is told false by a constant,
    which it is where it is not told. What callers may override is none."""
    nodes = (model.graph.node, *(f.node for f in model.functions))
    if "Dropout" not in operator_names(chain.from_iterable(nodes)):
        return
    _in_graph(model.graph, frozenset())
    for function in model.functions:
        _in_nodes(function.node, frozenset())


def _in_graph(graph: GraphProto, outer: frozenset[str]) -> None:
    """`outer`: the names of constants that are false around it."""
    given = {i.name for i in graph.input}
    _in_nodes(graph.node, outer - given | _false((t.name, t) for t in graph.initializer if t.name not in given))


def _in_nodes(nodes: Iterable[NodeProto], outer: frozenset[str]) -> None:
    nodes = list(nodes)
    known = outer | _false(constants(nodes))
    for node in nodes:
        if node.op_type == "Dropout" and node.domain in ("", "ai.onnx") and set(node.input[_MODE:]) & known:
            del node.input[_MODE:]
        for body in bodies_of(node):
            _in_graph(body, known)


def _false(tensors: Iterable[tuple[str, TensorProto]]) -> frozenset[str]:
    return frozenset(name for name, tensor in tensors if _is_false(tensor))


def _is_false(tensor: TensorProto) -> bool:
    from onnxopt.protos import tensor_to_array

    if tensor.data_type != tensor.BOOL or tensor.data_location != tensor.DEFAULT or math.prod(tensor.dims) != 1:
        return False
    try:
        return not tensor_to_array(tensor).any()
    except ValueError:  # it has not the element that it should have
        return False
