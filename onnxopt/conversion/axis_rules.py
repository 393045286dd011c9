"""The axis that follows a dim behind each operator.

A rule returns the axis in each result, and changes operands of the old size. It refuses an operator whose results
depend on all places of the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from onnxopt.analysis.shapes.symbolic import Size
from onnxopt.conversion.axis_tracking import AxisTracker, Results, TrackedAxis, axis_in, rank
from onnxopt.conversion.axis_views import expand, filled, flatten, reshape, reshaped, slice, squeeze, tile, unsqueeze
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import BROADCASTING, GLOBAL_POOLS, POOLS, RECURRENT, REDUCTIONS
from onnxopt.proto.element_types import element_kind
from onnxopt.rewriting.axes import axes_of
from onnxopt.rewriting.rule import listed_axes

_LAST: Final = 1 << 10  # aligned at the last axis
_TWICE: Final = "{!r} meets itself on two axes of its operands"
Rule = Callable[[AxisTracker, Node], Results]


def track(c: AxisTracker, node: Node) -> Results:
    """Return the axis in each result of a node. Refuses a node behind which the dim cannot follow."""
    is_function = c.model.has_function(node.op)
    c.require(node, not is_function, "it is a function of the model; --inline-functions puts its body in place")
    c.require(node, not node.bodies, f"it, or its body, reads what follows {c.name!r}")
    follows = node.op in _SIZED or any(v in c.at for v in node.inputs)
    c.require(node, follows, f"it computes with the size of {c.name!r}")
    return RULES.get(node.op, _by_axes)(c, node)


def _all(node: Node, tracked: TrackedAxis | None) -> Results:
    return [tracked] * len(node.outputs)


def _along(c: AxisTracker) -> str:
    return f"its results depend on all places along {c.name!r}"


def _some(c: AxisTracker) -> str:
    return f"it takes some of the places along {c.name!r}"


def _one(c: AxisTracker, node: Node, aligned: dict[Value, int], count: int = 0) -> TrackedAxis:
    """Return the tracked axis of the operands, the same for all.

    `aligned`: the offset of each operand's axes, or `_LAST`: the last axis is the last of `count`.
    """
    offsets = {v: count - rank(v) if offset == _LAST else offset for v, offset in aligned.items()}
    found = {c.at[v]._replace(axis=c.at[v].axis + offset) for v, offset in offsets.items()}
    c.require(node, len(found) == 1, _TWICE.format(c.name))
    return found.pop()


def _by_axes(c: AxisTracker, node: Node) -> Results:
    """Return the axis by the table of axes of operators."""
    a = axes_of(node)
    if a is None:
        is_total = node.op in REDUCTIONS and not listed_axes(node)
        c.refuse(node, _along(c) if is_total else f"how {c.name!r} goes through this operator is not known")
    data = {i: v for i, v in enumerate(node.inputs) if v is not None and v in a.data}
    all_data = all(v in a.data for v in node.operands if v in c.at)
    c.require(node, all_data, f"what follows {c.name!r} is no data of this operator")
    tracked = _one(c, node, dict.fromkeys(filter(c.at.__contains__, a.data), _LAST), a.rank)
    c.require(node, tracked.axis not in a.along and tracked.axis < a.rank - a.last, _along(c))
    axes = {i: tracked.axis - (a.rank - rank(v)) for i, v in data.items()}
    c.meet(node, axes, tracked, broadcasts=node.op in BROADCASTING)
    return _all(node, tracked._replace(axis=a.made.index(tracked.axis)) if tracked.axis in a.made else None)


def _like(c: AxisTracker, node: Node) -> Results:
    """Return the axis of the first operand for each result."""
    first = node.operand(0)
    if first not in c.at and node.op == "CastLike":  # the second operand gives a type only
        return [None]
    c.require(node, first in c.at, f"what follows {c.name!r} is no data of this operator")
    return _all(node, c.at[first])


def _rows(*operands: int, results: int = 1 << 10) -> Rule:
    """Return the rule of an operator whose results have a row for each row (of axis 0) of these operands."""

    def rule(c: AxisTracker, node: Node) -> Results:
        read = c.read_by(node)
        c.require(node, read.keys() <= {*operands}, f"what follows {c.name!r} is no batch of this operator")
        c.require(node, not node.attr("training_mode"), _along(c))
        one, *others = {*read.values()}
        c.require(node, not others and one.axis == 0, f"{c.name!r} is not the first axis of its operands")
        c.meet(node, dict.fromkeys(operands, 0), one, broadcasts=False)
        return [one if i < results else None for i in range(len(node.outputs))]

    return rule


def _resize(c: AxisTracker, node: Node) -> Results:
    tracked = _rows(0)(c, node)[0]
    assert tracked is not None
    axes = node.attr("axes")
    if axes is not None and 0 not in axes:
        return [tracked]
    place = 0 if axes is None else list(axes).index(0)
    if node.input(3) is None:
        scales = node.input(2 if len(node.inputs) > 2 else 1)
        kept = scales is not None and scales.constant and bool(scales.array.reshape(-1)[place] == 1)
        c.require(node, kept, f"it resizes {c.name!r}, or the scales are computed")
    elif (sizes := c.sizes(node, 3))[place] != c.extent(tracked):
        c.rewrite(node, 3, sizes, {place: tracked})
    return [tracked]


# -- products ---------------------------------------------------------------------------------------------------------


def _product(a: int, b: int) -> Rule:
    """Return the rule of a product of the operands `a` and `b`, matrices."""

    def rule(c: AxisTracker, node: Node) -> Results:
        x, y, count = node.operand(a), node.operand(b), rank(node.output)
        read = [i for i, v in enumerate(node.inputs) if v in c.at]
        is_known = {*read} <= {a, b} and min(rank(x), rank(y)) >= 2
        c.require(node, is_known, f"how {c.name!r} goes through this product is not known")
        for i, v, contracted in ((a, x, -1), (b, y, -2)):
            c.require(node, i not in read or c.at[v].axis - rank(v) != contracted, _along(c))
        tracked = _one(c, node, {node.operand(i): _LAST for i in read}, count)
        if tracked.axis < count - 2:
            axes = {i: tracked.axis - count + rank(v) for i, v in ((a, x), (b, y))}
            c.meet(node, axes, tracked, broadcasts=True)
        else:
            c.require(node, len(read) == 1, _TWICE.format(c.name))
        return [tracked]

    return rule


def _gemm(c: AxisTracker, node: Node) -> Results:
    x, y = node.operand(0), node.operand(1)
    row = 1 if node.attr("transA") else 0
    c.require(node, y not in c.at and x in c.at and c.at[x].axis == row, _along(c))
    tracked, bias = c.at[x]._replace(axis=0), node.input(2)
    c.require(node, bias not in c.at or (c.at[bias] == tracked and rank(bias) == 2), _TWICE.format(c.name))
    c.meet(node, {2: rank(bias) - 2}, tracked, broadcasts=True)
    return [tracked]


def _einsum(c: AxisTracker, node: Node) -> Results:
    text = str(node.attr("equation")).replace(" ", "")
    terms, arrow, result = text.partition("->")
    operands = terms.split(",")
    c.require(node, bool(arrow) and "." not in text, "its result is not named by letters")
    read = c.read_by(node)
    found = {(operands[i][tracked.axis], tracked._replace(axis=0)) for i, tracked in read.items()}
    c.require(node, len(found) == 1, _TWICE.format(c.name))
    letter, tracked = found.pop()
    c.require(node, letter in result, _along(c))
    axes = {i: letters.index(letter) for i, letters in enumerate(operands) if letter in letters}
    c.meet(node, axes, tracked, broadcasts=False)
    return [tracked._replace(axis=result.index(letter))]


# -- elements that are chosen -----------------------------------------------------------------------------------------


def _takes_all(c: AxisTracker, indices: Value | None, dims: Sequence[Size], listed: int = 1) -> bool:
    """Return whether all places of these axes are taken once, in order, as by a Reshape.

    `listed`: the number of axes in an index.
    """
    found = c.numbers(indices)
    sizes = [d for d in dims if isinstance(d, int)]
    if found is None or element_kind(found) not in "iu" or len(sizes) < len(dims) or not listed:
        return False
    flat = [0] * (found.size // listed)
    for d, column in zip(sizes, found.reshape(-1, listed).T.tolist()):
        flat = [i * d + at for i, at in zip(flat, column)]
    return flat == [*range(math.prod(sizes))]


def _gather(c: AxisTracker, node: Node) -> Results:
    data, indices = node.operand(0), node.operand(1)
    sized = c.has_symbol(data) or c.has_symbol(indices)
    c.require(node, not sized, f"it computes with the size of {c.name!r}")
    axis = axis_in(node, "axis", rank(data))
    c.require(node, data not in c.at or indices not in c.at, f"{c.name!r} meets itself on two axes of its result")
    if indices in c.at:
        return [c.at[indices]._replace(axis=axis + c.at[indices].axis)]
    tracked = c.at[data]
    if tracked.axis == axis:
        c.require(node, _takes_all(c, indices, c.dims(node, data)[axis : axis + 1]), _some(c))
        return reshaped(c, node, data)
    return [tracked if tracked.axis < axis else tracked._replace(axis=tracked.axis - 1 + rank(indices))]


def _gather_nd(c: AxisTracker, node: Node) -> Results:
    data, indices = node.operand(0), node.operand(1)
    shared, behind = int(node.attr("batch_dims", 0)), rank(indices) - 1
    tracked = _one(c, node, {v: 0 for v in (data, indices) if v in c.at})
    if indices not in c.at and tracked.axis >= shared:
        return _taken_axes(c, node, shared, tracked)
    c.require(node, tracked.axis < (shared if data in c.at else behind), _some(c))
    if tracked.axis < shared:
        c.meet(node, {0: tracked.axis, 1: tracked.axis}, tracked, broadcasts=False)
    return [tracked]


def _taken_axes(c: AxisTracker, node: Node, shared: int, tracked: TrackedAxis) -> Results:
    """Return the axis behind a GatherND whose data alone follow, along an axis behind `shared` axes of batch."""
    data, indices = node.operand(0), node.operand(1)
    listed = c.dims(node, indices)[-1]
    if not isinstance(listed, int):
        c.refuse(node, "how many axes it takes is not known")
    if tracked.axis >= shared + listed:
        return [tracked._replace(axis=rank(indices) - 1 + tracked.axis - shared - listed)]
    c.require(node, not shared and _takes_all(c, indices, c.dims(node, data)[:listed], listed), _some(c))
    return reshaped(c, node, data)


def _scatter_nd(c: AxisTracker, node: Node) -> Results:
    data, indices, updates = (node.operand(i) for i in range(3))
    listed, behind = c.dims(node, indices)[-1], rank(indices) - 1
    if indices in c.at or not isinstance(listed, int) or (data in c.at and c.at[data].axis < listed):
        c.refuse(node, f"it writes some of the places along {c.name!r}")
    offset = listed - behind  # from the axes of updates to those of the data
    tracked = _one(c, node, {v: o for v, o in ((data, 0), (updates, offset)) if v in c.at})
    c.require(node, tracked.axis >= listed, f"it writes some of the places along {c.name!r}")
    c.meet(node, {0: tracked.axis, 2: tracked.axis - offset}, tracked, broadcasts=False)
    return [tracked]


def _places_of(c: AxisTracker, node: Node) -> Results:
    x = node.operand(0)
    tracked, axis = c.at[x], axis_in(node, "axis", rank(x))
    c.require(node, tracked.axis != axis, _along(c))
    gone = not node.keeps_dims and tracked.axis > axis
    return [tracked._replace(axis=tracked.axis - gone)]


def _one_hot(c: AxisTracker, node: Node) -> Results:
    indices = node.operand(0)
    c.require(node, indices in c.at, f"it computes with the size of {c.name!r}")
    tracked, axis = c.at[indices], axis_in(node, "axis", rank(indices) + 1, -1)
    return [tracked._replace(axis=tracked.axis + (tracked.axis >= axis))]


def _recurrent(c: AxisTracker, node: Node) -> Results:
    """Return the axis of batch of each result; X, sequence_lens and the states have an axis of batch."""
    batch, every = (0, 0) if node.attr("layout", 0) else (1, 2)
    axes = {0: batch, 4: 0, 5: batch, 6: batch}
    read = c.read_by(node)
    c.require(node, all(axes.get(i) == tracked.axis for i, tracked in read.items()), _along(c))
    (tracked, *_) = read.values()
    c.meet(node, axes, tracked, broadcasts=False)
    return [tracked._replace(axis=axis) for axis in (every, batch, batch)][: len(node.outputs)]


def _mean_variance(c: AxisTracker, node: Node) -> Results:
    x = node.operand(0)
    reduced = {a % rank(x) for a in node.attr("axes", (0, 2, 3))}
    c.require(node, c.at[x].axis not in reduced, _along(c))
    return [c.at[x]]


_SIZED: Final = frozenset(("ConstantOfShape", "Expand", "Tile"))  # results follow sizes in operands
_THERE: Final = "com.microsoft::"
RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("CastLike", "Dropout", "Identity", "Bernoulli", "RandomNormalLike", "RandomUniformLike"), _like),
    **{f"{_THERE}{op}": _like for op in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")},
    **dict.fromkeys((*POOLS, *GLOBAL_POOLS), _rows(0)),
    **dict.fromkeys(
        ("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN", "Conv", "ConvTranspose"),
        _rows(0, results=1),
    ),
    **dict.fromkeys(("ConvInteger", "QLinearConv", "DepthToSpace", "SpaceToDepth", "Upsample"), _rows(0)),
    **dict.fromkeys((f"{_THERE}FusedConv", f"{_THERE}MatMulNBits"), _rows(0)),
    f"{_THERE}SkipLayerNormalization": _rows(0, 1),
    f"{_THERE}SkipSimplifiedLayerNormalization": _rows(0, 1),
    "Attention": _rows(0, 1, 2, 4, 5),
    "DeformConv": _rows(0, 2, 4),
    "GridSample": _rows(0, 1),
    "MaxUnpool": _rows(0, 1),
    "MeanVarianceNormalization": _mean_variance,
    "Resize": _resize,
    **dict.fromkeys(RECURRENT, _recurrent),
    "ArgMax": _places_of,
    "ArgMin": _places_of,
    "ConstantOfShape": filled,
    "Einsum": _einsum,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _product(0, 1),
    "MatMulInteger": _product(0, 1),
    "QLinearMatMul": _product(0, 3),
    "OneHot": _one_hot,
    "Reshape": reshape,
    "ScatterND": _scatter_nd,
    "Slice": slice,
    "Squeeze": squeeze,
    "Tile": tile,
    "Unsqueeze": unsqueeze,
}
