"""What broadcasts by itself need not be expanded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from onnxopt.graph import Shape, Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import Array
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var

_BROADCASTING: Final = (
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul"),
    *("Or", "Pow", "Sub", "Xor"),
)

_MOVES: Final = frozenset({"Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"})
_COPIES: Final = _MOVES | {"ConstantOfShape", "Gather"}  # what may hold the same again and again
_STEPS: Final = 8
_SMALL: Final = 1 << 20  # bytes of a stored constant that are looked at


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


def repeated(value: Value | None) -> Array | None:
    """The one element, without axes, that `value` has nothing but copies of."""
    for _ in range(_STEPS):
        if value is None or value.constant:
            break
        node = value.producer
        if node is None or node.has_references:
            return None
        if node.op == "ConstantOfShape":
            fill: Array = node.attr("value", np.zeros(1, np.float32))
            return fill.reshape(()) if fill.size == 1 else None
        if node.op not in _MOVES:
            return None
        value = node.inputs[0]
    if value is None or not value.constant:
        return None
    data = value.array
    if not data.size or data.dtype.kind in "OSU":
        return None
    first: Array = data[(slice(0, 1),) * data.ndim].reshape(())
    same = value.is_fill or (data.nbytes <= _SMALL and data.tobytes() == first.tobytes() * data.size)
    return first if same else None


def _narrower(m: Match, value: Value | None) -> Iterator[tuple[Shape | None, Array | Value]]:
    """What broadcasts to `value`, with its shape."""
    node = value.producer if value is not None else None
    if node is None or node.op not in _COPIES or node.has_references:
        return
    number = repeated(value)
    if number is not None:
        yield (), number
    if node.op == "Expand" and node.inputs[0] is not None:
        yield m.shape(node.inputs[0]), node.inputs[0]
    if node.op == "Gather" and not node.attr("axis", 0):
        table, index = node.inputs[0], repeated(node.inputs[1])
        if table is not None and table.constant and index is not None:
            rows = table.array
            if rows.ndim and -len(rows) <= index < len(rows):
                yield rows.shape[1:], rows[int(index)]


@rewrite(one_of(*_BROADCASTING, "Where")(var("first"), ..., name="node", reads=_COPIES))
def expand_of_operand(m: Match, first: Value) -> Value:
    """f(Expand(x, s), y) = f(x, y), where y makes the result as large; so for each operand beside the others, and for
    one number, or row of a table, that is repeated."""
    given = m.node.inputs
    found = [(i, dims, x) for i, v in enumerate(given) for dims, x in _narrower(m, v)]
    shapes = [m.shape(v) if v is not None else None for v in given] if found else []
    made = m.shape(m.node.output) if found else None
    fit = [(i, x) for i, dims, x in found if broadcast(*shapes[:i], dims, *shapes[i + 1 :]) == made is not None]
    m.require(fit, "the result may lose its shape" if found else "")
    i, x = fit[0]
    narrow = x if isinstance(x, Value) else m.const(x)
    return m.op[m.node.op](*given[:i], narrow, *given[i + 1 :], like=m.node)


@rewrite(op.Where(op.Expand(var("c"), var("s"), name="expand"), const("a"), const("b"), name="where"))
def choice_of_expanded(m: Match, c: Value, s: Value, a: Array, b: Array) -> Value:
    """Where(Expand(c, s), a, b) = Expand(Where(c, a, b), s), of two numbers."""
    rank = m.rank(c)
    m.require(a.size == b.size == 1, "not one number each")
    m.require(rank is not None and max(a.ndim, b.ndim) <= rank, "a number has more axes than the condition")
    return m.op.Expand(m.op.Where(c, m.value("a"), m.value("b"), like=m.where), s)


@register
class ImplicitBroadcast(RewritePass):
    """f(Expand(x, s), y) = f(x, y) for operators that broadcast: arithmetic, comparisons, logic, Where. So is
    one number that ConstantOfShape repeats, and the row of a table that is picked for each position. Between two
    numbers is chosen before what says which is expanded.

    Applies when: the shape of the result is known, and without the Expand provably the same.
    Keeps: symbols apart, of which one may be 1 at run time.

    At -O2 because of Where: runtimes choose by multiplying, so that the sign of a zero depends on the operands' shapes.
    """

    info = PassInfo("implicit-broadcast", opt_level=2)
    rules = (expand_of_operand, choice_of_expanded)
