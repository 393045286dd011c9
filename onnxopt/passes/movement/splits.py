"""Several Slices or picks of a tensor become one Split."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.constants import REFUSED, is_refused
from onnxopt.analysis.linear import lengths_of
from onnxopt.analysis.shapes.sizes import is_behind, order_of
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node, array_of, own_producer, present, sole_reader
from onnxopt.graph.value import Shape
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import Array, make_node
from onnxopt.rewriting.index_maps import constant_target
from onnxopt.rewriting.parts import insert_new, insert_split, of_lists
from onnxopt.rewriting.rule import constant_cuts

Range = tuple[int, int]
_EXTRACTOR: Final = "ai.onnx.ml::ArrayFeatureExtractor"
_CUTS: Final = ("Slice", "Gather", _EXTRACTOR)
_MAX_STACKED: Final = 100  # parts


@register
class SlicesToSplit(GraphPass):
    """x[:a], x[a:b], x[b:] = Split(x); a Split with a single used part is a Slice; Split of Split = Split; adjacent
    parts in one Concat are one part.

    Applies when: the axis size is known, and slices with constant bounds and step 1 (or lists of consecutive indices)
    cover the axis without gaps and overlaps. Rotary embeddings halve each head like this; scikit-learn takes all
    columns.
    """

    # After: known slices of shapes are removed, and slices of slices read the original tensor.
    info = PassInfo(
        "slices-to-split", opt_level=1, after=("shape-sources", "merge-chains", "gather-axes"), ops=(*_CUTS, "Split")
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        _join_cuts(graph, ctx)
        for node in list(graph.by_op.get("Split", ())):
            again = _split_again(node) if node.graph is graph else None
            if again is not None and ctx.spend("split_of_split", at=node):
                _split_at_once(graph, node, *again)
        for node in list(graph.by_op.get("Concat", ())):
            again = _joined_again(node)
            if again is not None and ctx.spend("concat_of_parts", at=node):
                _split_at_once(graph, node, *again)
        for node in list(graph.by_op.get("Split", ())):
            _slice_only_part(graph, node, ctx)


def _slice_only_part(graph: Graph, node: Node, ctx: PassContext) -> None:
    """Replace a Split with a single used part by a Slice."""
    found = _only_part(node)
    if found is None:
        return
    if is_refused(found[0], found[0]):  # with bounds known from the Slice instead of the Split
        ctx.decline("single", REFUSED, repr(node))
    elif ctx.spend("single", at=node):
        _slice(graph, node, *found)


def _cuts_by_axis(graph: Graph) -> dict[tuple[Value, int], dict[Range, list[Node]]]:
    """Return the Slices and picks of consecutive elements, by source and axis, then by range."""
    groups: dict[tuple[Value, int], dict[Range, list[Node]]] = {}
    for node in [n for op in _CUTS for n in graph.by_op.get(op, ())]:
        found = _cut(node) if node.op == "Slice" else _picked(node)
        if found is not None:
            source, axis, bounds = found
            groups.setdefault((source, axis), {}).setdefault(bounds, []).append(node)
    return groups


def _join_cuts(graph: Graph, ctx: PassContext) -> None:
    """Replace Slices and picks that partition a value along an axis by a Split."""
    groups = _cuts_by_axis(graph)
    position = {node: i for i, node in enumerate(graph)} if groups else {}
    for (source, axis), parts in groups.items():
        if not _covers(sorted(parts), types.length_of(source, axis)):
            continue
        first = min((n for group in parts.values() for n in group), key=position.__getitem__)
        if ctx.spend("split", at=first):
            _split(graph, axis, {bounds: parts[bounds] for bounds in sorted(parts)}, first)


def _axis(node: Node, rank: int) -> int:
    return int(node.attr("axis") or 0) % rank


def _is_cut_here(node: Node, source: Value) -> bool:
    return not source.constant and source.graph is node.graph and node.output.is_used


def _cut(node: Node) -> tuple[Value, int, Range] | None:
    """Return (source, axis, (start, end)) of a Slice, or None."""
    source, dims = node.inputs[0], types.dims_of(node.inputs[0])
    if source is None or not dims or not _is_cut_here(node, source):
        return None
    found = constant_cuts(node, len(dims))
    found = [c for c in found if c[1] or c[3] != 1 or not is_behind(c[2], c[0], dims)]  # other cuts take the whole axis
    if len(found) != 1 or found[0][3] != 1:
        return None
    axis, start, end, _ = found[0]
    size = types.length_of(source, axis)
    if size is None:
        return None
    begin, stop, _ = slice(start, end).indices(size)
    return source, axis, (begin, stop)


def _picked(node: Node) -> tuple[Value, int, Range] | None:
    """Return (source, axis, (start, end)) of consecutive listed indices, except of shape vectors; else None."""
    source, given = node.inputs[0], array_of(node.inputs[1])
    if source is None or given is None or node.has_references or not _is_cut_here(node, source):
        return None
    extracts = node.op == _EXTRACTOR
    rank, indices = len(types.dims_of(source)), given.reshape(-1)
    if rank < 2 or (given.ndim != 1 and not extracts):
        return None
    axis = rank - 1 if extracts else _axis(node, rank)
    size = types.length_of(source, axis)
    if size is None or not indices.size:
        return None
    begin, stop = int(indices[0]), int(indices[-1]) + 1
    one_by_one = begin >= 0 and stop <= size and indices.tolist() == list(range(begin, stop))
    return (source, axis, (begin, stop)) if one_by_one else None


def _only_part(node: Node) -> tuple[Value, int, Range] | None:
    """Return (part, axis, (start, end)) of a Split with a single used part, else None."""
    read, source = [v for v in present(node.outputs) if v.is_used], node.inputs[0]
    rank = len(types.dims_of(source))
    if len(node.outputs) < 2 or len(read) != 1 or not rank or node.has_references:
        return None
    part, axis = read[0], _axis(node, rank)
    sizes, whole = lengths_of(node.outputs[: part.index + 1], axis), types.length_of(source, axis)
    if sizes is None or (whole is not None and sum(sizes) > whole):
        return None  # no runtime accepts such lengths
    return part, axis, (sum(sizes[:-1]), sum(sizes))


def _axis_of_both(split: Node, node: Node, part: Value) -> int | None:
    """Return the axis along which both nodes work on a part of the Split; None if the axes differ or are unknown."""
    rank = len(types.dims_of(part))
    if not rank or node.has_references or split.has_references or _axis(split, rank) != _axis(node, rank):
        return None
    return _axis(node, rank)


def _split_again(node: Node) -> tuple[Node, int, list[int], list[Value]] | None:
    """Return (outer Split, axis, lengths, parts) if `node` alone splits a part of the outer Split; else None."""
    part, outer = node.inputs[0], own_producer(node.inputs[0], node, "Split")
    if part is None or outer is None or outer.graph is not node.graph:
        return None
    axis = _axis_of_both(outer, node, part)
    own = lengths_of(present(node.outputs), axis) if axis is not None else None
    if axis is None or own is None or types.length_of(part, axis) != sum(own):
        return None
    return _cut_otherwise(outer, axis, [w for v in outer.outputs for w in (node.outputs if v is part else [v])])


def _joined_again(node: Node) -> tuple[Node, int, list[int], list[Value]] | None:
    """Return (Split, axis, lengths, parts) if a Concat joins only adjacent parts of the Split, read by nothing else,
    but not all parts; else None."""
    first, split = node.inputs[0], own_producer(node.inputs[0], node, "Split")
    if first is None or split is None or split.graph is not node.graph:
        return None
    axis, begin, end = _axis_of_both(split, node, first), first.index, first.index + len(node.inputs)
    alone = split.outputs[begin:end] == node.inputs and all(v.only_user is node for v in node.operands)
    if axis is None or not alone or not 1 < end - begin < len(split.outputs):
        return None
    return _cut_otherwise(split, axis, [*split.outputs[:begin], node.output, *split.outputs[end:]])


def _cut_otherwise(
    split: Node, axis: int, parts: list[Value | None]
) -> tuple[Node, int, list[int], list[Value]] | None:
    """Return (Split, axis, lengths, parts) if the lengths of the parts are known and fit."""
    sizes = lengths_of(parts, axis)
    # In code that never runs, parts may be longer than the whole, which runtimes reject on loading.
    if sizes is None or types.length_of(split.inputs[0], axis) not in (None, sum(sizes)):
        return None
    return split, axis, sizes, present(parts)


def _split_at_once(graph: Graph, inner: Node, outer: Node, axis: int, sizes: list[int], parts: list[Value]) -> None:
    source = outer.inputs[0]
    assert source is not None
    split = insert_split(graph, source, parts, axis, sizes, outer)
    describe_as(split.proto, outer.proto)
    graph.remove(inner)
    graph.remove(outer)


def _slice(graph: Graph, split: Node, part: Value, axis: int, bounds: Range) -> None:
    node = of_lists(graph, "Slice", split.inputs[0], split, bounds[:1], bounds[1:], [axis])
    describe_as(node.proto, split.proto)
    graph.take_over(part, graph.insert(node, split))
    graph.remove(split)


def _covers(parts: list[Range], size: int | None) -> bool:
    if len(parts) < 2 or any(stop <= start for start, stop in parts):
        return False
    return parts[0][0] == 0 and parts[-1][1] == size and all(a[1] == b[0] for a, b in pairwise(parts))


def _split(graph: Graph, axis: int, parts: dict[Range, list[Node]], first: Node) -> None:
    source = first.inputs[0]  # the present source: the original may have been cut out twice
    assert source is not None
    # The values of the first Slices become the parts, so output names stay.
    taken = [group[0].output for group in parts.values()]
    split = insert_split(graph, source, taken, axis, [b - a for a, b in parts], first)
    describe_as(split.proto, first.proto)
    for group, part in zip(parts.values(), taken):
        graph.remove(group[0])
        for node in group[1:]:
            part = node.output.replace_all_uses_with(part)
            graph.remove(node)


class _Stack(NamedTuple):
    """A Reshape to `dims`, perhaps transposed, and the Gather of each index of an axis."""

    reshape: Node
    transpose: Node | None
    dims: Shape
    perm: list[int]
    axis: int  # behind the Transpose
    taken: dict[int, Node]


@register
class StacksToSplit(GraphPass):
    """Transpose(Reshape(x, [.., n, m, ..]))[i] = Split(Transpose(Reshape(x, [.., n m, ..])))[i], along n.

    Applies when: Reshape and Transpose have no other readers, each reader is a Gather of a single index of the axis,
    and n and m are known. Queries, keys and values in a single product are taken apart like this.
    """

    # After: a Gather of a single element is a Squeeze, and parts that are squeezed are picked by Gathers.
    info = PassInfo("stacks-to-split", opt_level=1, after=("axes-before-split", "index-chains"), ops=("Reshape",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 5:
            return  # Reshape has its target as attribute
        for reshape in list(graph.by_op.get("Reshape", ())):
            stack = _stack(reshape)
            if stack is None:
                continue
            source, p = reshape.inputs[0], stack.perm[stack.axis]
            n, m = [*stack.dims, None][p : p + 2]
            given = types.shape(source)
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
    transpose, perm = sole_reader(value, "Transpose"), list(range(len(dims)))
    if transpose is not None and transpose.graph is reshape.graph:
        perm = list(order_of(transpose, len(dims)))
        value = transpose.output
        if transpose.has_references or sorted(perm) != list(range(len(dims))):
            return None
    else:
        transpose = None
    found = _picks(value, len(dims))
    if found is None or len(found[1]) < 2:
        return None
    return _Stack(reshape, transpose, dims, perm, *found)


def _picks(value: Value, rank: int) -> tuple[int, dict[int, Node]] | None:
    """Return (axis, {index: Gather}) of Gathers of single indices along an axis; else None."""
    axis = _gathered_axis(value, rank)
    if axis is None or value.is_output or len(value.users) > _MAX_STACKED:
        return None
    size, taken = types.length_of(value, axis) or 0, dict[int, Node]()
    for user in value.users:
        place = _picked_index(user, value)
        if place is None or not -size <= place < size <= _MAX_STACKED:
            return None
        if taken.setdefault(place % size, user) is not user:
            return None  # an equal Gather kept apart as output
    return axis, taken


def _gathered_axis(value: Value, rank: int) -> int | None:
    """Return the axis of all Gathers that read the value; None without Gathers, or for several axes."""
    axes = {int(u.attr("axis", 0)) % rank for u in value.users if u.op == "Gather" and rank}
    return axes.pop() if len(axes) == 1 else None


def _picked_index(user: Node, value: Value) -> int | None:
    """Return the constant index of a Gather of a single element of `value` in its scope, else None."""
    index = array_of(user.inputs[1]) if user.op == "Gather" and user.inputs[0] is value else None
    if index is None or index.ndim or user.graph is not value.graph or user.has_references:
        return None
    return int(index)


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
    parts = [Value(graph.model.names.fresh(like.name, "_other"), graph) for _ in sizes]
    for i, reader in stack.taken.items():
        parts[i] = reader.output
    insert_split(graph, x, parts, order.index(p), sizes, place)
    for node in (*stack.taken.values(), stack.transpose, stack.reshape):
        if node is not None:
            graph.remove(node)
