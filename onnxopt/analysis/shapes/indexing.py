"""Shape rules for index arithmetic, quantized operators and Loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from onnxopt.analysis.shapes.sizes import (
    LARGEST,
    Dims,
    Found,
    axes_of,
    axis_of,
    broadcast,
    cuts_of,
    indices,
    ints,
    is_behind,
    joined,
    known_order,
    product,
    reduced,
    rows_by_columns,
)
from onnxopt.analysis.shapes.symbolic import (
    Size,
    divide,
    is_named,
    is_nonnegative,
    is_positive,
    least,
    quotient,
    vanishes_with,
)
from onnxopt.analysis.types import agreed
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import REDUCTIONS

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData


# -- Loops -----------------------------------------------------------------------------------------------------

_ATTEMPTS: Final = 3


def carried(s: ShapeData, n: Node) -> list[Found | None] | None:
    """Return the shapes of a Loop's results by induction: dims equal before the first and after every iteration.

    The body's states get the same shapes. Nested Loops under an assumption are skipped: the cost would double at each
    level.
    """
    body = n.bodies.get("body")
    if body is None or s.assumed:
        return None
    if len(body.inputs) != max(len(n.inputs), 2) or len(body.outputs) < len(body.inputs) - 1:
        return None
    states = body.inputs[2:]
    start = [s.shape(v) for v in n.inputs[2:]]
    guess: list[Found | None] = list(start)
    for _ in range(_ATTEMPTS):
        trial = s.assuming({v: dims for v, dims in zip(states, guess) if dims is not None})
        for _ in trial.sweep(body):
            pass
        made = [trial.shape(v) for v in body.outputs[1:]]
        kept = [agreed(a, b) for a, b in zip(guess, made)]
        if kept == guess:
            break
        guess = kept
    else:
        return None
    for v, dims in zip(states, guess):
        if dims is not None:
            s.learn(v, dims)
    trips = _trips(s, n, body)
    known = {d for dims in guess for d in dims or ()}
    return [*guess, *(_collected(trips, dims, known) for dims in made[len(states) :])]


def _collected(trips: Size | None, dims: Dims | None, known: set[Size | None]) -> Found | None:
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
    while going_on.producer is not None and going_on.producer.op == "Identity":
        assert going_on.producer.inputs[0] is not None
        going_on = going_on.producer.inputs[0]
    goes_on = going_on is body.inputs[1] or _is_true(going_on)
    if most is None or most.size != 1 or not goes_on or not (start is None or _is_true(start)):
        return None
    trips: Size | None = most.reshape(-1)[0]
    if isinstance(trips, int):
        return max(trips, 0)
    return trips if trips is not None and is_nonnegative(trips) else None


def _is_true(value: Value) -> bool:
    return value.constant and value.constant_type()[1] in ((), (1,)) and bool(value.array.item())


# -- onnxruntime's quantized operators (QOperator format) ------------------------------------------------------


def _elementwise(s: ShapeData, n: Node) -> list[Found | None] | None:
    a, b = s.shape(n.input(0)), s.shape(n.input(3))
    return [broadcast([a, b])] if a is not None and b is not None else None


def _quantized_concat(s: ShapeData, n: Node) -> list[Found | None]:
    """Inputs: scale and zero point of the result, then (tensor, scale, zero point) for each part."""
    return [joined([s.shape(v) for v in n.inputs[2::3]], n.attr("axis"))]


def _quantized_gemm(s: ShapeData, n: Node) -> list[Found | None]:
    return [rows_by_columns(s.shape(n.input(0)), s.shape(n.input(3)), n)]


def _quantized_pool(s: ShapeData, n: Node) -> list[Found | None] | None:
    x = s.shape(n.input(0))
    return [(*x[:2], *(1 for _ in x[2:]))] if x is not None and not n.attr("channels_last") else None


QUANTIZED: Final[dict[str, Callable[[ShapeData, Node], Any]]] = {
    "com.microsoft::QLinearAdd": _elementwise,
    "com.microsoft::QLinearMul": _elementwise,
    "com.microsoft::QLinearConcat": _quantized_concat,
    "com.microsoft::QLinearGlobalAveragePool": _quantized_pool,
    "com.microsoft::QGemm": _quantized_gemm,
}


# -- index arithmetic ------------------------------------------------------------------------------------------

Rule = Callable[["ShapeData", Node], "Found | None"]


def _matmul(s: ShapeData, n: Node) -> Found | None:
    a, b = s.shape(n.input(0)), s.shape(n.input(3 if n.op == "QLinearMatMul" else 1))
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1]) if len(a) > 2 or len(b) > 2 else (a[0], b[1])


def _transpose(s: ShapeData, n: Node) -> Found | None:
    x = s.shape(n.input(0))
    if x is None:
        return None
    perm = known_order(n, len(x))
    return None if perm is None else tuple(x[i] for i in perm)


def _unsqueeze(s: ShapeData, n: Node) -> Found | None:
    x, axes = s.shape(n.input(0)), axes_of(s, n)
    if x is None or axes is None:
        return None
    rank = len(x) + len(axes)
    at = {axis_of(a, rank) for a in axes} & set(range(rank))
    if len(at) < len(axes):
        return None
    rest = iter(x)
    return tuple(1 if i in at else next(rest) for i in range(rank))


def _squeeze(s: ShapeData, n: Node) -> Found | None:
    x, axes = s.shape(n.input(0)), axes_of(s, n)
    if x is None or not axes:  # without axes the sizes decide
        return None
    at = {axis_of(a, len(x)) for a in axes}
    return tuple(d for i, d in enumerate(x) if i not in at)


def _concat(s: ShapeData, n: Node) -> Found | None:
    return joined([s.shape(v) for v in n.inputs], n.attr("axis"))


def _gather(s: ShapeData, n: Node) -> Found | None:
    x, indices = s.shape(n.input(0)), s.shape(n.input(1))
    if x is None or indices is None:
        return None
    axis = axis_of(n.attr("axis"), len(x))
    return (*x[:axis], *indices, *x[axis + 1 :])


def _gather_nd(s: ShapeData, n: Node) -> Found | None:
    x, indices = s.shape(n.input(0)), s.shape(n.input(1))
    if x is None or not indices or not isinstance(indices[-1], int):
        return None
    return (*indices[:-1], *x[(n.attr("batch_dims") or 0) + indices[-1] :])


def _like_indices(s: ShapeData, n: Node) -> Found | None:
    return s.shape(n.input(1))


def _gemm(s: ShapeData, n: Node) -> Found | None:
    return rows_by_columns(s.shape(n.input(0)), s.shape(n.input(1)), n)


def _slice(s: ShapeData, n: Node) -> Found | None:
    x = s.shape(n.input(0))
    if x is None:
        return None
    result: list[Size | None] = list(x)
    found = cuts_of(s, n, len(x))
    if found is None and n.input(1) is None:
        return None
    if found is None:  # the rank is known, and dims along other axes
        axes = ints(s.content(n.input(3)))
        return tuple(None if axes is None or i in axes or i - len(x) in axes else d for i, d in enumerate(x))
    for axis, start, end, step in found:
        result[axis] = _extent(x, axis, start, end, step)
    return tuple(result)


def _extent(x: Dims, axis: int, start: Size | None, end: Size | None, step: int) -> Size | None:
    """Return the number of elements of [start:end:step] along an axis.

    None if an unknown comparison decides, or if runtimes infer another number than they compute (backwards to the
    largest integer).
    """
    size = x[axis]
    if step < 0 and isinstance(end, int) and end >= LARGEST[0]:
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        taken = indices(start, end, step, size)
        return None if taken is None else len(range(size)[taken])
    if start is None or end is None:
        return None
    if isinstance(end, int) and is_behind(end, axis, x):
        end = size
    if step > 1 and end == size and isinstance(start, int) and 0 <= start < step:
        return quotient(size + (step - 1 - start), step)
    if step != 1:
        return None
    if isinstance(end, int) and end < 0:
        end = size + end
    if start == -1 * size or (isinstance(start, int) and start < 0):
        start = size + start  # `size` before the end is the first element, also for size 0
    if start == 0 and end == size:
        return size
    if start == 0 and isinstance(size, int) and size > 0 and is_nonnegative(end):
        return least(end, size)
    # Without clamping only if 0 ≤ start ≤ end ≤ size is proven.
    inside = is_nonnegative(start) and is_nonnegative(end - start) and is_nonnegative(size - end)
    return end - start if inside else None


def _reshape(s: ShapeData, n: Node) -> Found | None:
    x, target = s.shape(n.input(0)), s.content(n.input(1))
    if target is None:
        return None
    found: list[Size | None] = target.reshape(-1).tolist()
    result = [t if x is not None and i < len(x) and t == x[i] else _as_size(t) for i, t in enumerate(found)]
    if not n.attr("allowzero", 0):
        result = [_or_copied(t, i, x) for i, t in enumerate(result)]
    if -1 in result and x is not None:
        others = [t for t in result if t != -1]
        result[result.index(-1)] = None if None in others else divide(product(x), product(others))
    return tuple(None if t == -1 else t for t in result)


def _as_size(t: Size | None) -> Size | None:
    """Return None for an element that may be -1 (inferred) or 0 (copied) at run time, such as 3 - N."""
    return t if isinstance(t, int) or t is None or is_nonnegative(t) else None


def _or_copied(t: Size | None, i: int, x: Dims | None) -> Size | None:
    """Return the dim made by a Reshape from element `t` of its target; 0 copies the input's dim.

    Two assumptions: an empty tensor keeps its 0 ([N, S, -1] with S = 0 is taken as [N, 0, 5], runtimes give [N, 5, 0]),
    and a tensor of unknown size fits the target.
    """
    if t is None or t == -1 or is_positive(t) or (x is not None and i >= len(x)):
        return t
    if x is None or t == 0:
        return None if x is None else x[i]
    return t if vanishes_with(product(x), t) or not all(map(is_named, x)) else None


def _expand(s: ShapeData, n: Node) -> Found | None:
    x, target = s.shape(n.input(0)), s.content(n.input(1))
    if x is None or target is None or None in target.reshape(-1).tolist():
        return None
    return broadcast([x, tuple(target.reshape(-1).tolist())])


def _filled(s: ShapeData, n: Node) -> Found | None:
    target = s.content(n.input(0))
    return None if target is None else tuple(target.reshape(-1).tolist())


def _range(s: ShapeData, n: Node) -> Found | None:
    start, limit, delta = (s.content(n.input(i)) for i in range(3))
    if start is None or limit is None or delta is None or delta.item() != 1:
        return (None,)
    if start.item() is None or limit.item() is None:
        return (None,)
    count = limit.item() - start.item()
    return (count,) if is_nonnegative(count) else (None,)


def _reduce(s: ShapeData, n: Node) -> Found | None:
    x = s.shape(n.input(0))
    at = reduced(s, n, len(x)) if x is not None else None
    if x is None or at is None:
        return None
    if n.keeps_dims:
        return tuple(1 if i in at else d for i, d in enumerate(x))
    return tuple(d for i, d in enumerate(x) if i not in at)


def _place_of_largest(s: ShapeData, n: Node) -> Found | None:
    x = s.shape(n.input(0))
    if x is None:
        return None
    axis = axis_of(n.attr("axis", 0), len(x))
    return (*x[:axis], *((1,) if n.keeps_dims else ()), *x[axis + 1 :])


def _depth_to_space(s: ShapeData, n: Node) -> Found | None:
    x, b = s.shape(n.input(0)), n.attr("blocksize")
    if x is None or len(x) != 4 or b < 1:
        return None
    return x[0], divide(x[1], b * b), x[2] * b, x[3] * b


def _space_to_depth(s: ShapeData, n: Node) -> Found | None:
    x, b = s.shape(n.input(0)), n.attr("blocksize")
    if x is None or len(x) != 4 or b < 1:
        return None
    return x[0], x[1] * (b * b), divide(x[2], b), divide(x[3], b)


SHAPES: Final[dict[str, Rule]] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _place_of_largest),
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _like_indices,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
