"""What broadcasts by itself need not be expanded."""

from __future__ import annotations

from typing import Final

from onnxopt.graph import Shape, Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.rewriting import Match, one_of, op, rewrite, var

_BROADCASTING: Final = (
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul"),
    *("Or", "Pow", "Sub", "Xor"),
)


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The shape that operands of these shapes give (onnx's Broadcasting.md), where it is known for sure.

    A symbol may be 1: beside a number that is not 1 the number decides, beside another symbol nothing is known.
    """
    if any(s is None for s in shapes):
        return None
    rank = max(len(s or ()) for s in shapes)
    result: list[int | str | None] = []
    for column in zip(*((1,) * (rank - len(s or ())) + tuple(s or ()) for s in shapes)):
        others = {d for d in column if d != 1}
        numbers = {d for d in others if isinstance(d, int)}
        if len(others) <= 1 and None not in others:
            result.append(next(iter(others), 1))
        elif len(numbers) == 1:
            result.append(next(iter(numbers)))
        else:
            return None
    return tuple(result)


def require_absorbed(m: Match, *operands: Value) -> None:
    """Decline unless the operands, without the Expand, give a result of the shape that it has."""
    shape = broadcast(*(m.shape(v) for v in operands))
    m.require(shape is not None and shape == m.shape(m.node.output), "the result may lose its shape")


@rewrite(one_of(*_BROADCASTING)(op.Expand(var("x"), var("shape"), shared=True), var("y"), name="node"))
def expand_of_first(m: Match, x: Value, shape: Value, y: Value) -> Value:
    """f(Expand(x, s), y) = f(x, y), where y makes the result as large."""
    require_absorbed(m, x, y)
    result: Value = getattr(m.op, m.node.op)(x, y, like=m.node)
    return result


@rewrite(one_of(*_BROADCASTING)(var("x"), op.Expand(var("y"), var("shape"), shared=True), name="node"))
def expand_of_second(m: Match, x: Value, y: Value, shape: Value) -> Value:
    """f(x, Expand(y, s)) = f(x, y), where x makes the result as large."""
    require_absorbed(m, x, y)
    result: Value = getattr(m.op, m.node.op)(x, y, like=m.node)
    return result


@rewrite(op.Where(var("c"), var("x"), var("y"), name="node"))
def expand_in_where(m: Match, c: Value, x: Value, y: Value) -> Value:
    """Where(Expand(c, s), x, y) = Where(c, x, y), and so for x and y, where the others make the result as large."""
    for i, v in enumerate((c, x, y)):
        if v.producer is not None and v.producer.op == "Expand" and v.producer.inputs[0] is not None:
            operands = [c, x, y]
            operands[i] = v.producer.inputs[0]
            if broadcast(*(m.shape(o) for o in operands)) == m.shape(m.node.output) is not None:
                break
    else:
        m.skip()
    result: Value = m.op.Where(*operands, like=m.node)
    return result


@register
class ImplicitBroadcast(RewritePass):
    """f(Expand(x, s), y) = f(x, y) for operators that broadcast: arithmetic, comparisons, logic, Where.

    Applies when: the shape of the result is known, and without the Expand provably the same.
    Keeps: symbols apart, of which one may be 1 at run time.

    At -O2 because of Where: runtimes choose by multiplying, so that the sign of a zero depends on the operands' shapes.
    """

    info = PassInfo("implicit-broadcast", opt_level=2)
    rules = (expand_of_first, expand_of_second, expand_in_where)
