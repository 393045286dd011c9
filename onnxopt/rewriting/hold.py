"""Replaces the producer of a value by an array."""

from __future__ import annotations

from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array, make_node


def hold(value: Value, array: Array) -> None:
    """Make a node's output an initializer with the data `array`, or the output of a Constant in scopes without
    initializers.

    Call `cannot_hold` before. The old producer stays, without the output.
    """
    graph, maker = value.graph, value.producer
    assert graph is not None and maker is not None
    if _is_initializer(value):
        value.array = array
        graph.add_initializer(value)
    else:
        constant = Node(make_node("Constant", "", "", {"value": array}), [], [])
        graph.insert(constant, maker)
        graph.take_over(value, constant)


def cannot_hold(value: Value, array: Array) -> str:
    """Return why no initializer or Constant can hold the array; empty if possible. Before opset 9 a Constant holds
    floats only."""
    assert value.graph is not None
    opset = value.graph.opset()
    if _is_initializer(value) or opset >= 9 or (opset > 0 and is_float(array)):
        return ""
    told = "opset 9 has the first such" if opset else "the default domain is not imported"
    return f"the result would be a Constant, and {told}"


def _is_initializer(value: Value) -> bool:
    return value.graph is not None and value.graph.holds_initializers and not value.is_output
