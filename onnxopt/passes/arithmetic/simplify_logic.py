"""Boolean expressions with fewer operations; exact."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.shapes.index_tensors import number
from onnxopt.graph import Value
from onnxopt.graph.node import producer
from onnxopt.operators import COMPARISONS, PICKS, PLACES
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, either, one_of, op, rewrite, var
from onnxopt.rewriting.rule import is_number

_OPPOSITE: Final = {
    "Greater": "LessOrEqual",
    "Less": "GreaterOrEqual",
    "GreaterOrEqual": "Less",
    "LessOrEqual": "Greater",
}
_COMPARED: Final = (TensorProto.INT32, TensorProto.INT64)
_MAX_PRODUCERS: Final = 4
_MAX_EXACT_FLOAT32: Final = 1 << 24  # below this bound float32 represents all integers


@rewrite(op.Not(one_of(*_OPPOSITE)(var("a"), var("b"), name="inner")))
def not_of_comparison(m: Match, a: Value, b: Value) -> Value:
    """not (a > b) = a <= b, of integers: of floats one may be NaN."""
    m.require(m.dtype(a) in _COMPARED, "not integers, of which each is less, equal or greater")
    m.require(m.opset >= 12, "before opset 12 there is no LessOrEqual")
    # Until opset 16 LessOrEqual is a function, for which runtimes infer no shape in a body; Scan outputs need a shape.
    m.require(
        m.opset >= 16 or m.graph.owner is None, "in a body runtimes infer no shape of LessOrEqual before opset 16"
    )
    return m.op[_OPPOSITE[m.inner.op]](a, b)


@rewrite(either(op.Equal(var("p"), True), op.Xor(var("p"), False)))
def same_truth(m: Match, p: Value) -> Value:
    """(p = true) = p, p xor false = p."""
    return p


@rewrite(
    op.Add(
        op.Mul(op.Cast(var("p"), shared=True), var("a")),
        op.Mul(op.Cast(op.Not(var("p"), shared=True), shared=True), var("b")),
    )
)
def choice_by_products(m: Match, p: Value, a: Value, b: Value) -> Value:
    """Cast(p) a + Cast(not p) b = Where(p, a, b), of integers: zero times an infinity is no zero."""
    m.require(m.dtype(a) in _COMPARED, "not integers, of which zero times each is zero")
    m.require(m.opset >= 9, "before opset 9 there is no Where")
    return m.op.Where(p, a, b)


_WIDENED: Final = op.Cast(var("i"), name="cast", shared=True)


@rewrite(
    either(*(one_of(*COMPARISONS)(*pair, name="node") for pair in ((_WIDENED, const("c")), (const("c"), _WIDENED))))
)
def compared_as_floats(m: Match, i: Value, c: Array) -> Value:
    """(Cast(i) < c) = (i < c), of integers."""
    if m.dtype(i) not in _COMPARED:
        m.skip()
    m.require(c.dtype in (np.float32, np.float64), "other numbers than floats of 32 or 64 bits are compared")
    m.require(
        (np.abs(c) < _MAX_EXACT_FLOAT32).all() and (c == np.trunc(c)).all(),
        "not whole numbers that float32 tells apart",
    )
    m.require(m.opset >= 9, "before opset 9 only floats are compared")
    whole = m.const(c.astype(np.int64), like=i)
    return m.op[m.node.op](*(i if v is m.cast.output else whole for v in m.node.inputs))


_COUNTED: Final = one_of("Greater", "GreaterOrEqual")(var("x"), const("c"), name="compared", shared=True)


@rewrite(op.And(_COUNTED, var("q")))
def beside_truth(m: Match, x: Value, c: Array, q: Value) -> Value:
    """(x >= c) and q = Expand(q, Shape(x)), where x counts from c on."""
    if q.constant or m.dtype(x) not in _COMPARED or m.opset < 8:  # a constant is left to the next rule
        m.skip()
    least = _least(x) if is_number(m, c, x) else None
    m.require(least is not None and c.item() < least + (m.compared.op == "GreaterOrEqual"), "it may not be so of all")
    shape = m.shape(q)
    if shape is not None and None not in shape and shape == m.shape(m.anchor.output):
        return q
    return m.op.Expand(q, m.op.Shape(x))


@rewrite(op.And(var("q"), const("c")))
def beside_truths(m: Match, q: Value, c: Array) -> Value:
    """q and true = Expand(q, s), of as many truths as s says."""
    if q.constant or c.size < 2 or m.opset < 8 or not c.all():
        m.skip()
    return m.op.Expand(q, m.const(np.array(c.shape, np.int64)))


_FALLS_SHORT: Final = one_of("Less", "LessOrEqual")(var("x"), const("c"), name="compared", shared=True)


@rewrite(op.Where(either(_FALLS_SHORT, op.And(_FALLS_SHORT, var("q"), shared=True)), var("a"), var("b")))
def never_chosen(m: Match, x: Value, c: Array, a: Value, b: Value, q: Value | None = None) -> Value:
    """Where(x < c and q, a, b) = b, where x counts from c on."""
    least = _least(x)
    if least is None:
        m.skip()
    never = is_number(m, c, x) and not is_float(c) and c.item() < least + (m.compared.op == "Less")
    m.require(never, "it may be so of some")
    shape = m.shape(b)
    m.require(shape is not None and None not in shape and shape == m.shape(m.anchor.output), "it may be made larger")
    return b


def _least(x: Value) -> int | None:
    """Return the first of integers that count or are indices, also rearranged or picked, or None."""
    value: Value | None = x
    for _ in range(_MAX_PRODUCERS):
        node = producer(value, "Range", "TopK", *PLACES, *PICKS)
        if node is None or node.has_references:
            return None
        if node.op == "Range":
            return number(node.inputs[0]) if (number(node.inputs[2]) or 0) > 0 else None
        if node.op not in PICKS:
            return 0 if node.op in PLACES or value is node.outputs[1] else None
        value = node.inputs[0]
    return None


@register
class SimplifyLogic(RewritePass):
    """not (a > b) = a <= b of integers; (Cast(i) < c) = (i < c) of integers; Cast(p) a + Cast(not p) b = Where(p, a, b)
    of integers; removes conditions that are true for all positions (index >= 0), and
    choices by conditions that are false for all.

    Applies when: the operands are booleans or integers, or a Cast of these.
    Not done: not (a > b) of floats, as NaN makes both comparisons false; a choice of floats by products, as 0 times
    infinity is NaN.
    """

    info = PassInfo("simplify-logic", opt_level=1, ops=("And", "Cast", "Equal", "Not", "Where", "Xor"))
    rules = (
        not_of_comparison,
        same_truth,
        choice_by_products,
        compared_as_floats,
        beside_truth,
        beside_truths,
        never_chosen,
    )
