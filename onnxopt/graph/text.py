"""A graph as readable text: a line for each node, known types, no weights."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

import numpy as np

from onnxopt.graph.dims import as_written
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.scope import Scope
from onnxopt.graph.value import Shape, Value
from onnxopt.plaintext import line
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array, attribute_value, type_name

_MAX_ELEMENTS: Final = 8  # elements of a constant or list attribute
_MAX_STRING: Final = 60  # characters of a string attribute


def model_text(model: Model) -> str:
    """Return the text of the main graph, then of the functions."""
    return "\n\n".join(map(graph_text, (model.graph, *model.functions.values()))) + "\n"


def graph_text(graph: Scope) -> str:
    """Return the text of a graph and its nested bodies."""
    return "\n".join(line(text, whole=True) for text in graph_lines(graph))


def graph_lines(graph: Scope, indent: str = "") -> Iterator[str]:
    """Yield a header with inputs and outputs, then the nodes in order, with bodies below their owners."""
    inputs = ", ".join(f"{v.name}{type_text(v, ': ')}" for v in graph.inputs)
    outputs = ", ".join(v.name for v in graph.outputs)
    yield f"{indent}{graph.label}({inputs}) -> ({outputs}):"
    for node in graph:
        yield f"{indent}  {node_text(node)}"
        for body in node.bodies.values():
            yield from graph_lines(body, indent + "    ")


def node_text(node: Node) -> str:
    """Return a node as `y: float[N,4] = Conv "conv1" (x, w: float[4,3,3,3]) {pads=[1,1,1,1]}`."""
    outputs = ", ".join("_" if v is None else f"{v.name}{type_text(v, ': ')}" for v in node.outputs)
    inputs = ", ".join("_" if v is None else _operand(v) for v in node.inputs)
    attributes = ", ".join(
        f"{a.name}={f'@{a.ref_attr_name}' if a.ref_attr_name else attribute_text(attribute_value(a))}"
        for a in node.proto.attribute
        if a.name not in node.bodies and not any(key.startswith(f"{a.name}[") for key in node.bodies)
    )
    label = f' "{node.name}"' if node.name else ""
    return f"{outputs} = {node.op}{label}({inputs})" + (f" {{{attributes}}}" if attributes else "")


def _operand(value: Value) -> str:
    if not value.constant:
        return value.name
    data_type, dims = value.constant_type()
    kind = f"{type_name(data_type).lower()}{list(dims) if dims else ''}".replace(" ", "")
    numbers = constant_text(value)
    return f"{value.name}: {kind}" + (f" = {numbers}" if numbers else "")


def constant_text(value: Value) -> str:
    """Return the elements of a small constant: `0.5`, `{1,3,3}`; empty for large constants and for strings."""
    data_type, dims = value.constant_type()
    return _numbers(value.array) if prod(dims) <= _MAX_ELEMENTS and data_type not in (0, 8) else ""


def _numbers(array: Array) -> str:
    floats = array.dtype.type if is_float(array) else np.float32
    numbers = [float_text(x, floats) if isinstance(x, float) else str(x) for x in array.reshape(-1).tolist()]
    return numbers[0] if not array.shape else f"{{{','.join(numbers)}}}"


def float_text(x: float, held: type[np.floating[Any]] = np.float32) -> str:
    """Return a float in six digits, or in as many as the element type `held` needs to restore it exactly."""
    short = f"{x:.6g}"
    return short if held(short) == x or x != x else str(held(x))


def type_text(value: Value, before: str = "") -> str:
    """Return the known type, `float[N,3,?]`, preceded by `before`; empty if unknown. Never triggers inference."""
    if value.constant:
        data_type, dims = value.constant_type()
        return before + shape_text(type_name(data_type).lower(), dims)
    if not value.dtype:
        return ""
    return before + shape_text(type_name(value.dtype).lower(), value.shape)


def shape_text(kind: str, dims: Shape | None) -> str:
    if dims is None:
        return f"{kind}[…]"
    # Symbols with an @ are invented by inference, and differ in every run.
    shown = ["?" if d is None or (isinstance(d, str) and "@" in d) else str(as_written(d)) for d in dims]
    return kind + (f"[{','.join(shown)}]" if shown else "")


def attribute_text(value: Any) -> str:
    """Return an attribute's value, with long lists and strings shortened."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_STRING else value[:_MAX_STRING] + "…")
    if isinstance(value, (list, tuple)):
        shown = [attribute_text(v) for v in value[:_MAX_ELEMENTS]]
        return f"[{','.join(shown)}{',…' if len(value) > _MAX_ELEMENTS else ''}]"
    if isinstance(value, (int, float)):
        return float_text(value) if isinstance(value, float) else str(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"<{value.dtype}{list(value.shape)}>"
    return f"<{type(value).__name__}>"
