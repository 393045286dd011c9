"""Stacks along a separate axis, taken apart by a Split of this and the next axis, merged."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import Array, make_node
from onnxopt.rewriting.axis_runs import constant_target
from onnxopt.rewriting.forms import listed_axes
from onnxopt.rewriting.parts import insert_new, insert_split

_MAX_STACKED: Final = 100  # parts


class _Stack(NamedTuple):
    """A Reshape to `dims`, perhaps transposed, and the reader of each index of an axis."""

    reshape: Node
    transpose: Node | None
    dims: Shape
    perm: list[int]
    axis: int  # behind the Transpose
    taken: dict[int, Node]


@register
class StacksToSplit(GraphPass):
    """Transpose(Reshape(x, [.., n, m, ..]))[i] = Split(Transpose(Reshape(x, [.., n m, ..])))[i], along n.

    Applies when: Reshape and Transpose have no other readers, each reader takes a single index of the axis, by Gather,
    by Split and Squeeze, or by a Reshape that copies no dim, and n and m are known. Queries, keys and values in a
    single product are taken apart like this.
    """

    # After: Slices have become a Split, and a Gather of a single element a Squeeze.
    info = PassInfo("stacks-to-split", opt_level=1, after=("slices-to-split", "index-chains"), ops=("Reshape",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 5:
            return  # Reshape has its target as attribute
        for reshape in list(graph.by_op.get("Reshape", ())):
            stack = _stack(reshape)
            if stack is None:
                continue
            source, p = reshape.inputs[0], stack.perm[stack.axis]
            n, m = [*stack.dims, None][p : p + 2]
            given = types.shape(source) if source is not None else None
            if not isinstance(n, int) or not isinstance(m, int) or given is None:
                ctx.decline("taken_apart", "no axis of known length follows in the Reshape", repr(reshape))
                continue
            target = constant_target(given, (*stack.dims[:p], n * m, *stack.dims[p + 2 :]))
            if target is None:
                ctx.decline("taken_apart", "more than one unknown dim, or none", repr(reshape))
            elif ctx.spend("taken_apart", at=reshape):
                _take_apart(graph, stack, [m] * n, np.array(target, np.int64))


def _stack(reshape: Node) -> _Stack | None:
    value, dims = reshape.output, types.shape(reshape.output)
    if dims is None or reshape.has_references:
        return None
    transpose, perm = value.only_user, list(range(len(dims)))
    if transpose is not None and transpose.op == "Transpose" and transpose.graph is reshape.graph:
        perm = list(order_of(transpose, len(dims)))
        value = transpose.output
        if transpose.has_references or sorted(perm) != list(range(len(dims))):
            return None
    else:
        transpose = None
    found = _parts(value) or _picks(value, len(dims))
    if found is None or len(found[1]) < 2:
        return None
    return _Stack(reshape, transpose, dims, perm, *found)


def _parts(value: Value) -> tuple[int, dict[int, Node]] | None:
    """Return (axis, {index: reader}) of a Split into parts of one element, each with a Squeeze; else None."""
    split, rank = value.only_user, types.rank(value)
    if split is None or split.op != "Split" or split.graph is not value.graph or split.has_references or not rank:
        return None
    axis = int(split.attr("axis") or 0) % rank
    taken: dict[int, Node] = {}
    for i, part in enumerate(split.outputs):
        shape = types.shape(part) if part is not None else None
        if part is None or shape is None or shape[axis] != 1 or part.is_output:
            return None
        if part.is_used:
            reader = part.only_user
            if reader is None or reader.graph is not split.graph:
                return None
            if not (_drops(reader, axis, rank) or _reshapes(reader, part)):
                return None
            taken[i] = reader
    return (axis, taken) if any(n.op == "Squeeze" for n in taken.values()) else None


def _reshapes(user: Node, part: Value) -> bool:
    """Whether a Reshape of the part copies no dim, so that its axes do not matter."""
    target = user.inputs[1] if user.op == "Reshape" and user.inputs[0] is part and not user.has_references else None
    return target is not None and target.constant and bool((target.array != 0).all())


def _drops(user: Node, axis: int, rank: int) -> bool:
    axes = listed_axes(user) if user.op == "Squeeze" and not user.has_references else None
    return [a % rank for a in axes or ()] == [axis]


def _picks(value: Value, rank: int) -> tuple[int, dict[int, Node]] | None:
    """Return (axis, {index: Gather}) of Gathers of single indices along an axis; else None."""
    shape = types.shape(value)
    axes = {int(u.attr("axis", 0)) % rank for u in value.users if u.op == "Gather" and rank}
    if shape is None or len(axes) != 1 or value.is_output or len(value.users) > _MAX_STACKED:
        return None
    axis = axes.pop()
    size = shape[axis]
    taken: dict[int, Node] = {}
    for user in value.users:
        index = user.inputs[1] if user.op == "Gather" and user.inputs[0] is value else None
        if index is None or not index.constant or index.array.ndim or user.graph is not value.graph:
            return None
        place = int(index.array)
        if user.has_references or not isinstance(size, int) or not -size <= place < size <= _MAX_STACKED:
            return None
        if taken.setdefault(place % size, user) is not user:
            return None  # an equal Gather kept apart as output
    return axis, taken


def _take_apart(graph: Graph, stack: _Stack, sizes: list[int], target: Array) -> None:
    p, place = stack.perm[stack.axis], stack.transpose or stack.reshape
    given = graph.constant(target, f"{stack.reshape.output.name}_target", place)
    like = next(iter(stack.taken.values())).output
    proto = make_node("Reshape", "", stack.reshape.name, {})
    x = insert_new(graph, Node(proto, [stack.reshape.inputs[0], given], []), like, place)
    order = [i - (i > p) for i in stack.perm if i != p]
    if stack.transpose is not None and order != sorted(order):
        proto = make_node("Transpose", "", stack.transpose.name, {"perm": order})
        x = insert_new(graph, Node(proto, [x], []), like, place)
    readers = [*stack.taken.values()]
    old = [n.inputs[0].producer for n in readers if n.inputs[0] is not None and n.inputs[0].producer is not None]
    parts = [_unread(graph, like) for _ in sizes]
    for i, reader in stack.taken.items():
        if reader.op == "Reshape":
            parts[i].dtype = types.dtype(like)
            reader.set_input(0, parts[i])
        else:
            parts[i] = reader.output
    insert_split(graph, x, parts, order.index(p), sizes, place)
    gone = [n for n in readers if n.op != "Reshape"]
    for node in dict.fromkeys([*gone, *old, stack.transpose, stack.reshape]):
        if node is not None:
            graph.remove(node)


def _unread(graph: Graph, like: Value) -> Value:
    return Value(graph.model.names.fresh(like.name, "_other"), graph)
