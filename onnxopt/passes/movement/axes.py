"""Squeeze and Unsqueeze moved to where fewer are needed, around regions."""

from __future__ import annotations

from itertools import islice
from typing import Final

from onnxopt.analysis import types
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, present, producer
from onnxopt.operators import broadcasts
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.axes import Passing, View, WithOnes, WithoutOnes, passes
from onnxopt.rewriting.parts import ones_between
from onnxopt.rewriting.relayout import End, Relayout
from onnxopt.rewriting.rule import listed_axes
from onnxopt.rewriting.spans import taken

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
                if node.graph is not None:  # not removed with another region
                    _move(node, op, ctx)


def _move(node: Node, op: str, ctx: PassContext) -> None:
    """Move the axes changed by the node in front of a region, if fewer nodes are left."""
    region = _Region.of(node, op)
    if region is None:
        return
    changed = _Changed(region) if isinstance(region, _Region) else None
    if changed is None or changed.saved < 1:
        why = region if isinstance(region, str) else "it would not leave fewer nodes"
        ctx.decline("moved", why, repr(node))
    elif ctx.spend("moved", at=node):
        changed.carry_out()


def _axes(node: Node, op: str) -> list[int]:
    """Return the sorted axes added by an Unsqueeze (dropped by a Squeeze), or by an equivalent Reshape; empty if
    unknown."""
    x, made = node.input(0), node.outputs[0]
    few, many = map(types.shape, (x, made) if op == "Unsqueeze" else (made, x))
    if node.op == op:
        axes, known = listed_axes(node) or [], few if op == "Unsqueeze" else many
        rank = 0 if known is None else len(known) + len(axes) * (op == "Unsqueeze")
        return sorted(a % rank for a in axes) if rank else []
    return ones_between(few, many) if node.op == "Reshape" and few is not None and many is not None else []


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
        x, axes = node.inputs[0], _axes(node, op)
        rank = types.rank(x) if x is not None else None
        if x is None or x.graph is not node.graph or not axes or rank is None:
            return None
        region = cls(x.graph, op, rank, axes)
        region._grow(x)
        if region.nodes:
            return region
        return "not all parts are read alike" if producer(x, "Split") in region.passing else None

    def direct(self, source: Value) -> Node | None:
        """Return a reader of `source` that changes the axes, and depends on nothing else; else None."""
        if source.graph is not self.graph or source.producer is None or len(source.users) > _MAX_READERS:
            return None
        for user in source.users:
            rest = user.inputs[1:]
            if self._is_exit(user) and all(v is not None and v.is_stored and v.producer is None for v in rest):
                return user
        return None

    def picks(self, source: Value) -> bool:
        """Whether the region alone reads `source`, a Gather of one index of the axis: Unsqueeze(Gather(x, i)) =
        Gather(x, [i]), and Squeeze(Gather(x, [i])) = Gather(x, i)."""
        maker = producer(source, "Gather")
        if maker is None or source.is_output or not self.nodes.keys() >= source.users.keys():
            return False
        found = taken(maker) if maker.graph is self.graph else None
        return found is not None and found.drops == (self.op == "Unsqueeze") and self.axes == [found.axis]

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
            closed = maker is not None and self._fits(maker) and self._is_closed(maker, inside, exits)
            if maker is None or not closed or len(self.nodes) + len(inside) >= _MAX_REGION_NODES:
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
            readers = [u for u in value.users if u not in self.nodes and u is not node]
            if not all(u in found or self._takes(u, value, found, exits) for u in readers):
                return False
        return True

    def _takes(self, user: Node, value: Value, found: dict[Node, None], exits: dict[Value, Node]) -> bool:
        """Whether a reader becomes an exit, the only one of its value, or a node of the region, with its readers."""
        if self._is_exit(user):
            return exits.setdefault(value, user) is user  # equal exits may be kept apart as outputs
        if len(found) == _MAX_READERS or not self._fits(user):
            return False
        found[user] = None
        return self._is_closed(user, found, exits)

    def _is_exit(self, node: Node) -> bool:
        if any(u.op in ("Expand", "Tile") for v in present(node.outputs[:1]) for u in islice(v.users, _MAX_READERS)):
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
        super().__init__(region.graph, [*region.nodes], region.view)
        self.region, self.suffix = region, "_wide" if region.op == "Unsqueeze" else "_narrow"
        self.look()

    def carry_out(self) -> None:
        # in graph order, so that the first reader creates a value
        self.nodes = [n for n in self.graph if n in self.inside]
        super().carry_out()

    def enters(self, v: Value) -> End[Node] | None:
        direct = self.region.direct(v)
        if direct is not None:
            return End(0, lambda before: self._read(v, direct))
        end = self._moved(v)
        if (end is None or end.saved < 0) and self._is_broadcast(v):
            return End(0, lambda before: v)
        return end

    def _moved(self, v: Value) -> End[Node] | None:
        """Return the end where operators change the axes, at no cost where a Gather of one index can do so."""
        end = super().enters(v)
        if end is not None and end.saved < 0 and self.region.picks(v):
            end.saved = 0
        return end

    def _is_free(self, v: Value) -> bool:
        """Return whether a value is in the region, or has a form with the axes changed at no cost."""
        return v.producer in self.inside or ((end := self._moved(v)) is not None and end.saved >= 0)

    def _read(self, v: Value, direct: Node) -> Value:
        """Return the result of a reader of `v` that changes the axes, placed before its new readers."""
        if v.producer is not None:
            self.graph.move_after(direct, v.producer)
        return direct.output

    def _is_broadcast(self, v: Value) -> bool:
        """Return whether broadcasting adds the axes: leading ones, next to an operand of the new rank in each
        reader."""
        region, opset = self.region, self.graph.opset()
        if region.op != "Unsqueeze" or region.axes != [*range(len(region.axes))]:
            return False
        return all(
            broadcasts(u.op, opset) and any(self._is_free(w) for w in self.operands[u] if w is not v)
            for u in v.users
            if u in self.inside
        )

    def leaves(self, v: Value, user: Node) -> End[Value] | None:
        return super().leaves(v, user) if self.region.exits.get(v) is user else None

    def restores(self, v: Value) -> None:
        """Return None: results have no other readers."""
