"""Slices and columns that partition a tensor along an axis become a Split; a Split with a single used part, a Slice."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.refusal import REFUSED, is_refused
from onnxopt.analysis.shapes.slicing import cuts, is_behind
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import make_node
from onnxopt.rewriting.forms import FORMS, operands
from onnxopt.rewriting.parts import insert_split

Range = tuple[int, int]
_EXTRACTOR: Final = "ai.onnx.ml::ArrayFeatureExtractor"
_CUTS: Final = ("Slice", "Gather", _EXTRACTOR)


@register
class SlicesToSplit(GraphPass):
    """x[:a], x[a:b], x[b:] = Split(x); a Split with a single used part is a Slice; Split of Split = Split.

    Applies when: the axis size is known, and slices with constant bounds and step 1 (or lists of consecutive indices)
    cover the axis without gaps and overlaps. Rotary embeddings halve each head like this; scikit-learn takes all
    columns.
    """

    # After: known slices of shapes are removed, and slices of slices read the original tensor.
    info = PassInfo(
        "slices-to-split",
        opt_level=1,
        after=("shape-sources", "merge-chains", "gather-axes"),
        ops=(*_CUTS, "Split"),
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        groups: dict[tuple[Value, int], dict[Range, list[Node]]] = {}
        for node in [n for op in _CUTS for n in graph.by_op.get(op, ())]:
            found = _cut(node) if node.op == "Slice" else _picked(node)
            if found is not None:
                source, axis, bounds = found
                groups.setdefault((source, axis), {}).setdefault(bounds, []).append(node)
        position = {node: i for i, node in enumerate(graph)} if groups else {}
        for (source, axis), parts in groups.items():
            if not _covers(sorted(parts), _size(source, axis)):
                continue
            first = min((n for group in parts.values() for n in group), key=position.__getitem__)
            if ctx.spend("split", at=first):
                _split(graph, axis, {bounds: parts[bounds] for bounds in sorted(parts)}, first)
        for node in list(graph.by_op.get("Split", ())):
            again = _split_again(node) if node.graph is graph else None
            if again is not None and ctx.spend("split_of_split", at=node):
                _split_at_once(graph, node, *again)
        for node in list(graph.by_op.get("Split", ())):
            found = _only_part(node)
            if found is None:
                continue
            part = found[0]
            if is_refused(part, part):  # with bounds known from the Slice instead of the Split
                ctx.decline("single", REFUSED, repr(node))
            elif ctx.spend("single", at=node):
                _slice(graph, node, *found)


def _size(source: Value, axis: int) -> int | None:
    dims = types.shape(source)
    size = dims[axis] if dims is not None and axis < len(dims) else None
    # In code that never runs, an axis may be missing, or a size negative.
    return size if isinstance(size, int) and size >= 0 else None


def _cut(node: Node) -> tuple[Value, int, Range] | None:
    """Return (source, axis, (start, end)) of a Slice, or None."""
    source = node.inputs[0]
    parameters = [*operands(node), None, None, None][1:5]
    dims = types.shape(source) if source is not None else None
    if source is None or source.constant or source.graph is not node.graph or not dims or not node.output.is_used:
        return None
    if any(v is not None and (not v.constant or v.array.size > len(dims)) for v in parameters):
        return None
    starts, ends, axes, steps = ([] if v is None else v.array.reshape(-1).tolist() for v in parameters)
    found = cuts(starts, ends, axes or None, steps or None, len(dims)) or []
    found = [c for c in found if c[1] or c[3] != 1 or not is_behind(c[2], c[0], dims)]  # other cuts take the whole axis
    if len(found) != 1 or found[0][3] != 1:
        return None
    axis, start, end, _ = found[0]
    size = _size(source, axis)
    if size is None:
        return None
    begin, stop, _ = slice(start, end).indices(size)
    return source, axis, (begin, stop)


def _picked(node: Node) -> tuple[Value, int, Range] | None:
    """Return (source, axis, (start, end)) of consecutive listed indices, except of shape vectors; else None."""
    source, given = node.inputs[0], node.inputs[1]
    if source is None or source.constant or given is None or not given.constant or node.has_references:
        return None
    extracts = node.op == _EXTRACTOR
    rank, indices = types.rank(source), given.array.reshape(-1)
    if rank is None or rank < 2 or (given.array.ndim != 1 and not extracts) or not node.output.is_used:
        return None
    axis = rank - 1 if extracts else int(node.attr("axis")) % rank
    size = _size(source, axis)
    if size is None or not indices.size or source.graph is not node.graph:
        return None
    begin, stop = int(indices[0]), int(indices[-1]) + 1
    one_by_one = begin >= 0 and stop <= size and indices.tolist() == list(range(begin, stop))
    return (source, axis, (begin, stop)) if one_by_one else None


def _only_part(node: Node) -> tuple[Value, int, Range] | None:
    """Return (part, axis, (start, end)) of a Split with a single used part, else None."""
    read = [v for v in node.outputs if v is not None and v.is_used]
    source = node.inputs[0]
    if len(node.outputs) < 2 or len(read) != 1 or source is None or node.has_references:
        return None
    rank, part = types.rank(source), read[0]
    axis = int(node.attr("axis") or 0) % rank if rank else 0
    sizes = [None if v is None else _size(v, axis) for v in node.outputs[: part.index + 1]]
    known = [s for s in sizes if s is not None]
    whole = _size(source, axis)
    if not rank or len(known) < len(sizes) or (whole is not None and sum(known) > whole):
        return None  # no runtime accepts such lengths
    return part, axis, (sum(known[:-1]), sum(known))


def _split_again(node: Node) -> tuple[Node, int, list[int], list[Value]] | None:
    """Return (outer Split, axis, lengths, parts) if `node` alone splits a part of the outer Split; else None."""
    part = node.inputs[0]
    outer = part.producer if part is not None else None
    if part is None or outer is None or outer.op != "Split" or outer.graph is not node.graph:
        return None
    rank = types.rank(part)
    if part.only_user is not node or node.has_references or outer.has_references or not rank:
        return None
    axis = int(node.attr("axis") or 0) % rank
    parts = [w for v in outer.outputs for w in (node.outputs if v is part else [v])]
    sizes = [_size(v, axis) if v is not None else None for v in parts]
    known = [n for n in sizes if n is not None]
    if int(outer.attr("axis") or 0) % rank != axis or len(known) < len(sizes):
        return None
    own, whole = [_size(v, axis) for v in node.outputs if v is not None], outer.inputs[0]
    # In code that never runs, parts may be longer than the whole, which runtimes reject on loading.
    if _size(part, axis) != sum(n or 0 for n in own) or whole is None:
        return None
    if (size := _size(whole, axis)) is not None and size != sum(known):
        return None
    return outer, axis, known, [v for v in parts if v is not None]


def _split_at_once(graph: Graph, inner: Node, outer: Node, axis: int, sizes: list[int], parts: list[Value]) -> None:
    source = outer.inputs[0]
    assert source is not None
    split = insert_split(graph, source, parts, axis, sizes, outer)
    describe_as(split.proto, outer.proto)
    graph.remove(inner)
    graph.remove(outer)


def _slice(graph: Graph, split: Node, part: Value, axis: int, bounds: Range) -> None:
    given = dict(zip(("starts", "ends", "axes"), ([n] for n in (*bounds, axis))))
    if graph.opset() < FORMS["Slice"].since:
        node = Node(make_node("Slice", "", split.name, given), [split.inputs[0]], [None])
    else:
        numbers = [graph.constant(np.array(n, np.int64), f"{part.name}_{what}", split) for what, n in given.items()]
        node = Node(make_node("Slice", "", split.name, {}), [split.inputs[0], *numbers], [None])
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
