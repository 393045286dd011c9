"""Axes that all parts of a tensor get, or lose, are put in or taken out once, before it is taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onnxopt.analysis import types
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.protos import make_node
from onnxopt.rewriting.forms import listed_axes
from onnxopt.rewriting.parts import insert_new


class _Alike(NamedTuple):
    """What reads the parts of a Split along `axis`: nodes that put in, or take out, the same `axes` (none negative)."""

    readers: dict[int, Node]
    axes: list[int]
    axis: int  # behind these nodes; in front of them if it is `gone` behind them
    gone: bool


@register
class AxesBeforeSplit(GraphPass):
    """Unsqueeze(p) for each part p of Split(x) = the parts of Split(Unsqueeze(x)); so Squeeze.

    Unsqueeze(Gather(x, i)) = Gather(Unsqueeze(x), i), for several i.
    Squeeze(p) for each part p, of one place, of Split(x) = Gather(x, i), if the axis is that which is split.

    Applies when: each part that is read is read by one such node alone, all with the same constant axes. Scales and
    shifts that are made of an embedding at once are taken apart, and broadcast along the tokens; a recurrence that is
    written out picks what it reads step by step, and what is unbound is picked.
    """

    # After: Slices are a Split, and Unsqueezes in a row are one.
    info = PassInfo(
        "axes-before-split",
        opt_level=1,
        after=("slices-to-split", "merge-chains", "stacks-to-split"),
        ops=("Split", "Gather"),
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for split in list(graph.by_op.get("Split", ())):
            alike = _alike(split)
            if isinstance(alike, str):
                ctx.decline("moved", alike, repr(split))
            elif alike is not None and alike.gone:
                places = _places(split, alike)
                if places is None:
                    ctx.decline("picked", "the parts in front are of unknown sizes, or several axes go", repr(split))
                elif ctx.spend("picked", at=split):
                    _pick(graph, split, alike, places)
            elif alike is not None and ctx.spend("moved", at=split):
                _move(graph, split, alike)
        several = {key: found for key, found in _picks(graph).items() if len(found) > 1}
        position = {node: i for i, node in enumerate(graph)} if several else {}
        for (x, place, axes), found in several.items():
            found.sort(key=lambda pick: position[pick[0]])
            if ctx.spend("moved", len(found), at=found[0][0]):
                _move_before_picks(graph, x, place, axes, found)


def _alike(split: Node) -> _Alike | str | None:
    """What reads the parts, or why it stays; None where no part is read by an Unsqueeze or Squeeze."""
    parts = {i: v for i, v in enumerate(split.outputs) if v is not None and v.is_used}
    readers = {i: v.only_user for i, v in parts.items()}
    kinds = {n.op if n is not None else "" for n in readers.values()}
    if kinds.isdisjoint(("Unsqueeze", "Squeeze")) or len(parts) < 2:
        return None
    if len(kinds) > 1:
        return "not all parts are read alike"
    found = {i: n for i, n in readers.items() if n is not None}
    if split.has_references or any(n.graph is not split.graph or n.has_references for n in found.values()):
        return "a reader is in a body, or has attributes of a function"
    op, rank = next(iter(found.values())).op, types.rank(parts[next(iter(found))])
    given = [listed_axes(n) for n in found.values()]
    if not rank or not all(given):  # runtimes squeeze all that is one where no axes are given
        return "the rank or the axes are unknown"
    wide = rank + len(given[0] or ()) if op == "Unsqueeze" else rank
    axes = [sorted(a % wide for a in g or ()) for g in given]
    if any(a != axes[0] for a in axes):
        return "not all parts are read alike"
    axis = int(split.attr("axis") or 0) % rank
    if op == "Unsqueeze":
        return _Alike(found, axes[0], [i for i in range(wide) if i not in axes[0]][axis], False)
    gone = axis in axes[0]
    return _Alike(found, axes[0], axis if gone else axis - sum(a < axis for a in axes[0]), gone)


def _places(split: Node, alike: _Alike) -> dict[int, int] | None:
    """Where along the axis the parts are that are read."""
    if len(alike.axes) > 1:
        return None
    places, place = {}, 0
    for i in range(max(alike.readers) + 1):
        part = split.outputs[i]
        dims = types.shape(part) if part is not None else None
        size = dims[alike.axis] if dims is not None and alike.axis < len(dims) else None
        if i in alike.readers:
            places[i], size = place, size if size is None else 1  # of another size it could not be squeezed
        if not isinstance(size, int) or size < 0:
            return None
        place += size
    return places


def _pick(graph: Graph, split: Node, alike: _Alike, places: dict[int, int]) -> None:
    x = split.inputs[0]
    for i, reader in alike.readers.items():
        index = graph.constant(np.array(places[i], np.int64), f"{reader.output.name}_index", split)
        pick = Node(make_node("Gather", "", reader.name, {"axis": alike.axis}), [x, index], [None])
        describe_as(pick.proto, reader.proto)
        graph.take_over(reader.output, graph.insert(pick, split))
        graph.remove(reader)
    graph.remove(split)


def _move(graph: Graph, split: Node, alike: _Alike) -> None:
    first, x = next(iter(alike.readers.values())), split.inputs[0]
    whole = _before(graph, x, first, alike.axes, split)
    split.set_input(0, whole)
    split.set_attr("axis", alike.axis)
    for i, part in enumerate(split.outputs):
        if i in alike.readers:
            node = alike.readers[i]
            graph.take_over(node.output, split, i)
            graph.remove(node)
        elif part is not None:  # its shape is another
            graph.take_over(Value(graph.model.names.fresh(part.name, "_other"), graph), split, i)


def _before(graph: Graph, x: Value | None, reader: Node, axes: list[int], place: Node) -> Value:
    """What the Unsqueeze or Squeeze `reader` makes of `x` with these axes, made before `place`."""
    inputs = [x]
    if len(reader.inputs) > 1:
        inputs.append(graph.constant(np.array(axes, np.int64), f"{reader.output.name}_axes", place))
    whole = insert_new(graph, reader.copy(inputs, []), reader.output, place)
    if len(reader.inputs) == 1 and whole.producer is not None:
        whole.producer.set_attr("axes", axes)
    return whole


Picks = dict[tuple[Value, int, tuple[int, ...]], list[tuple[Node, Node]]]


def _picks(graph: Graph) -> Picks:
    """Gathers of one element of a value, each with the Unsqueeze that alone reads it; by the value, the axis along
    which they pick, and the axes that are put in."""
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
        axes = listed_axes(reader)
        if axes and (rank := types.rank(x)):
            wide = rank - 1 + len(axes)
            key = x, int(gather.attr("axis")) % rank, tuple(sorted(a % wide for a in axes))
            found.setdefault(key, []).append((gather, reader))
    return found


def _move_before_picks(graph: Graph, x: Value, place: int, axes: Sequence[int], found: list[tuple[Node, Node]]) -> None:
    rank = len(axes) + (types.rank(x) or 0)
    kept = [i for i in range(rank - 1) if i not in axes]
    picked = kept[place] if place < len(kept) else rank - 1  # where the axis is that goes, among those put in
    first, reader = found[0]
    whole = _before(graph, x, reader, [a + (a >= picked) for a in axes], first)
    for gather, behind in found:
        gather.set_input(0, whole)
        gather.set_attr("axis", picked)
        graph.take_over(behind.output, gather)
        graph.remove(behind)
