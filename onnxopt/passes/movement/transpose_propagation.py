"""Regions independent of the axis order, permuted as a whole to cancel the surrounding Transposes.

Exporters of channels-last frameworks put a Transpose before and behind each convolution. Operators in between work
elementwise, or along axes that can be renamed. In the convolutions' order the region needs no Transpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import known_order, order_of
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node, sole_reader
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import make_node
from onnxopt.rewriting.axes import AnyOrder, LeadingOrder, Passing, Turned, rank_of
from onnxopt.rewriting.index_maps import after, constant_target, inverse
from onnxopt.rewriting.parts import is_reshape
from onnxopt.rewriting.relayout import End, Region, Relayout, all_passing, regions

Perm = tuple[int, ...]
Passed = Mapping[Node, Passing]


@register
class TransposePropagation(GraphPass):
    """f(Transpose(x, p)) = Transpose(f'(x), p), where f' is f with renamed axes: Transposes meet and cancel.

    Applies when: a region of operators that work elementwise, broadcast, or along constant axes (Concat, Split,
    Softmax, Reduce, Pad, Slice, quantizers) has more Transposes at its border than the permuted region needs, and no
    more elements are moved. Where the last axis stays, products with a matrix and normalizations belong to the region.
    A Transpose of axes of size 1 next to a Reshape does not count.
    Keeps: values with other readers, and outputs, in their order, by a counted Transpose.
    Not done: opsets before 7; Softmax before opset 13, which merges all later axes.
    """

    # After: indices from NonZero are picked as columns, which become rows by a Transpose.
    info = PassInfo(
        "transpose-propagation", opt_level=2, after=("gather-grids",), before=("flatten-rows",), ops=("Transpose",)
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.is_function or graph.opset() < 7 or not graph.by_op.get("Transpose"):
            return
        views = AnyOrder, LeadingOrder
        while sum(self._turn_regions(graph, ctx, view) for view in views):
            pass  # permuted nodes may form a larger region with others

    def _turn_regions(self, graph: Graph, ctx: PassContext, view: type[AnyOrder]) -> bool:
        """Turn regions, those that save most Transposes first: neighbours count the same Transposes between them.

        Small regions first where the last axis stays: products before heads, not all residuals between.
        """
        turned = False
        is_end = _turns_leading if view is LeadingOrder else None
        found = regions(graph, ("Transpose",), _rank, view, is_end)
        plans = [(p, r) for r in found if (p := _best(graph, r, view, {n: r.passing[n] for n in r.nodes})) is not None]
        plans.sort(key=lambda found: len(found[0].nodes) if view is LeadingOrder else -found[0].gain)
        for plan, region in plans:
            now = _best(graph, region, view) if turned and plan.gain > 0 else plan
            if now is not None and now.gain < 1:
                ctx.decline("turned", "it would not leave fewer Transposes", repr(region.nodes[0]))
            elif now is not None and ctx.spend("turned", at=now.nodes[-1]):
                now.carry_out()
                turned = True
        return turned


def _best(graph: Graph, region: Region[int], view: type[AnyOrder], passing: Passed | None = None) -> _Plan | None:
    """Return the plan of the order that saves most Transposes; None if no order cancels any."""
    any_order = view(region.kind)
    if passing is None:
        passing = all_passing(region.nodes, any_order)
    plans = [_Plan(graph, region, q, passing) for q in _orders(graph, region, any_order, passing)]
    return max(plans, key=lambda p: p.gain, default=None)


def _rank(node: Node) -> int | None:
    rank = rank_of(node)
    return rank if rank is not None and rank > 1 else None


def _turns_leading(node: Node) -> bool:
    """Whether the node, a Transpose, keeps the last axis in its place."""
    perm = node.attr("perm")
    return bool(perm) and perm[-1] == len(perm) - 1


def _orders(graph: Graph, found: Region[int], view: AnyOrder, passing: Passed) -> list[Perm]:
    """Return the two most common orders that cancel Transposes at the border."""
    region, rank, count = Relayout(graph, found.nodes, view, passing), found.kind, Counter[Perm]()
    count.update(inverse(order_of(t, rank)) for v in region.entering if (t := v.producer) and _turns(t, rank))
    readers = (u for v in region.made() for u in region.outside(v) if u.graph is graph)
    count.update(order_of(u, rank) for u in readers if _turns(u, rank))
    kept = rank - 1 if isinstance(view, LeadingOrder) else rank
    return [q for q, _ in count.most_common(2) if q != tuple(range(rank)) and q[kept:] == tuple(range(kept, rank))]


def _turns(node: Node, rank: int) -> bool:
    """Whether the node is a valid Transpose of this rank. onnx infers a shape even for an invalid permutation."""
    x = node.inputs[0] if node.op == "Transpose" else None
    return x is not None and types.rank(x) in (None, rank) and known_order(node, rank) is not None


class _Plan(Relayout):
    """Nodes, in order, to be permuted to order `q`. `gain`: Transposes saved, 0 if more elements would be moved.

    A Transpose equivalent to a Reshape, next to a Reshape, does not count.
    """

    suffix = "_turned"

    def __init__(self, graph: Graph, found: Region[int], q: Perm, passing: Passed) -> None:
        super().__init__(graph, found.nodes, Turned(q), passing)
        self.q, self.back, self.identity = q, inverse(q), tuple(range(found.kind))
        self.look()
        in_order = all(self.view.keeps(p.axes.made, found.kind) for p in self.passing.values())
        self.gain = self.saved if self.is_possible and in_order and self.moved <= 0 else 0

    def enters(self, v: Value) -> End[Node] | None:
        """Return the end at an outside value: read the input of its Transpose, or a new Transpose."""
        t, alone = v.producer, not v.is_output and self.inside.issuperset(v.users)
        x = t.inputs[0] if t is not None and _turns(t, len(self.q)) else None
        if t is None or x is None:
            inner = self.inside.issuperset(v.users)
            goes, needed = False, not (inner and is_reshape(types.shape(v), self.q, v.producer))
            x, perm = v, self.q
        elif x.producer in self.inside:
            return None  # used in two orders
        else:
            first = order_of(t, len(self.q))
            perm = after(first, self.q)
            goes = alone and not (x.only_user is t and is_reshape(types.shape(x), first, x.producer))
            needed = perm != self.identity

        def write(before: Node) -> Value:
            return x if perm == self.identity else self._transpose(x, perm, self.new(v), before).output

        return End(goes - needed, write, _size(v) * (needed - goes))

    def leaves(self, v: Value, user: Node) -> End[Value] | None:
        """Return the end at an outside Transpose, perhaps behind a Reshape that splits the axes in place: with a new
        permutation, or removed."""
        turn, q, target = self._turn_behind(v, user)
        if turn is None:
            return None
        first, reader, dims = order_of(turn, len(q)), turn.output.only_user, types.shape(turn.inputs[0])
        perm = after(inverse(q), first)
        goes = not is_reshape(dims, first, reader)
        cancels = perm == tuple(range(len(q))) and not turn.output.is_output
        needed = not cancels and not is_reshape(dims and [dims[i] for i in q], perm, reader)

        def write(new: Value) -> Value:
            x = new if target is None else self._split(new, target, user)
            if cancels:
                turn.output.replace_all_uses_with(x)
                self.graph.remove(turn)
            else:
                turn.set_input(0, x)
                turn.set_attr("perm", list(perm))
            if user is not turn:
                self.graph.remove(user)
            return new

        return End(goes - needed, write, _size(v) * (needed - goes))

    def _turns_here(self, node: Node, rank: int) -> bool:
        return node.graph is self.graph and _turns(node, rank)

    def _turn_behind(self, v: Value, user: Node) -> tuple[Node | None, Perm, Sequence[int] | None]:
        """Return the Transpose that reads `v`, the order of its axes, and the target of a Reshape between the two; no
        Transpose if there is none."""
        if user.graph is not self.graph or user.op != "Reshape":
            return user if self._turns_here(user, len(self.q)) else None, self.q, None
        turn, dims, split = sole_reader(user.output, "Transpose"), types.shape(v), types.shape(user.output)
        if turn is None or dims is None or split is None or not self._turns_here(turn, len(split)):
            return None, self.q, None
        moved = max((i + 1 for i, axis in enumerate(self.q) if i != axis), default=0)
        q = *self.q[:moved], *range(moved, len(split))
        is_kept = split[:moved] == dims[:moved] and None not in dims[:moved] and user.inputs[0] is v
        target = constant_target(self.view.dims(dims), [split[i] for i in q]) if is_kept else None
        return turn if target is not None else None, q, target

    def _split(self, x: Value, target: Sequence[int], like: Node) -> Value:
        """Return a Reshape of `x` in place of `like`."""
        sizes = self.graph.constant(np.array(target, np.int64), f"{x.name}_shape", like)
        result = Value(self.graph.model.names.fresh(like.output.name, self.suffix), self.graph)
        node = Node(make_node("Reshape", "", "", {}), [x, sizes], [result])
        describe_as(node.proto, like.proto)
        self.graph.insert(node, like)
        return result

    def restores(self, v: Value, readers: list[Node]) -> End[Value] | None:
        """Return the end that restores the original order for any other reader."""
        reader = readers[0] if len(readers) == 1 and not v.is_output else None
        needed = not is_reshape(self.seen_dims(v), self.back, reader)

        def write(new: Value) -> Value:
            self.graph.take_over(v, self._transpose(new, self.back, None, v.producer))
            return new

        return End(-needed, write, _size(v) * needed)

    def _transpose(self, x: Value, perm: Perm, result: Value | None, before: Node | None) -> Node:
        node = Node(make_node("Transpose", "", "", {"perm": list(perm)}), [x], [result])
        return self.graph.insert(node, before)


def _size(value: Value) -> float:
    """Return the number of elements, unknown dims as 1: compared values mostly have the same unknown dims."""
    return float(prod(d for d in types.shape(value) or () if isinstance(d, int)))
