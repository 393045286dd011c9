"""Signs are part of a sum, of a product, of a constant: exact, as no rounding depends on them."""

from __future__ import annotations

from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import FLOATS, Array
from onnxopt.rewriting import Match, const, one_of, only_read_by, op, rewrite, var


@rewrite(op.Neg(op.Neg(var("x"), shared=True)))
def neg_of_neg(m: Match, x: Value) -> Value:
    """-(-x) = x."""
    return x


@rewrite(op.Add(var("x"), op.Neg(var("y"), name="inner", shared=True)))
def add_of_neg(m: Match, x: Value, y: Value) -> Value:
    """x + (-y) = x - y."""
    goes(m)
    return m.op.Sub(x, y, like=m.anchor)


@rewrite(op.Sub(var("x"), op.Neg(var("y"), name="inner", shared=True)))
def sub_of_neg(m: Match, x: Value, y: Value) -> Value:
    """x - (-y) = x + y."""
    goes(m)
    return m.op.Add(x, y, like=m.anchor)


def goes(m: Match) -> None:
    """Decline unless all that reads the Neg are sums and differences, of which each takes the sign for itself."""

    def takes(user: Node) -> bool:
        return user.op == "Add" or (user.op == "Sub" and user.inputs[0] is not m.inner.output)

    m.require(m.inner.output.feeds_only(takes), "Neg output used elsewhere")


@rewrite(one_of("Mul", "Div")(op.Neg(var("x"), shared=True), op.Neg(var("y"), shared=True), name="node"))
def both_signs(m: Match, x: Value, y: Value) -> Value:
    """(-x) (-y) = x y, (-x) / (-y) = x / y."""
    m.require(m.dtype(x) in FLOATS, "the lowest of the integers has no negative")
    return m.op[m.node.op](x, y, like=m.node)


@rewrite(one_of("Mul", "Div")(op.Neg(var("x"), name="inner", shared=True), const("c"), name="node"))
def sign_of_factor(m: Match, x: Value, c: Array) -> Value:
    """(-x) c = x (-c), (-x) / c = x / (-c)."""
    only_read_by(m, m.inner, "Mul", "Div")
    return m.op[m.node.op](x, turned(m, c), like=m.node)


@rewrite(op.Neg(one_of("Mul", "Div")(var("x"), const("c"), name="node")))
def sign_of_product(m: Match, x: Value, c: Array) -> Value:
    """-(x c) = x (-c), -(x / c) = x / (-c)."""
    return m.op[m.node.op](x, turned(m, c), like=m.node)


@rewrite(op.Neg(op.Div(const("c"), var("x"), name="node")))
def sign_of_quotient(m: Match, x: Value, c: Array) -> Value:
    """-(c / x) = (-c) / x."""
    return m.op.Div(turned(m, c), x, like=m.node)


@rewrite(op.Div(const("c"), op.Neg(var("x")), name="node"))
def sign_of_divisor(m: Match, x: Value, c: Array) -> Value:
    """c / (-x) = (-c) / x."""
    return m.op.Div(turned(m, c), x, like=m.node)


@rewrite(op.Sub(op.Neg(var("x")), const("c"), name="node"))
def sign_of_term(m: Match, x: Value, c: Array) -> Value:
    """(-x) - c = (-c) - x."""
    return m.op.Sub(turned(m, c), x, like=m.node)


def turned(m: Match, c: Array) -> Value:
    """The constant -c, which takes no more room than c."""
    m.require(c.dtype.kind == "f", "not floating point")
    m.require(c.size == 1 or m.value("c").only_user is not None, "the constant is used elsewhere")
    return m.const(-c, like=c)


@rewrite(op.Abs(op.Neg(var("x"), shared=True), name="node"))
def size_of_neg(m: Match, x: Value) -> Value:
    """|-x| = |x|."""
    return m.op.Abs(x, like=m.node)


@register
class FoldSigns(RewritePass):
    """-(-x) = x, x - (-y) = x + y, (-x) c = x (-c), (-x) (-y) = x y, |-x| = |x|.

    Applies when: a sum, a difference, a product, a quotient or another Neg reads the Neg, and no more is stored.
    Not done: -(x - y), which is -0.0 where y - x is 0.0 (`simplify-arithmetic` does it); constants that are integers.
    """

    info = PassInfo("fold-signs", opt_level=1)
    rules = (
        neg_of_neg,
        add_of_neg,
        sub_of_neg,
        both_signs,
        sign_of_factor,
        sign_of_product,
        sign_of_quotient,
        sign_of_divisor,
        sign_of_term,
        size_of_neg,
    )
