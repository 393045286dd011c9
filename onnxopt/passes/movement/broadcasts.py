"""Repetition left to broadcasting: of Expand and Tile, and of constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.constants import repeated
from onnxopt.analysis.kernels import evaluate
from onnxopt.analysis.shapes.sizes import broadcast
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node, array_of, present, producer
from onnxopt.operators import EXACT, MULTIDIRECTIONAL, PICKS, UNARY, broadcasts
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, RewritePass, register
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var
from onnxopt.rewriting.index_maps import size_of

_COPIES: Final = PICKS | {"ConstantOfShape"}  # operators that may hold repeated elements
_EACH: Final = EXACT.intersection(UNARY) | {"Mul"}  # elementwise operators of masks
_ON_FILLS: Final = tuple(sorted(MULTIDIRECTIONAL | EXACT.intersection(UNARY)))
_MAX_MOVES: Final = 4
_MAX_ELEMENTS: Final = 1 << 20  # elements of an examined constant
_TERM: Final = 2  # index of a Gemm's term
_Narrow = tuple[int, Shape | None, "Array | Value", list[Node]]  # (place, shape, operand, steps)


def _give(shapes: Sequence[Shape | None], made: Shape | None) -> bool:
    """Whether operands of these shapes surely broadcast to the shape `made`.

    A symbol may be 1: next to a number other than 1 the number decides; next to another symbol the result is unknown.
    """
    known = [tuple(map(size_of, dims)) for dims in (*shapes, made) if dims is not None]
    return len(known) > len(shapes) and None not in known[-1] and broadcast(known[:-1]) == known[-1]


def _narrower(m: Match, value: Value | None) -> Iterator[tuple[Shape | None, Array | Value]]:
    """Yield (shape, value or array) of operands that broadcast to `value`."""
    node = producer(value, *_COPIES)
    if node is None or node.has_references:
        return
    number = repeated(value)
    if number is not None:
        yield (), number
    if node.op == "Expand" and node.inputs[0] is not None:
        yield m.shape(node.inputs[0]), node.inputs[0]
    if node.op == "Gather" and not node.attr("axis", 0):
        yield from _row(array_of(node.inputs[0]), repeated(node.inputs[1]))


def _row(rows: Array | None, index: Array | None) -> Iterator[tuple[Shape, Array]]:
    """Yield (shape, array) of the row of a table at one index, if there is one."""
    if rows is not None and index is not None and rows.ndim and -len(rows) <= index < len(rows):
        yield rows.shape[1:], rows[int(index)]


def _computed_beside_scalars(node: Node) -> Value | None:
    """Return the computed operand if all others are scalar constants, else None."""
    given = [v for v in present(node.inputs) if not v.constant]
    wide = any(v.constant_type()[1] for v in present(node.inputs) if v.constant)
    return given[0] if len(given) == 1 and not wide else None


def _steps_to(value: Value) -> list[Node]:
    """Return the single-use elementwise steps, last first, from an Expand to `value`; empty without an Expand.

    Steps may have a scalar constant, which widens nothing.
    """
    steps: list[Node] = []
    while len(steps) < _MAX_MOVES:
        node = producer(value, *_EACH)
        if node is None or (steps and (node.graph, value.only_user) != (steps[-1].graph, steps[-1])):
            break
        computed = _computed_beside_scalars(node)
        if computed is None:
            break
        steps.append(node)
        value = computed
        if producer(value, "Expand") is not None:
            return steps
    return []


def _beside(m: Match, value: Value | None) -> Iterator[tuple[Shape | None, Array | Value, list[Node]]]:
    """Yield (shape, operand, steps) that may replace `value` if the result keeps its shape; steps last first."""
    if value is None:
        return
    for dims, x in _narrower(m, value):
        yield dims, x, []
    steps = _steps_to(value)
    for given in steps[-1].inputs if steps else ():
        expand = producer(given)
        if expand is not None and expand.inputs[0] is not None:
            keeps = partial(_keeps, m, value, m.shape(expand.inputs[0]))
            if value.feeds_only(keeps):
                yield m.shape(expand.inputs[0]), expand.inputs[0], steps


def _keeps(m: Match, value: Value, dims: Shape | None, user: Node) -> bool:
    """Whether a reader's result keeps its shape with an operand of shape `dims`, so the reader is rewritten as well."""
    if user.op not in MULTIDIRECTIONAL or user.graph is not m.node.graph:
        return False
    return _give([dims if v is value else m.shape(v) for v in present(user.inputs)], m.shape(user.output))


def _fitting(m: Match, found: Iterable[_Narrow]) -> Iterator[tuple[int, Array | Value, list[Node]]]:
    """Yield (place, operand, steps) for each operand with which the result keeps its shape."""
    shapes, made = [types.shape(v) for v in m.node.inputs], m.shape(m.node.output)
    for i, dims, x, steps in found:
        if _give([*shapes[:i], dims, *shapes[i + 1 :]], made):
            yield i, x, steps


@rewrite(one_of(*sorted(MULTIDIRECTIONAL))(var("first"), ..., name="node", reads=_COPIES | _EACH))
def expand_of_operand(m: Match, first: Value) -> Value:
    """f(Expand(x, s), y) = f(x, y), where y broadcasts the result to the same shape; for any operand of f.

    Also for operands computed from an Expand elementwise, and for a repeated number, or row of a table.
    """
    given = m.node.inputs
    found = [(i, *other) for i, v in enumerate(given) for other in _beside(m, v)]
    fit = list(_fitting(m, found)) if found else []
    m.require(fit, "the result may lose its shape" if found else "")
    m.require(broadcasts(m.node.op, m.opset), "operands of another shape do not broadcast before opset 8")
    i, x, steps = fit[0]
    narrow = x if isinstance(x, Value) else m.const(x)
    for step in reversed(steps):
        narrow = m.op[step.op](*(v if v is None or v.constant else narrow for v in step.inputs), like=step)
    return m.op[m.node.op](*given[:i], narrow, *given[i + 1 :], like=m.node)


@rewrite(one_of(*_ON_FILLS)(var("first"), ..., name="node", reads={"ConstantOfShape"}))
def step_on_fill(m: Match, first: Value) -> Value:
    """f(ConstantOfShape(s, v), c) = ConstantOfShape(s, f(v, c)), of numbers."""
    given = present(m.node.inputs)
    fill, target = next((v, n.inputs[0]) for v in given if (n := producer(v, "ConstantOfShape")) is not None)
    number = repeated(fill) if m.rank(fill) is not None else None
    number = m.known(number, "its rank, or its number, is unknown")
    one = (1,) * len(m.dims(fill))
    numbers = [number.reshape(one) if v is fill else array_of(v) for v in given]
    m.require(all(n is not None and n.size == 1 and n.ndim <= len(one) for n in numbers), "no number stands beside it")
    found = m.known(evaluate(m.node, numbers, m.opset), "runtimes compute it each in their way")
    return m.op.ConstantOfShape(target, value=found[0].reshape(1))


@rewrite(op.Where(op.Expand(var("c"), var("s"), name="expand"), const("a"), const("b"), name="where"))
def choice_of_expanded(m: Match, c: Value, s: Value, a: Array, b: Array) -> Value:
    """Where(Expand(c, s), a, b) = Expand(Where(c, a, b), s), of two numbers."""
    rank = m.rank(c)
    m.require(a.size == b.size == 1, "not one number each")
    m.require(rank is not None and max(a.ndim, b.ndim) <= rank, "a number has more axes than the condition")
    return m.op.Expand(m.op.Where(c, m.value("a"), m.value("b"), like=m.where), s)


@register
class ImplicitBroadcast(RewritePass):
    """f(Expand(x, s), y) = f(x, y) for operators that broadcast: arithmetic, comparisons, logic, Where.

    Likewise for a number repeated by ConstantOfShape, and for one row of a table gathered for each position. A Where of
    two numbers comes before the Expand of its condition. Operators on a repeated number compute the number once.

    Applies when: the shape of the result is known, and without the Expand provably the same.
    Keeps: different symbols, either of which may be 1 at run time.
    At -O2 because of Where: runtimes select by multiplying, so the sign of a zero depends on the operands' shapes.
    """

    info = PassInfo("implicit-broadcast", opt_level=2)
    rules = (expand_of_operand, step_on_fill, choice_of_expanded)


@register
class ConstantsOnce(GraphPass):
    """f(c, y) = f(c1, y), where the constant c repeats c1 and y has the full size; also for the addend of a Gemm,
    and for operands of a Where.

    Applies when: y provably has the axes along which c repeats, with the same length, or has more axes.
    Keeps: vectors with a number for each channel; zeros of different sign.
    JAX's exporters write each number and bias in the shape of the result, unrecognizable for other rules; so do parts
    of Mamba and VITS.
    """

    # At -O2 because of Where: runtimes select by multiplying, so the sign of a zero depends on the shapes.
    info = PassInfo("constants-once", opt_level=2, ops=("Gemm", *sorted(MULTIDIRECTIONAL)))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        looked: dict[Value, list[int]] = ctx.memo.setdefault("constants-once: looked at", {})
        for value in list(graph.initializers.values()):
            axes = looked.get(value)
            if axes is None and any(_may_narrow(node, value) for node in value.users):
                axes = looked[value] = _axes_of_copies(value)
            for node in list(value.users) if axes else ():
                _narrow(node, value, axes or [], ctx)


def _may_narrow(node: Node, c: Value) -> bool:
    """Whether the node broadcasts this operand (of a Gemm only the term)."""
    assert node.graph is not None
    if node.op == "Gemm":
        return node.graph.opset() >= 7 and node.places(c) == [_TERM]
    return node.op in MULTIDIRECTIONAL and broadcasts(node.op, node.graph.opset())


def _axes_of_copies(c: Value) -> list[int]:
    """Return the axes along which all elements are bitwise equal."""
    dims = c.constant_type()[1] if c.constant else ()
    if len(dims) < 2 or prod(dims) > _MAX_ELEMENTS:
        return []
    data = c.glance()  # most constants do not repeat, and are not cached
    if element_kind(data) == "S":
        return []
    return [axis for axis, length in enumerate(dims) if length > 1 and _repeats(np.moveaxis(data, axis, 0))]


def _repeats(data: Array) -> bool:
    """Whether all parts along the first axis are bitwise equal; mostly decided by the second."""
    one = data[0].tobytes()
    return bool(one == data[1].tobytes() and data.tobytes() == one * len(data))


def _narrow(node: Node, c: Value, axes: Sequence[int], ctx: PassContext) -> None:
    """Make the node read the narrowed constant, if its other operands determine the shape."""
    graph, gemm = node.graph, node.op == "Gemm"
    if graph is None or not _may_narrow(node, c):
        return
    beside = [node.output] if gemm else [v for v in present(node.inputs) if v is not c]
    data = _once(c.array, axes, [types.shape(v) for v in beside], 1 if gemm else 0)
    if data.size == c.array.size:
        ctx.decline("narrowed", "the result may lose its shape", repr(node))
    elif ctx.spend("narrowed", at=node):
        narrow = graph.constant(np.ascontiguousarray(data), c.name, node)
        for place in list(node.places(c)):
            node.set_input(place, narrow)


def _once(data: Array, axes: Sequence[int], beside: Sequence[Shape | None], rank: int) -> Array:
    """Return the smallest part of a repeated constant with the same broadcast shape next to `beside`, of at least
    `rank` axes."""
    known = [s for s in beside if s is not None]
    for axis in axes:
        place = data.ndim - axis
        if any(data.shape[axis] in s[-place:][:1] for s in known if len(s) >= place):
            data = data[(slice(None),) * axis + (slice(0, 1),)]
    while data.ndim > rank and data.shape[0] == 1 and any(len(s) >= data.ndim for s in known):
        data = data[0]
    return data
