"""Axes of one element that are put into what is computed, or taken out of it, are put into what it is computed of."""

from __future__ import annotations

from itertools import islice
from typing import Final

from onnxopt.analysis import types
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import REDUCTIONS, broadcasts
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.axes import Passing, View, WithOnes, WithoutOnes, passes
from onnxopt.rewriting.forms import listed_axes
from onnxopt.rewriting.parts import insert_new, of_axes
from onnxopt.rewriting.relayout import End, Relayout

_BACK: Final = {"Unsqueeze": "Squeeze", "Squeeze": "Unsqueeze"}
_REACH: Final = 16  # nodes of one region
_FEW: Final = 4  # readers of one value


@register
class AxesFirst(GraphPass):
    """Unsqueeze(f(x)), Unsqueeze(g(x)) = f(Unsqueeze(x)), g(Unsqueeze(x)); that may be one with an Unsqueeze before.

    So Squeeze. So of what was squeezed of these axes, picked along the axis, or reduced over the axes before: f works
    with them. Unsqueeze(p) for each part p of Split(x) = the parts of Split(Unsqueeze(x)); so Squeeze.

    Applies when: between are operators that work element by element, of constants or of values of one rank, Concat and
    Split; nobody reads what they make but such, and what puts in the same axes, Unsqueezes and Reshapes, or takes them
    out; and fewer nodes are left. Cosines and sines of positions get their axis for the heads like that; the half that
    rotary positions turn loses and gets its axis around a Neg; variances, which JAX computes without the axes, keep
    them; what a detector picks of each box is bounded with the axis along which all is joined; scales and shifts that
    are made of an embedding at once are taken apart, and broadcast along the tokens.
    Keeps: large constants that something else reads.
    """

    # After: Slices are a Split, Unsqueezes in a row are one, and what is computed twice is computed once.
    info = PassInfo(
        "axes-first",
        opt_level=1,
        after=("merge-chains", "common-subexpressions", "slices-to-split", "stacks-to-split"),
        ops=("Unsqueeze", "Reshape", "Squeeze"),
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 7:
            return  # attributes say which axes broadcast
        for node in [n for op in ("Unsqueeze", "Squeeze", "Reshape") for n in graph.by_op.get(op, ())]:
            for op in _BACK if node.op == "Reshape" else (node.op,):
                if node.graph is None:
                    break  # it went with another
                region = _Region.of(node, op)
                changed = _Changed(region) if isinstance(region, _Region) else None
                if isinstance(region, str):
                    ctx.decline("moved", region, repr(node))
                elif changed is not None and changed.saved < 1:
                    ctx.decline("moved", "it would not leave fewer nodes", repr(node))
                elif changed is not None and ctx.spend("moved", at=node):
                    changed.carry_out()


def _axes(node: Node, op: str) -> list[int]:
    """The axes, in order, that an Unsqueeze puts in (a Squeeze takes out), or a Reshape that provably does nothing
    else; none if unknown."""
    x, made = node.input(0), node.outputs[0]
    few, many = (types.shape(v) if v is not None else None for v in ((x, made) if op == "Unsqueeze" else (made, x)))
    if node.op == op:
        axes, rank = listed_axes(node) or [], len(many) if many is not None else None
        if op == "Unsqueeze":
            rank = len(few) + len(axes) if few is not None else None
        return sorted(a % rank for a in axes) if rank else []
    return _between(few, many) if node.op == "Reshape" and few is not None and many is not None else []


def _between(few: Shape, many: Shape) -> list[int]:
    """The axes of one element that are in `many` dims and not in `few`, which are the same otherwise."""
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
    """Nodes whose results, of one rank, get the same axes behind, or lose them: `exits` are what does that."""

    def __init__(self, graph: Graph, op: str, rank: int, axes: list[int]) -> None:
        self.graph, self.op, self.axes = graph, op, axes
        self.view: View = WithOnes(rank, axes) if op == "Unsqueeze" else WithoutOnes(rank, axes)
        self.passing: dict[Node, Passing] = {}
        self.exits: dict[Value, Node] = {}
        self.nodes: dict[Node, None] = {}
        self.sources: dict[Value, None] = {}

    @classmethod
    def of(cls, node: Node, op: str) -> _Region | str | None:
        """What can be done behind the axes that a node puts in, or takes out; None where that is nothing, or why."""
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
        """What is the source with the axes put in (or taken out), where it lost (or got) them before."""
        maker = source.producer
        if maker is None or maker.op != _BACK[self.op] or maker.has_references:
            return None
        return maker.inputs[0] if _axes(maker, _BACK[self.op]) == self.axes else None

    def merges(self, source: Value) -> bool:
        """Is it made by what may make it with the axes, or without, as the region alone reads it?"""
        maker = source.producer
        if maker is None or source.is_output or not all(u in self.nodes for u in source.users):
            return False
        if maker.op in REDUCTIONS:
            return self._reduces(maker)
        if maker.op == "Reshape":  # reshape-chains composes them, if the Reshape does something
            x, target = maker.inputs[:2]
            written = target is not None and target.constant and bool(target.array.all())
            return written and x is not None and not types.same_shape(x, source) and not maker.attr("allowzero", 0)
        return self._picks(maker) or (maker.op in ("Unsqueeze", self.op) and listed_axes(maker) is not None)

    def direct(self, source: Value) -> Node | None:
        """A node that puts the axes in, which only depends on the source: it can stand wherever that does."""
        if source.graph is not self.graph or source.producer is None or len(source.users) > _FEW:
            return None
        for user in source.users:
            rest = user.inputs[1:]
            if self._is_exit(user) and all(v is not None and v.constant and v.producer is None for v in rest):
                return user
        return None

    def _reduces(self, maker: Node) -> bool:
        """Does it reduce these axes? Unsqueeze(Reduce(x, axes), axes) = Reduce(x, axes), dims kept; so Squeeze."""
        if maker.keeps_dims == (self.op == "Unsqueeze") or maker.has_references or maker.graph is not self.graph:
            return False
        x = maker.inputs[0]
        wide = types.rank(x) if x is not None else None
        return bool(wide) and sorted(a % (wide or 1) for a in listed_axes(maker) or ()) == self.axes

    def _picks(self, maker: Node) -> bool:
        """Does it pick one place along the axis? Unsqueeze(Gather(x, i)) = Gather(x, [i]); so Squeeze."""
        if maker.op != "Gather" or maker.has_references or maker.graph is not self.graph:
            return False
        x, index = maker.inputs
        wide = types.rank(x) if x is not None else None
        if not wide or index is None or not index.constant:
            return False
        one = () if self.op == "Unsqueeze" else (1,)
        return index.constant_type()[1] == one and self.axes == [int(maker.attr("axis")) % wide]

    def _grow(self, value: Value) -> None:
        """From what one of them reads, back to where nothing more can be done behind it."""
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
            if len(self.nodes) + len(inside) >= _REACH:
                self.sources[v] = None
                continue
            self.nodes.update({**inside, maker: None})
            self.exits.update(exits)
            open_values += [i for n in (maker, *inside) for i in self.passing[n].seen]

    def _is_closed(self, node: Node, found: dict[Node, None], exits: dict[Value, Node]) -> bool:
        """Does nobody read its results but nodes that are `found`, and `exits`, where the same axes are put in?"""
        for value in node.outputs:
            if value is None or value.is_output or len(value.users) > _FEW:
                return False
            for user in value.users:
                if user in self.nodes or user in found or user is node:
                    continue
                if self._is_exit(user):
                    if exits.setdefault(value, user) is not user:
                        return False  # one of two that are alike, which outputs keep apart
                    continue
                if len(found) == _FEW or not self._fits(user):
                    return False
                found[user] = None
                if not self._is_closed(user, found, exits):
                    return False
        return True

    def _is_exit(self, node: Node) -> bool:
        if any(u.op in ("Expand", "Tile") for u in islice(node.outputs[0].users if node.outputs[0] else (), _FEW)):
            return False  # what is repeated along an axis of its own, and joined, is one Gather
        return node.graph is self.graph and node.op in (self.op, "Reshape") and _axes(node, self.op) == self.axes

    def _fits(self, node: Node) -> bool:
        """Does it compute as well with the axes put in?"""
        found = passes(node, self.view) if node.graph is self.graph else None
        if found is None or found.axes.last or (found.axes.along and node.op not in ("Concat", "Split")):
            return False
        self.passing[node] = found
        return True


class _Changed(Relayout):
    """The nodes of a region with the axes put in, or without them."""

    def __init__(self, region: _Region) -> None:
        super().__init__(region.graph, region.nodes, region.view, region.passing)
        self.region, self.suffix = region, "_wide" if region.op == "Unsqueeze" else "_narrow"
        self.look()

    def carry_out(self) -> None:
        self.nodes = [n for n in self.graph if n in self.inside]  # the first reader of a value has it made
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
                self.graph.move_after(direct, v.producer)  # it may stand behind what reads it from now on
            return given

        return End(-(given is None and not region.merges(v)), write)

    def _is_broadcast(self, v: Value) -> bool:
        """Returns whether broadcasting puts the axes in: in front, where each reader has an operand that gets them."""
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
        """Nobody else reads it."""
