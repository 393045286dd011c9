"""Squeeze and Unsqueeze moved to where fewer are needed: around regions, and before picks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node
from onnxopt.operators import REDUCTIONS, broadcasts
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import make_node
from onnxopt.rewriting.axes import Passing, View, WithOnes, WithoutOnes, passes
from onnxopt.rewriting.parts import insert_new, of_axes
from onnxopt.rewriting.relayout import End, Relayout
from onnxopt.rewriting.rule import listed_axes

# Axes of size 1 added to, or dropped from, computed values: changed at the operands instead.

_BACK: Final = {"Unsqueeze": "Squeeze", "Squeeze": "Unsqueeze"}
_MAX_REGION_NODES: Final = 16  # nodes of a region
_MAX_READERS: Final = 4  # readers of a value


@register
class AxesFirst(GraphPass):
    """Unsqueeze(f(x)), Unsqueeze(g(x)) = f(Unsqueeze(x)), g(Unsqueeze(x)), to merge with an Unsqueeze before.

    Likewise Squeeze. For operands squeezed, picked or reduced along these axes before, f works with the axes kept.
    Unsqueeze(p) for each part p of Split(x) = the parts of Split(Unsqueeze(x)); likewise Squeeze.

    Applies when: in between are elementwise operators with constants or operands of equal rank, Concat and Split,
    without readers other than these and nodes that add (or drop) the same axes: Unsqueeze, Squeeze, Reshape; and fewer
    nodes are left. Examples: cosines and sines of positions, which get an axis for the heads; the rotated half of
    rotary embeddings, with its axis dropped and added around a Neg; variances, which JAX computes without the reduced
    axes; boxes of a detector, bounded before they are joined; scales and shifts computed from an embedding, split and
    broadcast along tokens.
    Keeps: large constants with other readers.
    """

    # After: Slices have become a Split, chained Unsqueezes a single one, and common subexpressions are merged.
    info = PassInfo(
        "axes-first",
        opt_level=1,
        after=("merge-chains", "common-subexpressions", "slices-to-split", "stacks-to-split"),
        ops=("Unsqueeze", "Reshape", "Squeeze"),
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 7:
            return  # attributes name the broadcast axes
        for node in [n for op in ("Unsqueeze", "Squeeze", "Reshape") for n in graph.by_op.get(op, ())]:
            for op in _BACK if node.op == "Reshape" else (node.op,):
                if node.graph is None:
                    break  # removed with another region
                region = _Region.of(node, op)
                changed = _Changed(region) if isinstance(region, _Region) else None
                if isinstance(region, str):
                    ctx.decline("moved", region, repr(node))
                elif changed is not None and changed.saved < 1:
                    ctx.decline("moved", "it would not leave fewer nodes", repr(node))
                elif changed is not None and ctx.spend("moved", at=node):
                    changed.carry_out()


def _axes(node: Node, op: str) -> list[int]:
    """Return the sorted axes added by an Unsqueeze (dropped by a Squeeze), or by an equivalent Reshape; empty if
    unknown."""
    x, made = node.input(0), node.outputs[0]
    few, many = (types.shape(v) if v is not None else None for v in ((x, made) if op == "Unsqueeze" else (made, x)))
    if node.op == op:
        axes, rank = listed_axes(node) or [], len(many) if many is not None else None
        if op == "Unsqueeze":
            rank = len(few) + len(axes) if few is not None else None
        return sorted(a % rank for a in axes) if rank else []
    return _between(few, many) if node.op == "Reshape" and few is not None and many is not None else []


def _between(few: Shape, many: Shape) -> list[int]:
    """Return the axes of size 1 in `many` missing in `few`, if all others are equal; else empty."""
    if len(many) <= len(few) or None in few:
        return []
    axes, rest = [], list(reversed(few))
    for i, d in enumerate(many):
        if rest and rest[-1] == d:
            rest.pop()
        elif d == 1:
            axes.append(i)
        else:
            return []
    return [] if rest else axes


class _Region:
    """Nodes of equal rank whose results all get, or lose, the same axes at the `exits`."""

    def __init__(self, graph: Graph, op: str, rank: int, axes: list[int]) -> None:
        self.graph, self.op, self.axes = graph, op, axes
        self.view: View = WithOnes(rank, axes) if op == "Unsqueeze" else WithoutOnes(rank, axes)
        self.passing: dict[Node, Passing] = {}
        self.exits: dict[Value, Node] = {}
        self.nodes: dict[Node, None] = {}
        self.sources: dict[Value, None] = {}

    @classmethod
    def of(cls, node: Node, op: str) -> _Region | str | None:
        """Return the region before the axes changed by a node; None for nothing to do, or a reason."""
        x = node.inputs[0]
        if x is None or node.graph is None or x.graph is not node.graph or not (axes := _axes(node, op)):
            return None
        rank = types.rank(x)
        if rank is None:
            return None
        region = cls(node.graph, op, rank, axes)
        region._grow(x)
        if not region.nodes and x.producer is not None and x.producer in region.passing and x.producer.op == "Split":
            return "not all parts are read alike"
        return region if region.nodes else None

    def given(self, source: Value) -> Value | None:
        """Return the source's form with the axes changed, if the opposite change was applied to it; else None."""
        maker = source.producer
        if maker is None or maker.op != _BACK[self.op] or maker.has_references:
            return None
        return maker.inputs[0] if _axes(maker, _BACK[self.op]) == self.axes else None

    def merges(self, source: Value) -> bool:
        """Whether the producer of `source` can make the changed form itself, and only the region reads it."""
        maker = source.producer
        if maker is None or source.is_output or not all(u in self.nodes for u in source.users):
            return False
        if maker.op in REDUCTIONS:
            return self._reduces(maker)
        if maker.op == "Reshape":  # reshape-chains composes them, unless the Reshape is the identity
            x, target = maker.inputs[:2]
            written = target is not None and target.constant and bool(target.array.all())
            return written and x is not None and not types.same_shape(x, source) and not maker.attr("allowzero", 0)
        return self._picks(maker) or (maker.op in ("Unsqueeze", self.op) and listed_axes(maker) is not None)

    def direct(self, source: Value) -> Node | None:
        """Return a reader of `source` that changes the axes, and depends on nothing else; else None."""
        if source.graph is not self.graph or source.producer is None or len(source.users) > _MAX_READERS:
            return None
        for user in source.users:
            rest = user.inputs[1:]
            if self._is_exit(user) and all(v is not None and v.constant and v.producer is None for v in rest):
                return user
        return None

    def _reduces(self, maker: Node) -> bool:
        """Whether `maker` reduces these axes: Unsqueeze(Reduce(x, axes), axes) = Reduce(x, axes), dims kept; so
        Squeeze."""
        if maker.keeps_dims == (self.op == "Unsqueeze") or maker.has_references or maker.graph is not self.graph:
            return False
        x = maker.inputs[0]
        wide = types.rank(x) if x is not None else None
        return bool(wide) and sorted(a % (wide or 1) for a in listed_axes(maker) or ()) == self.axes

    def _picks(self, maker: Node) -> bool:
        """Whether `maker` picks an index of the axis: Unsqueeze(Gather(x, i)) = Gather(x, [i]); so Squeeze."""
        if maker.op != "Gather" or maker.has_references or maker.graph is not self.graph:
            return False
        x, index = maker.inputs
        wide = types.rank(x) if x is not None else None
        if not wide or index is None or not index.constant:
            return False
        one = () if self.op == "Unsqueeze" else (1,)
        return index.constant_type()[1] == one and self.axes == [int(maker.attr("axis")) % wide]

    def _grow(self, value: Value) -> None:
        """Grow the region backwards from a value, as far as nodes have a form in the view."""
        open_values = [value]
        while open_values:
            v = open_values.pop()
            maker = v.producer
            if v in self.sources or maker in self.nodes:
                continue
            exits: dict[Value, Node] = {}
            inside: dict[Node, None] = {}
            if maker is None or not self._fits(maker) or not self._is_closed(maker, inside, exits):
                self.sources[v] = None
                continue
            if len(self.nodes) + len(inside) >= _MAX_REGION_NODES:
                self.sources[v] = None
                continue
            self.nodes.update({**inside, maker: None})
            self.exits.update(exits)
            open_values += [i for n in (maker, *inside) for i in self.passing[n].seen]

    def _is_closed(self, node: Node, found: dict[Node, None], exits: dict[Value, Node]) -> bool:
        """Whether results of `node` are read only by nodes `found` (extended here) and by `exits`."""
        for value in node.outputs:
            if value is None or value.is_output or len(value.users) > _MAX_READERS:
                return False
            for user in value.users:
                if user in self.nodes or user in found or user is node:
                    continue
                if self._is_exit(user):
                    if exits.setdefault(value, user) is not user:
                        return False  # equal exits kept apart as outputs
                    continue
                if len(found) == _MAX_READERS or not self._fits(user):
                    return False
                found[user] = None
                if not self._is_closed(user, found, exits):
                    return False
        return True

    def _is_exit(self, node: Node) -> bool:
        if any(
            u.op in ("Expand", "Tile") for u in islice(node.outputs[0].users if node.outputs[0] else (), _MAX_READERS)
        ):
            return False  # copies along an axis of their own, when joined, become a single Gather
        return node.graph is self.graph and node.op in (self.op, "Reshape") and _axes(node, self.op) == self.axes

    def _fits(self, node: Node) -> bool:
        """Whether the node works with the axes changed, too."""
        found = passes(node, self.view) if node.graph is self.graph else None
        if found is None or found.axes.last or (found.axes.along and node.op not in ("Concat", "Split")):
            return False
        self.passing[node] = found
        return True


class _Changed(Relayout):
    """The nodes of a region with the axes added or dropped."""

    def __init__(self, region: _Region) -> None:
        super().__init__(region.graph, region.nodes, region.view, region.passing)
        self.region, self.suffix = region, "_wide" if region.op == "Unsqueeze" else "_narrow"
        self.look()

    def carry_out(self) -> None:
        # in graph order, so that the first reader creates a value
        self.nodes = [n for n in self.graph if n in self.inside]
        super().carry_out()

    def enters(self, v: Value) -> End[Node]:
        region, direct = self.region, self.region.direct(v)
        given = direct.output if direct is not None else region.given(v)
        if given is None and self._is_broadcast(v):
            return End(0, lambda before: v)

        def write(before: Node) -> Value:
            if given is None:
                made = of_axes(self.graph, region.op, v, region.axes, before)
                return insert_new(self.graph, made, v, before)
            if direct is not None and v.producer is not None:
                self.graph.move_after(direct, v.producer)  # it may stand behind its new readers
            return given

        return End(-(given is None and not region.merges(v)), write)

    def _is_broadcast(self, v: Value) -> bool:
        """Return whether broadcasting adds the axes: leading ones, next to an operand of the new rank in each
        reader."""
        region, opset = self.region, self.graph.opset()
        if region.op != "Unsqueeze" or region.axes != [*range(len(region.axes))] or region.merges(v):
            return False
        return all(
            broadcasts(u.op, opset)
            and any(w.producer in self.inside or region.merges(w) for w in self.operands[u] if w is not v)
            for u in v.users
            if u in self.inside
        )

    def leaves(self, v: Value, user: Node) -> End[Value] | None:
        def write(new: Value) -> Value:
            read = user.output.replace_all_uses_with(new)
            self.graph.remove(user)
            return read

        return End(1, write) if self.region.exits.get(v) is user else None

    def restores(self, v: Value, readers: list[Node]) -> None:
        """Return None: results have no other readers."""


# Axes added to all picked elements, or dropped from all parts, changed once before picking.


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
