"""Operands that older opsets write as attributes: rules read and build inputs for all opsets."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.types import dtype
from onnxopt.graph.node import UNKNOWN, Node
from onnxopt.graph.value import Value
from onnxopt.operators import REDUCTIONS
from onnxopt.proto.messages import Array, numpy_dtype


class Form(NamedTuple):
    """Opset range of the attribute form: `names` are attributes from `first`, and inputs in this order from `since`."""

    first: int
    since: int
    names: tuple[str, ...]


FORMS: Final = {
    "Clip": Form(6, 11, ("min", "max")),
    "Pad": Form(2, 11, ("pads", "value")),
    "Slice": Form(1, 10, ("starts", "ends", "axes")),
    "Split": Form(2, 13, ("split",)),
    "Squeeze": Form(1, 13, ("axes",)),
    "Unsqueeze": Form(1, 13, ("axes",)),
    **dict.fromkeys(REDUCTIONS, Form(1, 18, ("axes",))),
    "ReduceSum": Form(1, 13, ("axes",)),
}
_SCALAR_ATTRIBUTES: Final = frozenset({"max", "min", "value"})  # of the data's type; the others are integer lists


def operands(node: Node) -> list[Value | None]:
    """Return the inputs of a node, with detached constants for attributes that later opsets take as inputs."""
    form = FORMS.get(node.op)
    assert node.graph is not None
    if form is None or not form.first <= node.graph.opset() < form.since or len(node.inputs) != 1:
        return node.inputs
    x = node.inputs[0]
    found: list[Value | None] = [x]
    for name in form.names:
        attribute = node.attr(name)
        if attribute is None:
            found.append(None)
            continue
        value = Value("", node.graph)
        found.append(value)
        kind = dtype(x) if x is not None and name in _SCALAR_ATTRIBUTES else TensorProto.INT64
        readable = kind in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64)
        if readable and attribute is not UNKNOWN:  # otherwise not known as a constant
            value.constant = True
            value.array = np.array(attribute, numpy_dtype(kind))
    while found and found[-1] is None:
        found.pop()
    return found


def listed_axes(node: Node, place: int = 1) -> list[int] | None:
    """Return the axes listed by a Reduce*, Squeeze or Unsqueeze, or in operand `place`; None if computed or absent."""
    given = dict(enumerate(operands(node))).get(place)
    return [int(a) for a in given.array.reshape(-1)] if given is not None and given.constant else None


def attributes(form: Form, values: list[Value | None]) -> dict[str, object] | str:
    """Return `values`, the inputs after the data, as attributes of the older form; or the reason why impossible."""
    found: dict[str, object] = dict.fromkeys(form.names)
    for i, v in enumerate(values):
        if v is None:
            continue
        if i >= len(form.names) or not v.constant:
            return f"an attribute has to say it before opset {form.since}"
        name, array = form.names[i], v.array
        if name in _SCALAR_ATTRIBUTES and not _is_single_precision(array):
            return "the attribute holds single precision only"
        found[name] = float(array.reshape(())) if name in _SCALAR_ATTRIBUTES else array.reshape(-1).tolist()
    return found


def _is_single_precision(array: Array) -> bool:
    return bool((array.astype(np.float32).astype(array.dtype) == array).all())
