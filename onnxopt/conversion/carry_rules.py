"""Where the axis that follows a dim is behind each operator: a rule gives its place in each result, and changes what
holds the old size. Where an operator ties the places of the axis to one another, it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from onnxopt.analysis.shapes.sizes import product
from onnxopt.analysis.shapes.slicing import LARGEST, cuts_of
from onnxopt.analysis.shapes.symbolic import Size, divide
from onnxopt.conversion.carrier import Carried, Carrier, Results, axis_in, places, rank
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import BROADCASTING, GLOBAL_POOLS, POOLS, RECURRENT, REDUCTIONS
from onnxopt.rewriting.axes import axes_of
from onnxopt.rewriting.forms import listed_axes

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


def _operand(node: Node, index: int) -> Value:
    """An operand that the standard requires."""
    value = node.inputs[index]
    assert value is not None
    return value


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
    first = _operand(node, 0)
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


# -- the same elements in the same order ------------------------------------------------------------------------------


def _flatten(c: Carrier, node: Node) -> Results:
    x = _operand(node, 0)
    dims, carried = c.dims(node, x), c.at[x]
    axis = axis_in(node, "axis", len(dims), 1)
    first, last = (0, axis) if carried.axis < axis else (axis, len(dims))
    outer = product(dims[first : carried.axis]) * carried.outer
    inner = product(dims[carried.axis + 1 : last]) * carried.inner
    return [Carried(int(carried.axis >= axis), outer, inner)]


def _unsqueeze(c: Carrier, node: Node) -> Results:
    axes, count = listed_axes(node), len(c.dims(node, node.output))
    if axes is None or _operand(node, 0) not in c.at:
        c.refuse(node, "its axes are computed")
    left = [i for i in range(count) if i not in {a % count for a in axes}]
    carried = c.at[_operand(node, 0)]
    return [carried._replace(axis=left[carried.axis])]


def _squeeze(c: Carrier, node: Node) -> Results:
    x, given = _operand(node, 0), listed_axes(node)
    if x not in c.at or (given is None and node.input(1) is not None):
        c.refuse(node, "its axes are computed")
    dims, carried = c.dims(node, x), c.at[x]
    gone = {a % len(dims) for a in given} if given else {i for i, d in enumerate(dims) if d == 1}
    left = [i for i in range(len(dims)) if i not in gone]
    if carried.axis in gone or not given:  # of one element, no more
        return _reshaped(c, node, x)
    return [carried._replace(axis=left.index(carried.axis))]


def _reshaped(c: Carrier, node: Node, x: Value) -> Results:
    """What drops the axis, that was one place, or takes all its places, as a Reshape into what it is merged with."""
    after = c.dims(node, node.output)
    found = places(c, c.dims(node, x), after, c.at[x])
    if not found:
        c.refuse(node, f"it drops the axis of {c.name!r}")
    place = found[0]
    target = [-1 if i == place.axis else d for i, d in enumerate(after)]
    if not all(isinstance(d, int) for d in target):
        c.refuse(node, f"it drops the axis of {c.name!r}")
    shape = c.graph.constant(np.array(target, np.int64), "shape", node)
    made = c.graph.make("Reshape", [x, shape], before=node)
    output = node.output
    assert made.producer is not None
    c.graph.take_over(output, made.producer)
    c.graph.remove(node)
    c.follow(output, place)
    return []


def _reshape(c: Carrier, node: Node) -> Results:
    x = _operand(node, 0)
    if x not in c.at:
        c.refuse(node, f"its target has the size of {c.name!r}, and its operand does not follow")
    if node.input(1) is None:
        c.refuse(node, "its target is an attribute; --target-opset 13 makes that an operand")
    target = c.sizes(node, 1)
    before, after, now = c.dims(node, x), c.dims(node, node.output), c.now.dims[x]
    copies = not node.attr("allowzero", 0)

    def extent(i: int) -> Size | None:
        """What element `i` of the target says now; None: what is left."""
        size = target[i]
        return now[i] if size == 0 and copies and i < len(now) else None if size == -1 else size

    found = places(c, before, after, c.at[x])
    if not found:
        c.refuse(node, f"the places along {c.name!r} are no places of one axis of its result")
    said = [p for p in found if extent(p.axis) == c.extent(p)]
    place = said[0] if said else found[0]
    j = place.axis
    changed: dict[int, int | Carried] = {}
    for i, size in enumerate(target):
        if i != j and c.is_symbolic(extent(i)):
            was = after[i]
            if size != 0 or not isinstance(was, int):
                c.refuse(node, f"two of its sizes follow {c.name!r}")
            changed[i] = was  # a copy of what is elsewhere now
    left = next((i for i, size in enumerate(target) if size == -1), None)
    if not said and left != j:
        rest = None if left is None else after[left]
        if c.at[x] == place and copies:
            changed[j] = 0
        elif left is None:
            changed[j] = -1
        elif isinstance(rest, int):
            changed |= {left: rest, j: -1}
        else:
            changed[j] = place
    if changed:
        c.rewrite(node, 1, target, changed)
    return [place]


# -- sizes that are said ----------------------------------------------------------------------------------------------


def _said(c: Carrier, node: Node, index: int) -> tuple[int, int] | None:
    """Which element of the sizes that an operand lists is the symbol times a number, and that number."""
    found = [(i, e) for i, e in enumerate(c.sizes(node, index).tolist()) if c.is_symbolic(e)]
    if not found:
        return None
    factor = divide(found[0][1], c.symbol)
    if len(found) > 1 or not isinstance(factor, int):
        c.refuse(node, f"its sizes are no multiple of {c.name!r}")
    return found[0][0], factor


def _expand(c: Carrier, node: Node) -> Results:
    x = _operand(node, 0)
    said, after = _said(c, node, 1), c.dims(node, node.output)
    target = c.sizes(node, 1)
    if x not in c.at:
        if said is None:
            c.refuse(node, f"its sizes are numbers that follow {c.name!r}")
        axis = len(after) - len(target) + said[0]
        place = axis - len(after) + rank(x)
        if place >= 0 and c.dims(node, x)[place] != 1:
            c.match(node, 0, Carried(place, 1, said[1]), broadcasts=True)
        return [Carried(axis, 1, said[1])]
    carried = c.at[x]._replace(axis=c.at[x].axis + len(after) - rank(x))
    place = carried.axis - len(after) + len(target)
    if said is not None and said[0] != place:
        c.refuse(node, f"two of its sizes follow {c.name!r}")
    if said is None and place >= 0 and target[place] != 1:
        if target[place] != c.dims(node, x)[c.at[x].axis]:
            c.refuse(node, f"it repeats what follows {c.name!r}")
        c.rewrite(node, 1, target, {place: 1})
    return [carried]


def _filled(c: Carrier, node: Node) -> Results:
    said = _said(c, node, 0)
    return [None if said is None else Carried(said[0], 1, said[1])]


def _tile(c: Carrier, node: Node) -> Results:
    x, said = _operand(node, 0), _said(c, node, 1)
    repeats = c.sizes(node, 1)
    if x not in c.at:
        if said is None:
            c.refuse(node, f"its repeats are numbers that follow {c.name!r}")
        return [Carried(said[0], 1, said[1] * c.dims(node, x)[said[0]])]
    if said is not None or repeats[c.at[x].axis] != 1:
        c.refuse(node, f"it repeats what follows {c.name!r}")
    return [c.at[x]]


def _slice(c: Carrier, node: Node) -> Results:
    x = _operand(node, 0)
    if x not in c.at:
        c.refuse(node, f"it computes with the size of {c.name!r}")
    carried, dims = c.at[x], c.dims(node, x)
    if node.input(1) is None:
        c.refuse(node, "its bounds are attributes; --target-opset 13 makes these operands")
    listed = listed_axes(node, 3)
    if listed is not None and carried.axis not in {a % len(dims) for a in listed}:
        return [carried]
    found = cuts_of(c.now, node, len(dims))
    if found is None:
        c.refuse(node, "its bounds are computed of what is not known")
    for i, (axis, start, end, step) in enumerate(found):
        if axis != carried.axis:
            if c.is_symbolic(start) or c.is_symbolic(end):
                c.refuse(node, f"it takes as much of another axis as {c.name!r} says")
        elif start != 0 or step != 1:
            c.refuse(node, f"it takes some of the places along {c.name!r}")
        elif end != c.extent(carried) and not (isinstance(end, int) and end >= LARGEST[0]):
            if end != dims[axis]:
                c.refuse(node, f"it takes some of the places along {c.name!r}")
            c.rewrite(node, 2, c.sizes(node, 2), {i: LARGEST[1]})
    return [carried]


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
        x, y, count = _operand(node, a), _operand(node, b), rank(node.output)
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
    x, y = _operand(node, 0), _operand(node, 1)
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
    data, indices = _operand(node, 0), _operand(node, 1)
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
        return _reshaped(c, node, data)
    return [carried if carried.axis < axis else carried._replace(axis=carried.axis - 1 + rank(indices))]


def _gather_nd(c: Carrier, node: Node) -> Results:
    data, indices = _operand(node, 0), _operand(node, 1)
    shared, behind = int(node.attr("batch_dims", 0)), rank(indices) - 1
    listed = c.dims(node, indices)[-1]
    carried = _one(c, node, {v: 0 for v in (data, indices) if v in c.at})
    if indices not in c.at and carried.axis >= shared:
        if not isinstance(listed, int):
            c.refuse(node, "how many axes it takes is not known")
        if carried.axis < shared + listed:
            if not shared and _takes_all(c, indices, c.dims(node, data)[:listed], listed):
                return _reshaped(c, node, data)
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
    data, indices, updates = (_operand(node, i) for i in range(3))
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
    x = _operand(node, 0)
    carried, axis = c.at[x], axis_in(node, "axis", rank(x))
    if carried.axis == axis:
        c.refuse(node, _along(c, node))
    gone = not node.keeps_dims and carried.axis > axis
    return [carried._replace(axis=carried.axis - gone)]


def _one_hot(c: Carrier, node: Node) -> Results:
    indices = _operand(node, 0)
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
    x = _operand(node, 0)
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
    "ConstantOfShape": _filled,
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _product(0, 1),
    "MatMulInteger": _product(0, 1),
    "QLinearMatMul": _product(0, 3),
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Unsqueeze": _unsqueeze,
}
