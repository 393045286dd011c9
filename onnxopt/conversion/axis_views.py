"""The axis that follows a dim behind operators that view or repeat elements. Sizes in their operands are changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxopt.analysis.shapes.sizes import LARGEST, cuts_of, product
from onnxopt.analysis.shapes.symbolic import Size, divide
from onnxopt.conversion.axis_tracking import AxisTracker, Results, TrackedAxis, axis_in, places, rank
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.rewriting.rule import listed_axes

# -- the same elements in the same order ------------------------------------------------------------------------------


def flatten(c: AxisTracker, node: Node) -> Results:
    x = node.operand(0)
    dims, tracked = c.dims(node, x), c.at[x]
    axis = axis_in(node, "axis", len(dims), 1)
    first, last = (0, axis) if tracked.axis < axis else (axis, len(dims))
    outer = product(dims[first : tracked.axis]) * tracked.outer
    inner = product(dims[tracked.axis + 1 : last]) * tracked.inner
    return [TrackedAxis(int(tracked.axis >= axis), outer, inner)]


def unsqueeze(c: AxisTracker, node: Node) -> Results:
    x, axes, count = node.operand(0), listed_axes(node), len(c.dims(node, node.output))
    if axes is None or x not in c.at:
        c.refuse(node, "its axes are computed")
    added = {a % count for a in axes}
    left = [i for i in range(count) if i not in added]
    return [c.at[x]._replace(axis=left[c.at[x].axis])]


def squeeze(c: AxisTracker, node: Node) -> Results:
    x, given = node.operand(0), listed_axes(node)
    c.require(node, x in c.at and (given is not None or node.input(1) is None), "its axes are computed")
    dims, tracked = c.dims(node, x), c.at[x]
    gone = {a % len(dims) for a in given or ()}
    if tracked.axis in gone or not given:  # the size was one
        return reshaped(c, node, x)
    return [tracked._replace(axis=tracked.axis - sum(a < tracked.axis for a in gone))]


def reshaped(c: AxisTracker, node: Node, x: Value) -> Results:
    """Replace a node that drops an axis of size one, or takes all places of the axis, by a Reshape."""
    after = c.dims(node, node.output)
    found = places(c, c.dims(node, x), after, c.at[x])
    if not found:
        c.refuse(node, f"it drops the axis of {c.name!r}")
    place = found[0]
    target = [-1 if i == place.axis else d for i, d in enumerate(after)]
    if not all(isinstance(d, int) for d in target):
        c.refuse(node, f"it drops the axis of {c.name!r}")
    shape = node.scope.constant(np.array(target, np.int64), "shape", node)
    made = node.scope.make("Reshape", [x, shape], before=node)
    output = node.output
    assert made.producer is not None
    node.scope.take_over(output, made.producer)
    node.scope.remove(node)
    c.follow(output, place)
    return []


def reshape(c: AxisTracker, node: Node) -> Results:
    """Return the axis behind a Reshape, whose target is changed where it holds the size."""
    x = node.operand(0)
    c.require(node, x in c.at, f"its target has the size of {c.name!r}, and its operand does not follow")
    c.require(node, node.input(1) is not None, "its target is an attribute; --target-opset 13 makes that an operand")
    target, after = c.sizes(node, 1).tolist(), c.dims(node, node.output)
    copies = not node.attr("allowzero", 0)
    said = [_size_in_target(size, i, c.now.dims[x] if copies else ()) for i, size in enumerate(target)]
    found = places(c, c.dims(node, x), after, c.at[x])
    c.require(node, bool(found), f"the places along {c.name!r} are no places of one axis of its result")
    place = next((p for p in found if said[p.axis] == c.extent(p)), found[0])
    copied = [i for i, size in enumerate(said) if i != place.axis and c.is_symbolic(size)]
    changed = _restored(c, node, target, copied)
    if target[place.axis] != -1 and said[place.axis] != c.extent(place):
        kept = copies and c.at[x] == place
        left = target.index(-1) if -1 in target else None
        changed |= {place.axis: 0} if kept else _inferred(place, left, None if left is None else after[left])
    if changed:
        c.rewrite(node, 1, c.sizes(node, 1), changed)
    return [place]


def _restored(c: AxisTracker, node: Node, target: list[int], copied: Sequence[int]) -> dict[int, int | TrackedAxis]:
    """Return {axis: size so far} for each 0 that copies the axis that the dim was on; refuse all further sizes."""
    changed: dict[int, int | TrackedAxis] = {}
    for i in copied:
        was = c.dims(node, node.output)[i]
        if target[i] != 0 or not isinstance(was, int):
            c.refuse(node, f"two of its sizes follow {c.name!r}")
        changed[i] = was
    return changed


def _size_in_target(size: Size | None, axis: int, copied: Sequence[Size]) -> Size | None:
    """Return the size in an element of a target of Reshape, where 0 is a size of `copied`; None for -1."""
    if size == 0 and axis < len(copied):
        return copied[axis]
    return None if size == -1 else size


def _inferred(place: TrackedAxis, left: int | None, size: Size | None) -> dict[int, int | TrackedAxis]:
    """Return changes of a target of Reshape: -1 along `place`. `left`: the axis with -1 so far, and its `size`."""
    if left is None:
        return {place.axis: -1}
    return {left: size, place.axis: -1} if isinstance(size, int) else {place.axis: place}


# -- sizes in an operand ----------------------------------------------------------------------------------------------


def symbolic_size(c: AxisTracker, node: Node, index: int) -> TrackedAxis | None:
    """Return the element with the symbol, among the sizes in an operand: its axis, and its factor as `inner`."""
    found = [(i, e) for i, e in enumerate(c.sizes(node, index).tolist()) if c.is_symbolic(e)]
    if not found:
        return None
    factor = divide(found[0][1], c.symbol)
    if len(found) > 1 or not isinstance(factor, int):
        c.refuse(node, f"its sizes are no multiple of {c.name!r}")
    return TrackedAxis(found[0][0], 1, factor)


def expand(c: AxisTracker, node: Node) -> Results:
    """Return the axis behind an Expand that does not repeat the axis, or makes it."""
    x, said, target = node.operand(0), symbolic_size(c, node, 1), c.sizes(node, 1)
    count = len(c.dims(node, node.output))
    shift = count - len(target)  # from axes of the target to axes of the result
    if x not in c.at:
        if said is None:
            c.refuse(node, f"its sizes are numbers that follow {c.name!r}")
        tracked = said._replace(axis=said.axis + shift)
        c.match(node, 0, tracked._replace(axis=tracked.axis - count + rank(x)), broadcasts=True)
        return [tracked]
    tracked = c.at[x]._replace(axis=c.at[x].axis + count - rank(x))
    place = tracked.axis - shift
    c.require(node, said is None or said.axis == place, f"two of its sizes follow {c.name!r}")
    if said is None and place >= 0 and target[place] != 1:
        kept = target[place] == c.dims(node, x)[c.at[x].axis]
        c.require(node, kept, f"it repeats what follows {c.name!r}")
        c.rewrite(node, 1, target, {place: 1})
    return [tracked]


def filled(c: AxisTracker, node: Node) -> Results:
    return [symbolic_size(c, node, 0)]


def tile(c: AxisTracker, node: Node) -> Results:
    x, said = node.operand(0), symbolic_size(c, node, 1)
    if x in c.at:
        kept = said is None and c.sizes(node, 1)[c.at[x].axis] == 1
        c.require(node, kept, f"it repeats what follows {c.name!r}")
        return [c.at[x]]
    if said is None:
        c.refuse(node, f"its repeats are numbers that follow {c.name!r}")
    return [said._replace(inner=said.inner * c.dims(node, x)[said.axis])]


def slice(c: AxisTracker, node: Node) -> Results:
    """Return the axis behind a Slice that takes the whole axis, whose end becomes open."""
    x = node.operand(0)
    c.require(node, x in c.at, f"it computes with the size of {c.name!r}")
    c.require(node, node.input(1) is not None, "its bounds are attributes; --target-opset 13 makes these operands")
    tracked, dims, listed = c.at[x], c.dims(node, x), listed_axes(node, 3)
    if listed is not None and tracked.axis not in {a % len(dims) for a in listed}:
        return [tracked]
    found = cuts_of(c.now, node, len(dims))
    if found is None:
        c.refuse(node, "its bounds are computed of what is not known")
    for i, (axis, start, end, step) in enumerate(found):
        if axis != tracked.axis:
            symbolic = c.is_symbolic(start) or c.is_symbolic(end)
            c.require(node, not symbolic, f"it takes as much of another axis as {c.name!r} says")
            continue
        # The size of the axis, or the largest number.
        open_ended = end == c.extent(tracked) or (isinstance(end, int) and end >= LARGEST[0])
        whole = start == 0 and step == 1 and (open_ended or end == dims[axis])
        c.require(node, whole, f"it takes some of the places along {c.name!r}")
        if not open_ended:
            c.rewrite(node, 2, c.sizes(node, 2), {i: LARGEST[1]})
    return [tracked]
