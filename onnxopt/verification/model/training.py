"""Dropout that is told not to train draws nothing: it may be gone in the other model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.verification.model.constants import constants, few
from onnxopt.verification.model.order import bodies_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

_MODE: Final = 2  # the operand of Dropout that says whether it trains


def leave_out_false_modes(model: ModelProto) -> None:
    """Take `training_mode` from each Dropout of the model, its bodies and functions that is told false by a constant,
    which it is where it is not told. What callers may override is none."""
    is_listed = model.ir_version < 4  # every initializer is listed as input, and is what it is
    given = set() if is_listed else {i.name for i in model.graph.input}
    _in_nodes(model.graph.node, {t.name for t in model.graph.initializer if _is_false(t)} - given)
    for function in model.functions:
        _in_nodes(function.node, set())


def _in_body(body: GraphProto, outer: set[str]) -> None:
    """`outer`: the names of constants that are false around it."""
    _in_nodes(body.node, outer - {i.name for i in body.input} | {t.name for t in body.initializer if _is_false(t)})


def _in_nodes(nodes: Sequence[NodeProto], outer: set[str]) -> None:
    known = outer.difference(*(node.output for node in nodes))
    known |= {name for name, tensor in constants(nodes) if _is_false(tensor)}
    for node in nodes:
        if node.op_type == "Identity" and known.intersection(node.input):
            known.update(node.output)
        elif node.op_type == "Dropout" and node.domain in ("", "ai.onnx") and known.intersection(node.input[_MODE:]):
            del node.input[_MODE:]
        for body in bodies_of(node):
            _in_body(body, known)


def _is_false(tensor: TensorProto) -> bool:
    return few(tensor, 1, (tensor.BOOL,)) == [False]
