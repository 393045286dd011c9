"""Shape rules for operators that move, pick or index elements, and for Loops (see `operators.py` for the others)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onnxopt.analysis.shapes.sizes import (
    LARGEST,
    Dims,
    PartialDims,
    agreed,
    axes_of,
    axis_of,
    broadcast,
    cuts_of,
    indices,
    ints,
    is_behind,
    joined,
    known_order,
    listed_by,
    product,
    shape_rule,
)
from onnxopt.analysis.shapes.symbolic import (
    Size,
    divide,
    is_named,
    is_nonnegative,
    is_positive,
    minimum,
    quotient,
    vanishes_with,
)
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node, producer
from onnxopt.graph.value import Value

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

_ATTEMPTS: Final = 3


# -- axes -----------------------------------------------------------------------------------------------------


@shape_rule("Transpose")
def _transpose(s: ShapeData, n: Node) -> PartialDims | None:
    x = s.dims_in(n, 0)
    perm = known_order(n, len(x))
    return None if perm is None else tuple([x[i] for i in perm])


@shape_rule("Unsqueeze")
def _unsqueeze(s: ShapeData, n: Node) -> PartialDims | None:
    x, axes = s.dims_in(n, 0), axes_of(s, n)
    if axes is None:
        return None
    rank = len(x) + len(axes)
    at = {axis_of(a, rank) for a in axes} & set(range(rank))
    if len(at) < len(axes):
        return None
    rest = iter(x)
    return tuple([1 if i in at else next(rest) for i in range(rank)])


@shape_rule("Squeeze")
def _squeeze(s: ShapeData, n: Node) -> PartialDims | None:
    x, axes = s.dims_in(n, 0), axes_of(s, n)
    if axes is None and n.input(1) is None and n.attr("axes") is None:
        return tuple([d for d in x if d != 1]) if all(isinstance(d, int) for d in x) else None
    if not axes:
        return None
    at = {axis_of(a, len(x)) for a in axes}
    return tuple(d for i, d in enumerate(x) if i not in at)


@shape_rule("Flatten")
def _flatten(s: ShapeData, n: Node) -> PartialDims | None:
    x = s.dims_in(n, 0)
    axis = axis_of(int(n.attr("axis")), len(x))
    return (product(x[:axis]), product(x[axis:]))


@shape_rule("Concat")
def _concat(s: ShapeData, n: Node) -> PartialDims | None:
    return joined([s.dims_of(v) for v in n.inputs], n.attr("axis"))


@shape_rule("Split")
def _split(s: ShapeData, n: Node) -> list[PartialDims | None] | None:
    x, count = s.dims_in(n, 0), len(n.outputs)
    axis = int(n.attr("axis") or 0) % len(x)
    if n.input(1) is not None:
        content = s.content(n.input(1))
        sizes = [] if content is None else content.reshape(-1).tolist()
    else:
        sizes = n.attr("split") or [divide(x[axis], count)] * count
    known: list[Size | None] = sizes if len(sizes) == count else [None] * count
    return [(*x[:axis], size, *x[axis + 1 :]) for size in known]


@shape_rule("DepthToSpace")
def _depth_to_space(s: ShapeData, n: Node) -> PartialDims | None:
    x, b = s.dims_in(n, 0), n.attr("blocksize")
    return (x[0], divide(x[1], b * b), x[2] * b, x[3] * b) if len(x) == 4 and b >= 1 else None


@shape_rule("SpaceToDepth")
def _space_to_depth(s: ShapeData, n: Node) -> PartialDims | None:
    x, b = s.dims_in(n, 0), n.attr("blocksize")
    return (x[0], x[1] * (b * b), divide(x[2], b), divide(x[3], b)) if len(x) == 4 and b >= 1 else None


@shape_rule("Shape")
def _list(s: ShapeData, n: Node) -> PartialDims | None:
    x = s.shape(n.input(0))
    return (None if x is None else len(x[listed_by(n)]),)


# -- indices --------------------------------------------------------------------------------------------------


@shape_rule("Gather")
def _gather(s: ShapeData, n: Node) -> PartialDims | None:
    x, places = s.dims_in(n, 0), s.dims_in(n, 1)
    axis = axis_of(n.attr("axis"), len(x))
    return (*x[:axis], *places, *x[axis + 1 :])


@shape_rule("GatherND")
def _gather_nd(s: ShapeData, n: Node) -> PartialDims | None:
    x, places = s.dims_in(n, 0), s.dims_in(n, 1)
    if not places or not isinstance(places[-1], int):
        return None
    return (*places[:-1], *x[(n.attr("batch_dims") or 0) + places[-1] :])


@shape_rule("GatherElements")
def _like_indices(s: ShapeData, n: Node) -> PartialDims | None:
    return s.dims_in(n, 1)


@shape_rule("OneHot")
def _one_hot(s: ShapeData, n: Node) -> PartialDims | None:
    x, depth = s.dims_in(n, 0), s.content(n.input(1))
    axis = axis_of(int(n.attr("axis")), len(x) + 1)
    return (*x[:axis], depth.item() if depth is not None and depth.size == 1 else None, *x[axis:])


@shape_rule("Slice")
def _slice(s: ShapeData, n: Node) -> PartialDims | None:
    x = s.dims_in(n, 0)
    found = cuts_of(s, n, len(x))
    if found is None and n.input(1) is None:
        return None
    if found is None:  # the rank is known, and dims along other axes
        axes = ints(s.content(n.input(3)))
        return tuple(None if axes is None or i in axes or i - len(x) in axes else d for i, d in enumerate(x))
    result: list[Size | None] = list(x)
    for axis, start, end, step in found:
        result[axis] = _extent(s, x, axis, start, end, step)
    return tuple(result)


def _extent(s: ShapeData, x: Dims, axis: int, start: Size | None, end: Size | None, step: int) -> Size | None:
    """Return the number of elements of [start:end:step] along an axis.

    None if an unknown comparison decides, or if runtimes infer another number than they compute (backwards to the
    largest integer).
    """
    size = x[axis]
    if start is None or end is None or (step < 0 and isinstance(end, int) and end >= LARGEST[0]):
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        taken = indices(start, end, step, size)
        return None if taken is None else len(range(size)[taken])
    return _extent_of_symbols(s, x, axis, start, end, step)


def _extent_of_symbols(s: ShapeData, x: Dims, axis: int, start: Size, end: Size, step: int) -> Size | None:
    """Return `_extent` where the size or a bound is an expression."""
    size = x[axis]
    if step == start == -1 and isinstance(end, int) and end <= -LARGEST[0]:  # reversed
        return size
    if isinstance(end, int) and is_behind(end, axis, x):
        end = size
    if step > 1 and end == size and isinstance(start, int) and 0 <= start < step:
        return quotient(size + (step - 1 - start), step)
    return _between(s, start, end, size) if step == 1 else None


def _between(s: ShapeData, start: Size, end: Size, size: Size) -> Size | None:
    """Return the number of elements of [start:end] of `size` elements."""
    if isinstance(end, int) and end < 0:
        end = size + end
    if start == -1 * size or (isinstance(start, int) and start < 0):
        start = size + start  # `size` before the end is the first element, also for size 0
    if start == 0 and end == size:
        return size
    if start == 0 and isinstance(size, int) and size > 0 and is_nonnegative(end):
        return minimum(end, size)
    # Without clamping only if 0 ≤ start ≤ end ≤ size is proven.
    return end - start if all(map(s.is_size, (start, end - start, size - end))) else None


# -- sizes from operands --------------------------------------------------------------------------------------


@shape_rule("Reshape")
def _reshape(s: ShapeData, n: Node) -> PartialDims | None:
    target, x = s.data_in(n, 1).reshape(-1).tolist(), s.shape(n.input(0))
    keeps_zero = n.attr("allowzero", 0)
    sizes: list[Size | None] = [_target(s, t, i, x, keeps_zero) for i, t in enumerate(target)]
    inferred = [i for i, t in enumerate(sizes) if isinstance(t, int) and t == -1]
    if inferred and x is not None:
        others = [t for i, t in enumerate(sizes) if i not in inferred]
        sizes[inferred.pop(0)] = None if None in others else divide(product(x), product(others))
    return tuple([None if i in inferred else t for i, t in enumerate(sizes)])


def _target(s: ShapeData, t: Size | None, i: int, x: Dims | None, keeps_zero: bool) -> Size | None:
    """Return the dim made by a Reshape of shape `x` from element `t`, the i-th of its target; -1 is inferred.

    None for an element that may be -1 or 0 at run time, such as 3 - N. A 0 copies the input's dim, unless kept. Two
    assumptions: an empty tensor keeps its 0 ([N, S, -1] with S = 0 is taken as [N, 0, 5], runtimes give [N, 5, 0]), and
    a tensor of unknown size fits the target.
    """
    own = x[i] if x is not None and i < len(x) else None
    if t is None or (own is not None and t == own):
        return t
    if not isinstance(t, int) and not s.is_size(t):
        return None
    return t if keeps_zero or t == -1 else _copied(t, own, x)


def _copied(t: Size, own: Size | None, x: Dims | None) -> Size | None:
    """Return the dim made by an element that copies the input's dim `own` if it is 0."""
    if is_positive(t) or (x is not None and own is None):
        return t
    if x is None or t == 0:
        return own
    return t if vanishes_with(product(x), t) or not all(map(is_named, x)) else None


@shape_rule("Expand")
def _expand(s: ShapeData, n: Node) -> PartialDims | None:
    x, target = s.dims_in(n, 0), tuple(s.data_in(n, 1).reshape(-1).tolist())
    return None if None in target else broadcast([x, target])


@shape_rule("Tile")
def _tile(s: ShapeData, n: Node) -> PartialDims | None:
    x, repeats = s.dims_in(n, 0), s.data_in(n, 1)
    if repeats.shape != (len(x),):
        return None
    return tuple(None if r is None else d * r for d, r in zip(x, repeats.tolist()))


@shape_rule("Pad")
def _pad(s: ShapeData, n: Node) -> PartialDims | None:
    x, pads, given = s.dims_in(n, 0), n.attr("pads"), n.input(3)
    pads = s.data_in(n, 1).reshape(-1).tolist() if pads is None else pads
    axes = list(range(len(x))) if given is None else ints(s.content(given))
    if axes is None or len(pads) != 2 * len(axes):
        return None
    result: list[Size | None] = list(x)
    for axis, before, after in zip(axes, pads, pads[len(axes) :]):
        result[axis] = None if before is None or after is None else x[axis] + (before + after)
    return tuple(result)


@shape_rule("ConstantOfShape")
def _filled(s: ShapeData, n: Node) -> PartialDims | None:
    return tuple(s.data_in(n, 0).reshape(-1).tolist())


@shape_rule("Range")
def _range(s: ShapeData, n: Node) -> PartialDims | None:
    start, limit, delta = (None if c is None else c.item() for c in (s.content(n.input(i)) for i in range(3)))
    if delta != 1 or start is None or limit is None:
        return (None,)
    count = limit - start
    return (count,) if s.is_size(count) else (None,)


# -- Loops ----------------------------------------------------------------------------------------------------


@shape_rule("Loop")
def carried(s: ShapeData, n: Node) -> list[PartialDims | None] | None:
    """Return the shapes of a Loop's results by induction: dims equal before the first and after every iteration.

    The body's states get the same shapes. Nested Loops under an assumption are skipped: the cost would double at each
    level.
    """
    body = n.bodies.get("body")
    if body is None or s.trial:
        return None
    if len(body.inputs) != max(len(n.inputs), 2) or len(body.outputs) < len(body.inputs) - 1:
        return None
    states = body.inputs[2:]
    guess: list[PartialDims | None] = [s.shape(v) for v in n.inputs[2:]]
    found = _invariant(s, body, guess)
    if found is None:
        return None
    guess, made = found
    for v, dims in zip(states, guess):
        if dims is not None:
            s.learn(v, dims)
    trips = _trips(s, n, body)
    known = {d for dims in guess for d in dims or ()}
    return [*guess, *(_collected(trips, dims, known) for dims in made[len(states) :])]


def _invariant(
    s: ShapeData, body: Graph, guess: list[PartialDims | None]
) -> tuple[list[PartialDims | None], list[Dims | None]] | None:
    """Return (dims of the states that iterations keep, dims of all results of an iteration), or None if not found."""
    for _ in range(_ATTEMPTS):
        made = _after_iteration(s, body, guess)
        kept = [agreed(a, b) for a, b in zip(guess, made)]
        if kept == guess:
            return guess, made
        guess = kept
    return None


def _after_iteration(s: ShapeData, body: Graph, states: list[PartialDims | None]) -> list[Dims | None]:
    """Return the shapes of the results of a body, the condition excluded, for states of these shapes."""
    trial = s.assuming({v: dims for v, dims in zip(body.inputs[2:], states) if dims is not None})
    for _ in trial.sweep(body):
        pass
    return [trial.shape(v) for v in body.outputs[1:]]


def _collected(trips: Size | None, dims: Dims | None, known: set[Size | None]) -> PartialDims | None:
    """Return the shape of a scan output: trip count and element dims.

    For 0 iterations a runtime may know only the rank; symbols of the body mean nothing outside.
    """
    if dims is None:
        return None
    some = isinstance(trips, int) and trips > 0
    return (trips, *(d if some and (isinstance(d, int) or d in known) else None for d in dims))


def _trips(s: ShapeData, n: Node, body: Graph) -> Size | None:
    """Return the number of iterations, if no condition ends the loop early."""
    most, start, going_on = s.content(n.input(0)), n.input(1), body.outputs[0]
    while (same := producer(going_on, "Identity")) is not None:
        (going_on,) = same.operands
    goes_on = going_on is body.inputs[1] or _is_true(going_on)
    if most is None or most.size != 1 or not goes_on or not (start is None or _is_true(start)):
        return None
    trips: Size | None = most.item()
    if isinstance(trips, int):
        return max(trips, 0)
    return trips if trips is not None and is_nonnegative(trips) else None


def _is_true(value: Value) -> bool:
    return value.constant and value.constant_type()[1] in ((), (1,)) and bool(value.array.item())
