"""Shape rules of onnxruntime's operators on quantized tensors (QOperator format)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from onnxopt.analysis.shapes.sizes import Found, broadcast, joined, rows_by_columns
from onnxopt.graph.node import Node

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData


def _elementwise(s: ShapeData, n: Node) -> list[Found | None] | None:
    a, b = s.shape(n.input(0)), s.shape(n.input(3))
    return [broadcast([a, b])] if a is not None and b is not None else None


def _concat(s: ShapeData, n: Node) -> list[Found | None]:
    """Inputs: scale and zero point of the result, then (tensor, scale, zero point) for each part."""
    return [joined([s.shape(v) for v in n.inputs[2::3]], n.attr("axis"))]


def _gemm(s: ShapeData, n: Node) -> list[Found | None]:
    return [rows_by_columns(s.shape(n.input(0)), s.shape(n.input(3)), n)]


def _global_pool(s: ShapeData, n: Node) -> list[Found | None] | None:
    x = s.shape(n.input(0))
    return [(*x[:2], *(1 for _ in x[2:]))] if x is not None and not n.attr("channels_last") else None


RULES: Final[dict[str, Callable[[ShapeData, Node], Any]]] = {
    "com.microsoft::QLinearAdd": _elementwise,
    "com.microsoft::QLinearMul": _elementwise,
    "com.microsoft::QLinearConcat": _concat,
    "com.microsoft::QLinearGlobalAveragePool": _global_pool,
    "com.microsoft::QGemm": _gemm,
}
