"""Where the axis that follows a dim is behind each operator: a rule gives its place in each result, and changes what
holds the old size. Where an operator ties the places of the axis to one another, it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from onnxopt.analysis.shapes.symbolic import Size
from onnxopt.conversion.carrier import Carried, Carrier, Results, axis_in, operand, rank
from onnxopt.conversion.carry_views import (
    expand,
    filled,
    flatten,
    reshape,
    reshaped,
    slice,
    squeeze,
    tile,
    unsqueeze,
)
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import BROADCASTING, GLOBAL_POOLS, POOLS, RECURRENT, REDUCTIONS
from onnxopt.rewriting.axes import axes_of
from onnxopt.rewriting.rule import listed_axes

_LAST: Final = 1 << 10  # aligned at the last axis
Rule = Callable[[Carrier, Node], Results]


def carry(c: Carrier, node: Node) -> Results:
    """Where the axis is in each result of a node. Refuses one behind which the dim cannot follow."""
    if c.model.has_function(node.op):
        c.refuse(node, "it is a function of the model; --inline-functions puts its body in place")
    if node.bodies:
        c.refuse(node, f"it, or its body, reads what follows {c.name!r}")
    rule = RULES.get(node.op)
    if not (node.op in _SIZED or any(v in c.at for v in node.inputs)):
        c.refuse(node, f"it computes with the size of {c.name!r}")
    return (rule or _by_axes)(c, node)


def _all(node: Node, carried: Carried | None) -> Results:
    return [carried] * len(node.outputs)


def _along(c: Carrier, node: Node) -> str:
    return f"its results depend on all places along {c.name!r}"


def _one(c: Carrier, node: Node, aligned: dict[Value, int], count: int = 0) -> Carried:
    """What the operands carry, which has to be the same: axes are moved by as many places as `aligned` says, or to the
    last of `count`."""
    found = {
        c.at[v]._replace(axis=c.at[v].axis + (count - rank(v) if offset == _LAST else offset))
        for v, offset in aligned.items()
    }
    if len(found) != 1:
        c.refuse(node, f"{c.name!r} meets itself on two axes of its operands")
    return found.pop()


def _by_axes(c: Carrier, node: Node) -> Results:
    """By the table of how axes run through operators."""
    a = axes_of(node)
    if a is None and node.op in REDUCTIONS and not listed_axes(node):
        c.refuse(node, _along(c, node))
    if a is None:
        c.refuse(node, f"how {c.name!r} goes through this operator is not known")
    if any(v in c.at and v not in a.data for v in node.inputs if v is not None):
        c.refuse(node, f"what follows {c.name!r} is no data of this operator")
    carried = _one(c, node, {v: _LAST for v in a.data if v in c.at}, a.rank)
    if carried.axis in a.along or carried.axis >= a.rank - a.last:
        c.refuse(node, _along(c, node))
    for i, v in enumerate(node.inputs):
        if v is not None and v in a.data and v not in c.at:
            axis = carried.axis - (a.rank - rank(v))
            c.match(node, i, carried._replace(axis=axis), broadcasts=node.op in BROADCASTING)
    return _all(node, carried._replace(axis=a.made.index(carried.axis)) if carried.axis in a.made else None)


def _like(c: Carrier, node: Node) -> Results:
    """Each result has the axes of the first operand."""
    first = operand(node, 0)
    if first not in c.at and node.op == "CastLike":  # the other says a type only
        return [None]
    if first not in c.at:
        c.refuse(node, f"what follows {c.name!r} is no data of this operator")
    return _all(node, c.at[first])


def _rows(*operands: int, results: int = 1 << 10) -> Rule:
    """Results have a row for each row of these operands: their first axis."""

    def rule(c: Carrier, node: Node) -> Results:
        read = [(i, v) for i, v in enumerate(node.inputs) if v in c.at]
        if any(i not in operands for i, _ in read):
            c.refuse(node, f"what follows {c.name!r} is no batch of this operator")
        if node.attr("training_mode"):
            c.refuse(node, _along(c, node))
        carried = {c.at[v] for _, v in read if v is not None}
        if len(carried) != 1 or next(iter(carried)).axis != 0:
            c.refuse(node, f"{c.name!r} is not the first axis of its operands")
        (one,) = carried
        for i in operands:
            v = node.input(i)
            if v is not None and v not in c.at:
                c.match(node, i, one, broadcasts=False)
        return [one if i < results else None for i in range(len(node.outputs))]

    return rule


def _resize(c: Carrier, node: Node) -> Results:
    carried = _rows(0)(c, node)[0]
    assert carried is not None
    axes = node.attr("axes")
    place = 0 if axes is None else list(axes).index(0) if 0 in axes else None
    scales = node.input(2 if len(node.inputs) > 2 else 1)
    if place is not None and node.input(3) is not None:
        sizes = c.sizes(node, 3)
        if sizes[place] != c.extent(carried):
            c.rewrite(node, 3, sizes, {place: carried})
    elif place is not None and (scales is None or not scales.constant or scales.array.reshape(-1)[place] != 1):
        c.refuse(node, f"it resizes {c.name!r}, or nobody knows")
    return [carried]


# -- products ---------------------------------------------------------------------------------------------------------


def _product(a: int, b: int) -> Rule:
    """Of matrices, which are these operands."""

    def rule(c: Carrier, node: Node) -> Results:
        x, y, count = operand(node, a), operand(node, b), rank(node.output)
        if any(v in c.at for i, v in enumerate(node.inputs) if i not in (a, b)) or min(rank(x), rank(y)) < 2:
            c.refuse(node, f"how {c.name!r} goes through this product is not known")
        read = [v for v in (x, y) if v in c.at]
        for v, contracted in ((x, -1), (y, -2)):
            if v in read and c.at[v].axis - rank(v) == contracted:
                c.refuse(node, _along(c, node))
        carried = _one(c, node, dict.fromkeys(read, _LAST), count)
        if carried.axis >= count - 2:
            if len(read) > 1:
                c.refuse(node, f"{c.name!r} meets itself on two axes of its operands")
            return [carried]
        for i, v in ((a, x), (b, y)):
            if v not in c.at:
                c.match(node, i, carried._replace(axis=carried.axis - count + rank(v)), broadcasts=True)
        return [carried]

    return rule


def _gemm(c: Carrier, node: Node) -> Results:
    x, y = operand(node, 0), operand(node, 1)
    row = 1 if node.attr("transA") else 0
    if y in c.at or x not in c.at or c.at[x].axis != row:
        c.refuse(node, _along(c, node))
    carried = c.at[x]._replace(axis=0)
    bias = node.input(2)
    if bias is not None and bias in c.at:
        if c.at[bias] != carried or rank(bias) != 2:
            c.refuse(node, f"{c.name!r} meets itself on two axes of its operands")
    elif bias is not None:
        c.match(node, 2, carried._replace(axis=rank(bias) - 2), broadcasts=True)
    return [carried]


def _einsum(c: Carrier, node: Node) -> Results:
    text = str(node.attr("equation")).replace(" ", "")
    terms, arrow, result = text.partition("->")
    operands = terms.split(",")
    if not arrow or "." in text:
        c.refuse(node, "its result is not named by letters")
    found = {(operands[i][c.at[v].axis], c.at[v].outer, c.at[v].inner) for i, v in enumerate(node.inputs) if v in c.at}
    if len(found) != 1:
        c.refuse(node, f"{c.name!r} meets itself on two axes of its operands")
    letter, outer, inner = found.pop()
    if letter not in result:
        c.refuse(node, _along(c, node))
    for i, v in enumerate(node.inputs):
        if v not in c.at and letter in operands[i]:
            c.match(node, i, Carried(operands[i].index(letter), outer, inner), broadcasts=False)
    return [Carried(result.index(letter), outer, inner)]


# -- elements that are chosen -----------------------------------------------------------------------------------------


def _takes_all(c: Carrier, indices: Value | None, dims: Sequence[Size], listed: int = 1) -> bool:
    """Are all places of these axes taken once, in order? Then it is a Reshape; `listed`: axes that an index names."""
    found = c.numbers(indices)
    sizes = [d for d in dims if isinstance(d, int)]
    if found is None or len(sizes) < len(dims) or not listed:
        return False
    columns = found.reshape(-1, listed).T.tolist()
    if not all(isinstance(at, int) for column in columns for at in column):
        return False
    flat = [0] * (found.size // listed)
    for d, column in zip(sizes, columns):
        flat = [i * d + at for i, at in zip(flat, column)]
    return flat == [*range(math.prod(sizes))]


def _gather(c: Carrier, node: Node) -> Results:
    data, indices = operand(node, 0), operand(node, 1)
    if c.has_symbol(data) or c.has_symbol(indices):
        c.refuse(node, f"it computes with the size of {c.name!r}")
    axis = axis_in(node, "axis", rank(data))
    if data in c.at and indices in c.at:
        c.refuse(node, f"{c.name!r} meets itself on two axes of its result")
    if indices in c.at:
        return [c.at[indices]._replace(axis=axis + c.at[indices].axis)]
    carried = c.at[data]
    if carried.axis == axis:
        if not _takes_all(c, indices, c.dims(node, data)[axis : axis + 1]):
            c.refuse(node, f"it takes some of the places along {c.name!r}")
        return reshaped(c, node, data)
    return [carried if carried.axis < axis else carried._replace(axis=carried.axis - 1 + rank(indices))]


def _gather_nd(c: Carrier, node: Node) -> Results:
    data, indices = operand(node, 0), operand(node, 1)
    shared, behind = int(node.attr("batch_dims", 0)), rank(indices) - 1
    listed = c.dims(node, indices)[-1]
    carried = _one(c, node, {v: 0 for v in (data, indices) if v in c.at})
    if indices not in c.at and carried.axis >= shared:
        if not isinstance(listed, int):
            c.refuse(node, "how many axes it takes is not known")
        if carried.axis < shared + listed:
            if not shared and _takes_all(c, indices, c.dims(node, data)[:listed], listed):
                return reshaped(c, node, data)
            c.refuse(node, f"it takes some of the places along {c.name!r}")
        return [carried._replace(axis=behind + carried.axis - shared - listed)]
    if carried.axis >= (behind if data not in c.at else shared):
        c.refuse(node, f"it takes some of the places along {c.name!r}")
    if carried.axis < shared:
        for i, v in enumerate((data, indices)):
            if v not in c.at:
                c.match(node, i, carried, broadcasts=False)
    return [carried]


def _scatter_nd(c: Carrier, node: Node) -> Results:
    data, indices, updates = (operand(node, i) for i in range(3))
    listed, behind = c.dims(node, indices)[-1], rank(indices) - 1
    if indices in c.at or not isinstance(listed, int) or (data in c.at and c.at[data].axis < listed):
        c.refuse(node, f"it writes some of the places along {c.name!r}")
    offset = listed - behind  # from the axes of updates to those of the data
    carried = _one(c, node, {v: o for v, o in ((data, 0), (updates, offset)) if v in c.at})
    if carried.axis < listed:
        c.refuse(node, f"it writes some of the places along {c.name!r}")
    for i, v, at in ((0, data, carried.axis), (2, updates, carried.axis - offset)):
        if v not in c.at:
            c.match(node, i, carried._replace(axis=at), broadcasts=False)
    return [carried]


def _places_of(c: Carrier, node: Node) -> Results:
    x = operand(node, 0)
    carried, axis = c.at[x], axis_in(node, "axis", rank(x))
    if carried.axis == axis:
        c.refuse(node, _along(c, node))
    gone = not node.keeps_dims and carried.axis > axis
    return [carried._replace(axis=carried.axis - gone)]


def _one_hot(c: Carrier, node: Node) -> Results:
    indices = operand(node, 0)
    if indices not in c.at:
        c.refuse(node, f"it computes with the size of {c.name!r}")
    carried, axis = c.at[indices], axis_in(node, "axis", rank(indices) + 1, -1)
    return [carried._replace(axis=carried.axis + (carried.axis >= axis))]


def _recurrent(c: Carrier, node: Node) -> Results:
    """X, sequence_lens and the states have an axis of batch each."""
    first = bool(node.attr("layout", 0))
    axes = {0: 0 if first else 1, 4: 0, 5: 0 if first else 1, 6: 0 if first else 1}
    read = {i: c.at[v] for i, v in enumerate(node.inputs) if v in c.at}
    if any(axes.get(i) != carried.axis for i, carried in read.items()):
        c.refuse(node, _along(c, node))
    (carried, *_) = read.values()
    for i, axis in axes.items():
        v = node.input(i)
        if v is not None and v not in c.at:
            c.match(node, i, carried._replace(axis=axis), broadcasts=False)
    every, last = (0, 0) if first else (2, 1)
    return [carried._replace(axis=axis) for axis in (every, last, last)][: len(node.outputs)]


def _mean_variance(c: Carrier, node: Node) -> Results:
    x = operand(node, 0)
    if c.at[x].axis in {a % rank(x) for a in node.attr("axes", (0, 2, 3))}:
        c.refuse(node, _along(c, node))
    return [c.at[x]]


_SIZED: Final = frozenset(("ConstantOfShape", "Expand", "Tile"))  # they make of a size what follows it
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
