"""What broadcasts by itself need not be expanded."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.graph import Shape, Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.rewriting import Match, one_of, rewrite, var

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


@rewrite(one_of(*_BROADCASTING, "Where")(var("first"), ..., name="node"))
def expand_of_operand(m: Match, first: Value) -> Value:
    """f(Expand(x, s), y) = f(x, y), f(ConstantOfShape(s, c), y) = f(c, y), where y makes the result as large; and so
    for each operand beside the others."""
    made = [(i, v.producer) for i, v in enumerate(m.node.inputs) if v is not None and v.producer is not None]
    repeated = [(i, n) for i, n in made if n.op in ("Expand", "ConstantOfShape") and not n.has_references]
    shapes = [m.shape(v) if v is not None else None for v in m.node.inputs] if repeated else []
    for i, n in repeated:
        x = n.inputs[0] if n.op == "Expand" else None
        narrow = m.shape(x) if x is not None else ()
        if broadcast(*shapes[:i], narrow, *shapes[i + 1 :]) == m.shape(m.node.output) is not None:
            break
    else:
        m.require(not repeated, "the result may lose its shape")
        m.skip()
    x = x or m.const(n.attr("value", np.zeros(1, np.float32)).reshape(()))
    result: Value = getattr(m.op, m.node.op)(*m.node.inputs[:i], x, *m.node.inputs[i + 1 :], like=m.node)
    return result


@register
class ImplicitBroadcast(RewritePass):
    """f(Expand(x, s), y) = f(x, y) for operators that broadcast: arithmetic, comparisons, logic, Where. So is
    one number that ConstantOfShape repeats.

    Applies when: the shape of the result is known, and without the Expand provably the same.
    Keeps: symbols apart, of which one may be 1 at run time.

    At -O2 because of Where: runtimes choose by multiplying, so that the sign of a zero depends on the operands' shapes.
    """

    info = PassInfo("implicit-broadcast", opt_level=2)
    rules = (expand_of_operand,)
