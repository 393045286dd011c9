"""Regions independent of the axis order, permuted as a whole to cancel the surrounding Transposes.

Exporters of channels-last frameworks put a Transpose before and behind each convolution. Operators in between work
elementwise, or along axes that can be renamed. In the convolutions' order the region needs no Transpose.
"""

from __future__ import annotations

from collections import Counter
from copy import copy

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import known_order, order_of
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.axes import AnyOrder, LeadingOrder, Turned, axes_of
from onnxopt.rewriting.index_maps import after, inverse, same
from onnxopt.rewriting.regions import Region, regions
from onnxopt.rewriting.relayout import Relayout

Perm = tuple[int, ...]


@register
class TransposePropagation(GraphPass):
    """f(Transpose(x, p)) = Transpose(f'(x), p), where f' is f with renamed axes: Transposes meet and cancel.

    Applies when: a region of operators that work elementwise, broadcast, or along constant axes (Concat, Split,
    Softmax, Reduce, Pad, Slice, quantizers) has more Transposes at its border than the permuted region needs, and no
    more elements are moved. Where the last axis stays, products with a matrix and normalizations belong to the region.
    Operators at the border, Reshapes as well, are the fewest for what they do together.
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
        while self._turn_regions(graph, ctx, AnyOrder):
            pass  # permuted nodes may form a larger region with others
        self._turn_regions(graph, ctx, LeadingOrder)

    def _turn_regions(self, graph: Graph, ctx: PassContext, view: type[AnyOrder]) -> bool:
        """Turn regions, those that save most Transposes first: neighbours count the same Transposes between them.

        Small regions first where the last axis stays: products before heads, not all residuals between.
        """
        turned = False
        is_end = _turns_leading if view is LeadingOrder else None
        found = regions(graph, ("Transpose",), _rank, view, is_end)
        plans = [(p, r) for r in found if (p := _best(graph, r, view)) is not None]
        plans.sort(key=lambda found: len(found[0].nodes) if view is LeadingOrder else -found[0].gain)
        for plan, region in plans:
            now = _best(graph, region, view) if turned and plan.gain > 0 else plan
            if now is not None and now.gain < 1:
                ctx.decline("turned", "it would not leave fewer Transposes", repr(region.nodes[0]))
            elif now is not None and ctx.spend("turned", at=now.nodes[-1]):
                now.carry_out()
                turned = True
        return turned


def _best(graph: Graph, region: Region[int], view: type[AnyOrder]) -> _Plan | None:
    """Return the plan of the order that saves most Transposes; None if no order cancels any."""
    plan, rank = _Plan(graph, region.nodes, region.view), region.kind
    plans = [plan.turned(q) for q in _orders(plan, rank, rank - issubclass(view, LeadingOrder))]
    return max(plans, key=lambda p: p.gain, default=None)


def _rank(node: Node) -> int | None:
    axes = axes_of(node)
    return axes.rank if axes is not None and axes.rank > 1 else None


def _turns_leading(node: Node) -> bool:
    """Whether the node, a Transpose, keeps the last axis in its place."""
    perm = node.attr("perm")
    return bool(perm) and perm[-1] == len(perm) - 1


def _orders(region: Relayout, rank: int, kept: int) -> list[Perm]:
    """Return the two most common orders that cancel Transposes at the border. `kept`: axes from there on stay."""
    count = Counter[Perm]()
    makers = [v.producer for v in region.entering]
    count.update([inverse(order_of(t, rank)) for t in makers if t is not None and _turns(t, rank)])
    readers = [u for users in region.leaving.values() for u in users if u.graph is region.graph]
    count.update([order_of(u, rank) for u in readers if _turns(u, rank)])
    return [q for q, _ in count.most_common(2) if q != tuple(range(rank)) and q[kept:] == tuple(range(kept, rank))]


def _turns(node: Node, rank: int) -> bool:
    """Whether the node is a valid Transpose of this rank. onnx infers a shape even for an invalid permutation."""
    x = node.inputs[0] if node.op == "Transpose" else None
    return x is not None and types.rank(x) in (None, rank) and known_order(node, rank) is not None


class _Plan(Relayout):
    """Nodes, in order, to be permuted. `gain`: nodes saved, 0 if more elements would be moved."""

    view: Turned
    suffix = "_turned"
    gain = 0

    def turned(self, q: Perm) -> _Plan:
        """Return the plan for order `q`; the movers at the border are searched once for all orders."""
        plan = copy(self)
        plan.view, plan.bare = Turned(q), {}
        if all(plan.view.keeps(self.passing[n].axes.made, len(q)) for n in self.fewer) and plan._may_save():
            plan.look()
            plan.gain = plan.saved if plan.is_possible and plan.moved <= 0 else 0
        return plan

    def _may_save(self) -> bool:
        """Whether all movers at the ends are more than the operators surely needed: an upper bound of the nodes
        saved."""
        saved, bare = 0, list[tuple[Value, bool]]()
        for v in self.entering:
            if nodes := self.beside(v):
                saved += self.is_alone(v) and self._most_of(v, nodes, nodes[0], nodes[-1].operands[0])
            else:
                bare.append((v, False))
        for v, users in self.leaving.items():
            behind = [self.beside(v, u) for u in users]
            gains = [self._most_of(v, nodes, nodes[-1], nodes[0].output) if nodes else -1 for nodes in behind]
            saved += sum([gain for gain in gains if gain > 0])
            if v.is_output or -1 in gains:
                bare.append((v, True))
        for v, back in bare:
            if saved <= 0:
                break
            if back or not (self.is_alone(v) and self.is_reduced(v)):
                saved -= len(self.seen(v, back) or ())
        return saved > 0

    def _most_of(self, v: Value, nodes: list[Node], beside: Node, other: Value) -> int:
        """Return the number of movers between `v` in the order and `other`, less the operators needed at least.

        `beside`: the mover next to `v`. Axes in another order need a Transpose, dims of another rank a Reshape.
        """
        dims, seen = types.shape(other), self.seen_dims(v)
        if dims is None or seen is None:
            return len(nodes)
        turns, order = [n for n in nodes if n.op == "Transpose"], self.view.order
        if turns == [beside]:
            perm = order_of(beside, len(order))
            order = after(inverse(perm) if beside.operands[0] is v else perm, order)
        wide = [i for i, d in zip(order, seen) if d != 1]
        if wide != sorted(wide) and turns in ([], [beside]):
            return len(nodes) - 1 - (len(dims) != len(seen))
        return len(nodes) - (dims != seen and not same(dims, seen))
