"""Where the axis that follows a dim is behind each operator that views or repeats elements: shapes and sizes that are
written hold the old size, and are changed."""

from __future__ import annotations

import numpy as np

from onnxopt.analysis.shapes.sizes import LARGEST, cuts_of, product
from onnxopt.analysis.shapes.symbolic import Size, divide
from onnxopt.conversion.carrier import Carried, Carrier, Results, axis_in, operand, places, rank, scope_of
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.rewriting.rule import listed_axes

# -- the same elements in the same order ------------------------------------------------------------------------------


def flatten(c: Carrier, node: Node) -> Results:
    x = operand(node, 0)
    dims, carried = c.dims(node, x), c.at[x]
    axis = axis_in(node, "axis", len(dims), 1)
    first, last = (0, axis) if carried.axis < axis else (axis, len(dims))
    outer = product(dims[first : carried.axis]) * carried.outer
    inner = product(dims[carried.axis + 1 : last]) * carried.inner
    return [Carried(int(carried.axis >= axis), outer, inner)]


def unsqueeze(c: Carrier, node: Node) -> Results:
    axes, count = listed_axes(node), len(c.dims(node, node.output))
    if axes is None or operand(node, 0) not in c.at:
        c.refuse(node, "its axes are computed")
    left = [i for i in range(count) if i not in {a % count for a in axes}]
    carried = c.at[operand(node, 0)]
    return [carried._replace(axis=left[carried.axis])]


def squeeze(c: Carrier, node: Node) -> Results:
    x, given = operand(node, 0), listed_axes(node)
    if x not in c.at or (given is None and node.input(1) is not None):
        c.refuse(node, "its axes are computed")
    dims, carried = c.dims(node, x), c.at[x]
    gone = {a % len(dims) for a in given} if given else {i for i, d in enumerate(dims) if d == 1}
    left = [i for i in range(len(dims)) if i not in gone]
    if carried.axis in gone or not given:  # of one element, no more
        return reshaped(c, node, x)
    return [carried._replace(axis=left.index(carried.axis))]


def reshaped(c: Carrier, node: Node, x: Value) -> Results:
    """What drops the axis, that was one place, or takes all its places, as a Reshape into what it is merged with."""
    after = c.dims(node, node.output)
    found = places(c, c.dims(node, x), after, c.at[x])
    if not found:
        c.refuse(node, f"it drops the axis of {c.name!r}")
    place = found[0]
    target = [-1 if i == place.axis else d for i, d in enumerate(after)]
    if not all(isinstance(d, int) for d in target):
        c.refuse(node, f"it drops the axis of {c.name!r}")
    shape = scope_of(node).constant(np.array(target, np.int64), "shape", node)
    made = scope_of(node).make("Reshape", [x, shape], before=node)
    output = node.output
    assert made.producer is not None
    scope_of(node).take_over(output, made.producer)
    scope_of(node).remove(node)
    c.follow(output, place)
    return []


def reshape(c: Carrier, node: Node) -> Results:
    x = operand(node, 0)
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


def symbolic_size(c: Carrier, node: Node, index: int) -> tuple[int, int] | None:
    """Which element of the sizes that an operand lists is the symbol times a number, and that number."""
    found = [(i, e) for i, e in enumerate(c.sizes(node, index).tolist()) if c.is_symbolic(e)]
    if not found:
        return None
    factor = divide(found[0][1], c.symbol)
    if len(found) > 1 or not isinstance(factor, int):
        c.refuse(node, f"its sizes are no multiple of {c.name!r}")
    return found[0][0], factor


def expand(c: Carrier, node: Node) -> Results:
    x = operand(node, 0)
    said, after = symbolic_size(c, node, 1), c.dims(node, node.output)
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


def filled(c: Carrier, node: Node) -> Results:
    said = symbolic_size(c, node, 0)
    return [None if said is None else Carried(said[0], 1, said[1])]


def tile(c: Carrier, node: Node) -> Results:
    x, said = operand(node, 0), symbolic_size(c, node, 1)
    repeats = c.sizes(node, 1)
    if x not in c.at:
        if said is None:
            c.refuse(node, f"its repeats are numbers that follow {c.name!r}")
        return [Carried(said[0], 1, said[1] * c.dims(node, x)[said[0]])]
    if said is not None or repeats[c.at[x].axis] != 1:
        c.refuse(node, f"it repeats what follows {c.name!r}")
    return [c.at[x]]


def slice(c: Carrier, node: Node) -> Results:
    x = operand(node, 0)
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
