"""Axes added to all picked elements, or dropped from all parts, changed once before picking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxopt.analysis import types
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import make_node
from onnxopt.rewriting.forms import listed_axes
from onnxopt.rewriting.parts import insert_new, of_axes


@register
class AxesBeforeSplit(GraphPass):
    """Unsqueeze(Gather(x, i)) = Gather(Unsqueeze(x), i), for several i.

    Squeeze(p) for each part p, of size 1, of Split(x) = Gather(x, i), if the split axis is squeezed.

    Applies when: each used part has only such a reader. Unrolled recurrences pick inputs step by step, and unbind
    becomes picks. Axes added to or dropped from other parts are moved by axes-first.
    """

    # After: Slices have become a Split, and chained Unsqueezes a single one.
    info = PassInfo(
        "axes-before-split",
        opt_level=1,
        after=("slices-to-split", "merge-chains", "stacks-to-split", "common-subexpressions"),
        ops=("Split", "Gather"),
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for split in list(graph.by_op.get("Split", ())):
            readers = _unbound(split)
            if readers is None:
                continue
            places = _places(split, readers)
            if places is None:
                ctx.decline("picked", "the parts in front are of unknown sizes, or several axes go", repr(split))
            elif ctx.spend("picked", at=split):
                _pick(graph, split, readers, places)
        several = {key: found for key, found in _picks(graph).items() if len(found) > 1}
        position = {node: i for i, node in enumerate(graph)} if several else {}
        for (x, place, axes), found in several.items():
            found.sort(key=lambda pick: position[pick[0]])
            if ctx.spend("moved", len(found), at=found[0][0]):
                _move_before_picks(graph, x, place, axes, found)


def _unbound(split: Node) -> dict[int, Node] | None:
    """Return the Squeezes of the split axis by part, if they are the only readers of several parts; else None."""
    parts = {i: v for i, v in enumerate(split.outputs) if v is not None and v.is_used}
    readers = {i: reader for i, v in parts.items() if (reader := v.only_user) is not None and reader.op == "Squeeze"}
    if len(readers) < len(parts) or len(parts) < 2 or split.has_references:
        return None
    rank = types.rank(parts[min(parts)])
    given = [listed_axes(n) or [] for n in readers.values()]
    if not rank or any(n.graph is not split.graph or n.has_references for n in readers.values()):
        return None
    axis, axes = int(split.attr("axis") or 0) % rank, {frozenset(a % rank for a in g) for g in given}
    return readers if len(axes) == 1 and axis in axes.pop() else None


def _places(split: Node, readers: dict[int, Node]) -> dict[int, int] | None:
    """Return the index along the axis for each used part, or None."""
    if any(len(listed_axes(n) or ()) > 1 for n in readers.values()):
        return None
    places, place, axis = {}, 0, int(split.attr("axis") or 0)
    for i in range(max(readers) + 1):
        part = split.outputs[i]
        dims = types.shape(part) if part is not None else None
        size = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
        if i in readers:
            places[i], size = place, size if size is None else 1  # any other size could not be squeezed
        if not isinstance(size, int) or size < 0:
            return None
        place += size
    return places


def _pick(graph: Graph, split: Node, readers: dict[int, Node], places: dict[int, int]) -> None:
    x, axis = split.inputs[0], int(split.attr("axis") or 0)
    for i, reader in readers.items():
        index = graph.constant(np.array(places[i], np.int64), f"{reader.output.name}_index", split)
        pick = Node(make_node("Gather", "", reader.name, {"axis": axis}), [x, index], [None])
        describe_as(pick.proto, reader.proto)
        graph.take_over(reader.output, graph.insert(pick, split))
        graph.remove(reader)
    graph.remove(split)


Picks = dict[tuple[Value, int, tuple[int, ...]], list[tuple[Node, Node]]]


def _picks(graph: Graph) -> Picks:
    """Return (Gather of one element, its only reader Unsqueeze) by value, picked axis and added axes."""
    found: Picks = {}
    for gather in graph.by_op.get("Gather", ()):
        x, index, made = gather.input(0), gather.input(1), gather.outputs[0]
        reader = made.only_user if made is not None else None
        if reader is None or reader.op != "Unsqueeze" or reader.graph is not graph:
            continue
        if gather.has_references or reader.has_references:
            continue
        if x is None or x.constant or index is None or not index.constant or index.constant_type()[1] != ():
            continue
        axes, rank = listed_axes(reader), types.rank(x)
        if axes and rank:
            place, wide = int(gather.attr("axis")) % rank, rank - 1 + len(axes)
            key = x, place, tuple(sorted(a % wide for a in axes))
            if key[2] != (place,):  # otherwise a Gather of [i] (index-chains)
                found.setdefault(key, []).append((gather, reader))
    return found


def _move_before_picks(graph: Graph, x: Value, place: int, axes: Sequence[int], found: list[tuple[Node, Node]]) -> None:
    rank = len(axes) + (types.rank(x) or 0)
    kept = [i for i in range(rank - 1) if i not in axes]
    picked = kept[place] if place < len(kept) else rank - 1  # position of the picked axis among the added ones
    first, reader = found[0]
    made = of_axes(graph, "Unsqueeze", x, [a + (a >= picked) for a in axes], first)
    whole = insert_new(graph, made, reader.output, first)
    for gather, behind in found:
        gather.set_input(0, whole)
        gather.set_attr("axis", picked)
        graph.take_over(behind.output, gather)
        graph.remove(behind)
