"""Axes that are put into what is computed element by element are put into what it is computed of."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

from onnxopt.analysis import types
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.operators import REDUCTIONS
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.axes import Passing, WithOnes, passes
from onnxopt.rewriting.forms import listed_axes
from onnxopt.rewriting.parts import insert_new, of_axes
from onnxopt.rewriting.relayout import Relayout

_PUT_IN: Final = ("Unsqueeze", "Reshape")
_REACH: Final = 16  # nodes of one region
_FEW: Final = 4  # readers of one value


@register
class AxesFirst(GraphPass):
    """Unsqueeze(f(x)), Unsqueeze(g(x)) = f(Unsqueeze(x)), g(Unsqueeze(x)); that may be one with an Unsqueeze before.

    So of what was squeezed of these axes, picked along the axis, or reduced over the axes before: f works with them.

    Applies when: between are operators that work element by element, of constants or of values of one rank, and Concat;
    nobody reads what they make but such, and what puts in the same axes, Unsqueezes and Reshapes; and fewer nodes are
    left. Cosines and sines of positions get their axis for the heads like that; the half that rotary positions turn
    loses and gets its axis around a Neg; variances, which JAX computes without the axes, keep them; what a detector
    picks of each box is bounded with the axis along which all is joined.
    Keeps: large constants that something else reads.
    """

    # After: Unsqueezes in a row are one, and what is computed twice is computed once.
    info = PassInfo("axes-first", opt_level=1, after=("merge-chains", "common-subexpressions"), ops=_PUT_IN)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 7:
            return  # attributes say which axes broadcast
        for node in [n for op in _PUT_IN for n in graph.by_op.get(op, ())]:
            if node.graph is None:
                continue  # it went with another
            region = _Region.of(node)
            if region is None:
                continue
            if region.saved < 1:
                ctx.decline("moved", "it would not leave fewer nodes", repr(node))
            elif ctx.spend("moved", at=node):
                _Wide(region).carry_out()


def _put_in(node: Node) -> list[int]:
    """The axes, in order, that an Unsqueeze puts in, or a Reshape that provably does nothing else; none if unknown."""
    x, made = node.inputs[0], node.outputs[0]
    if node.op == "Unsqueeze":
        rank, axes = types.rank(x) if x is not None else None, listed_axes(node) or []
        return sorted(a % (rank + len(axes)) for a in axes) if rank is not None else []
    dims, wide = (types.shape(v) if v is not None else None for v in (x, made))
    if dims is None or wide is None or None in dims:
        return []
    axes, rest = [], list(reversed(dims))
    for i, d in enumerate(wide):
        if rest and rest[-1] == d:
            rest.pop()
        elif d == 1:
            axes.append(i)
        else:
            return []
    return [] if rest else axes


class _Region:
    """Nodes whose results, of one rank, get the same axes behind: `exits` are what puts them in."""

    def __init__(self, graph: Graph, rank: int, axes: list[int]) -> None:
        self.graph, self.rank, self.axes = graph, rank, axes
        self.view = WithOnes(rank, axes)
        self.passing: dict[Node, Passing] = {}
        self.exits: dict[Value, Node] = {}
        self.nodes: dict[Node, None] = {}
        self.sources: dict[Value, None] = {}

    @classmethod
    def of(cls, node: Node) -> _Region | None:
        """What can be done behind the axes that a node puts in; None where that is nothing."""
        x = node.inputs[0]
        if x is None or node.graph is None or x.graph is not node.graph:
            return None
        axes = _put_in(node)
        rank = types.rank(x)
        if rank is None or not axes:
            return None
        region = cls(node.graph, rank, axes)
        region._grow(x)
        return region if region.nodes else None

    @property
    def saved(self) -> int:
        return len(self.exits) - sum(not self._merges(v) for v in self.sources if self.with_axes(v) is None)

    def with_axes(self, source: Value) -> Value | None:
        """What has the axes: it was squeezed of them, or somebody puts them in."""
        maker = source.producer
        if maker is None:
            return None
        direct = self.direct(source)
        if direct is not None:
            return direct.output
        if maker.op != "Squeeze" or maker.has_references:
            return None
        x, axes, wide = maker.inputs[0], listed_axes(maker) or (), self.rank + len(self.axes)
        if x is None or types.rank(x) != wide:
            return None
        return x if sorted(a % wide for a in axes) == self.axes else None

    def _merges(self, source: Value) -> bool:
        """Is it made by what may make it with the axes, as the region alone reads it?"""
        maker = source.producer
        if maker is None or source.is_output or not all(u in self.nodes for u in source.users):
            return False
        if maker.op in REDUCTIONS:
            return self._reduces(maker)
        return self._picks(maker) or (maker.op == "Unsqueeze" and listed_axes(maker) is not None)

    def direct(self, source: Value) -> Node | None:
        """A node that puts the axes in, which only depends on the source: it can stand wherever that does."""
        if source.graph is not self.graph or len(source.users) > _FEW:
            return None
        for user in source.users:
            rest = user.inputs[1:]
            if self._is_exit(user) and all(v is not None and v.constant and v.producer is None for v in rest):
                return user
        return None

    def _reduces(self, maker: Node) -> bool:
        """Does it lose these axes? Unsqueeze(Reduce(x, axes), axes) = Reduce(x, axes), dims kept."""
        if maker.keeps_dims or maker.has_references or maker.graph is not self.graph:
            return False
        wide = self.rank + len(self.axes)
        return sorted(a % wide for a in listed_axes(maker) or ()) == self.axes

    def _picks(self, maker: Node) -> bool:
        """Does it pick one place along the axis? Unsqueeze(Gather(x, i)) = Gather(x, [i])."""
        if maker.op != "Gather" or maker.has_references or maker.graph is not self.graph:
            return False
        index = maker.inputs[1]
        if index is None or not index.constant or index.constant_type()[1] != ():
            return False
        return self.axes == [int(maker.attr("axis")) % (self.rank + 1)]

    def _grow(self, value: Value) -> None:
        """From what one Unsqueeze reads, back to where nothing more can be done behind it."""
        open_values = [value]
        while open_values:
            v = open_values.pop()
            maker = v.producer
            if v in self.sources or maker in self.nodes:
                continue
            exits: dict[Value, Node] = {}
            inside = self._closed(v, {}, exits) if maker is not None and self._fits(maker) else None
            if maker is None or inside is None or len(self.nodes) + len(inside) >= _REACH:
                self.sources[v] = None
                continue
            self.nodes.update(inside)
            self.exits.update(exits)
            self.nodes[maker] = None
            open_values += [i for n in (maker, *inside) for i in self.passing[n].seen]

    def _closed(self, value: Value, found: dict[Node, None], exits: dict[Value, Node]) -> dict[Node, None] | None:
        """The nodes behind `value`, which end in `exits`, where the same axes are put in; None where something else
        reads it."""
        if value.is_output or len(value.users) > _FEW:
            return None
        for user in value.users:
            if user in self.nodes or user in found:
                continue
            if self._is_exit(user):
                if exits.setdefault(value, user) is not user:
                    return None  # one of two that are alike, which outputs keep apart
                continue
            if len(found) == _FEW or not self._fits(user):
                return None
            found[user] = None
            if self._closed(user.output, found, exits) is None:
                return None
        return found

    def _is_exit(self, node: Node) -> bool:
        if any(u.op in ("Expand", "Tile") for u in islice(node.outputs[0].users if node.outputs[0] else (), _FEW)):
            return False  # what is repeated along an axis of its own, and joined, is one Gather
        return node.op in _PUT_IN and node.graph is self.graph and _put_in(node) == self.axes

    def _fits(self, node: Node) -> bool:
        """Does it compute as well with the axes put in?"""
        if node.graph is not self.graph or len(node.outputs) != 1:
            return False
        found = passes(node, self.view)
        if found is None or found.axes.last or (found.axes.along and node.op != "Concat"):
            return False
        self.passing[node] = found
        return True


class _Wide(Relayout):
    """The nodes of a region with the axes put in."""

    suffix = "_wide"

    def __init__(self, region: _Region) -> None:
        super().__init__(region.graph, _in_order(region.nodes), region.view, region.passing)
        self.region = region

    def enter(self, v: Value, before: Node) -> Value:
        given = self.region.with_axes(v)
        if given is None:
            return insert_new(self.graph, of_axes(self.graph, "Unsqueeze", v, self.region.axes, before), v, before)
        direct = self.region.direct(v)
        if direct is not None and v.producer is not None:
            self.graph.move_after(direct, v.producer)  # it may stand behind what reads it from now on
        return given

    def hand_out(self, v: Value, new: Value) -> None:
        leaving = self.region.exits.get(v)
        if leaving is not None:
            leaving.output.replace_all_uses_with(new)
            self.graph.remove(leaving)


def _in_order(nodes: Collection[Node]) -> list[Node]:
    """Each behind those that make what it reads."""
    found: dict[Node, None] = {}
    waiting = list(nodes)
    while waiting:
        makers = [v.producer for v in waiting[-1].inputs if v is not None and v.producer in nodes]
        before = [n for n in makers if n is not None and n not in found]
        if before:
            waiting += before
        else:
            found.setdefault(waiting.pop())
    return list(found)
