"""Operators that do not care about the order of axes are turned as a whole, so that the Transposes around them go.

Exporters of channels-last frameworks put a Transpose before and after each convolution; what lies between works element
by element, or along axes that can be renamed. Turned into the order of the convolutions, the region needs none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.protos import make_node
from onnxopt.rewriting.axes import AnyOrder, Turned, rank_of
from onnxopt.rewriting.axis_runs import after, inverse
from onnxopt.rewriting.parts import is_reshape
from onnxopt.rewriting.relayout import Region, Relayout, regions

Perm = tuple[int, ...]


@register
class TransposePropagation(GraphPass):
    """f(Transpose(x, p)) = Transpose(f'(x), p), f' the same with its axes renamed: Transposes meet, and cancel.

    Applies when: a region of operators that work element by element, broadcast, or along axes that are constant
    (Concat, Split, Softmax, Reduce, Pad, Slice, quantizers) has more Transposes at its border than the turned region
    needs, and these move no more elements. A Transpose that only moves axes of one element, beside a Reshape, is none.
    Keeps: what is read elsewhere, or an output, in its order: by a Transpose that counts against the rest.
    Not done: opsets before 7; Softmax before opset 13, which takes all axes from one on together.
    """

    info = PassInfo("transpose-propagation", opt_level=2, before=("flatten-rows",), ops=("Transpose",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.is_function or graph.opset() < 7 or not graph.by_op.get("Transpose"):
            return
        while self._turn_regions(graph, ctx):
            pass  # what is turned reads what others read, and may be one region with them now

    def _turn_regions(self, graph: Graph, ctx: PassContext) -> bool:
        turned = False
        for found in regions(graph, _rank, AnyOrder):
            region = _Region(graph, found)
            choices = [(region.saving(q), q) for q in region.choices()]
            if not choices:
                continue
            saved, q = max(choices, key=lambda c: c[0])
            if saved < 1:
                ctx.decline("turned", "it would not leave fewer Transposes", repr(region.nodes[0]))
            elif ctx.spend("turned", at=region.nodes[-1]):
                region.turn(q)
                turned = True
        return turned


def _rank(node: Node) -> int | None:
    rank = rank_of(node)
    return rank if rank is not None and rank > 1 else None


# -- a region -------------------------------------------------------------------------------------------------


class _Region(Relayout):
    """Nodes, in order, that work on values of one rank."""

    view: Turned
    suffix = "_turned"

    def __init__(self, graph: Graph, found: Region[int]) -> None:
        super().__init__(graph, found.nodes, AnyOrder(found.kind), found.passing)
        self.rank = found.kind
        self._dropping = [n for n in self.nodes if not self.is_kept(n)]

    def _leaving(self) -> Iterator[tuple[Value, list[Node], bool]]:
        """(value, Transposes outside that read it, does anything else outside?)"""
        for v in self.made():
            outside = self.outside(v)
            transposes = [u for u in outside if u.op == "Transpose" and u.graph is self.graph]
            if outside or v.is_output:
                yield v, transposes, v.is_output or len(transposes) < len(outside)

    def choices(self) -> list[Perm]:
        """The orders that make Transposes at the border cancel, the most common first."""
        count: Counter[Perm] = Counter()
        for v in self.entering:
            if v.producer is not None and v.producer.op == "Transpose":
                count[inverse(order_of(v.producer, self.rank))] += 1
        for _, transposes, _ in self._leaving():
            count.update(order_of(t, self.rank) for t in transposes)
        identity = tuple(range(self.rank))
        return [q for q, _ in count.most_common(2) if q != identity]

    def saving(self, q: Perm) -> int:
        """Transposes less when the region is in the order `q`; 0 where more elements would be moved. One that is a
        Reshape beside another counts for none, before and after."""
        back, identity = inverse(q), tuple(range(self.rank))
        saved, moved = 0, 0.0
        if not all(Turned(q).keeps(self.passing[n].axes.made, self.rank) for n in self._dropping):
            return 0
        for v in self.entering:
            t = v.producer if v.producer is not None and v.producer.op == "Transpose" else None
            if t is not None and t.inputs[0] is not None and t.inputs[0].producer in self.inside:
                return 0  # it works on one value in two orders
            goes = t is not None and not v.is_output and self.inside.issuperset(v.users)
            if t is not None and t.inputs[0] is not None:
                x, perm = t.inputs[0], order_of(t, self.rank)
                goes = goes and not (x.only_user is t and is_reshape(types.shape(x), perm, x.producer))
                needed = after(perm, q) != identity
            else:
                needed = not (self.inside.issuperset(v.users) and is_reshape(types.shape(v), q, v.producer))
            saved += goes - needed
            moved += _size(v) * (needed - goes)
        for v, transposes, others in self._leaving():
            dims = types.shape(v)
            turned = [dims[i] for i in q] if dims is not None else None
            for t in transposes:
                perm, reader = order_of(t, self.rank), t.output.only_user
                cancels = after(back, perm) == identity and not t.output.is_output
                goes = not is_reshape(dims, perm, reader)
                needed = not cancels and not is_reshape(turned, after(back, perm), reader)
                saved += goes - needed
                moved += _size(v) * (needed - goes)
            readers = {u for u in self.outside(v) if u not in transposes}
            reader = readers.pop() if len(readers) == 1 and not v.is_output else None
            needed = others and not is_reshape(turned, back, reader)
            saved -= needed
            moved += _size(v) * needed
        return 0 if moved > 0 else saved

    # -- doing it ----------------------------------------------------------------------------------------

    def turn(self, q: Perm) -> None:
        self.view = Turned(q)
        self.leaving = {v: (transposes, others) for v, transposes, others in self._leaving()}
        self.carry_out()

    def enter(self, v: Value, before: Node) -> Value:
        """What was transposed into its order is read in its own."""
        t, q = v.producer, self.view.order
        if t is not None and t.op == "Transpose" and t.inputs[0] is not None:
            x, perm = t.inputs[0], after(order_of(t, self.rank), q)
            if perm == tuple(range(self.rank)):
                return x
        else:
            x, perm = v, q
        value = self.new(v)
        self._transpose(x, perm, value, before)
        return value

    def _transpose(self, x: Value, perm: Perm, result: Value | None, before: Node | None) -> Node:
        node = Node(make_node("Transpose", "", "", {"perm": list(perm)}), [x], [result])
        return self.graph.insert(node, before)

    def hand_out(self, v: Value, new: Value) -> None:
        """Transposes outside read the turned value, or are it; anything else gets the value in its order."""
        transposes, others = self.leaving.get(v, ([], False))
        back = inverse(self.view.order)
        for t in transposes:
            perm = after(back, order_of(t, self.rank))
            if perm == tuple(range(self.rank)) and not t.output.is_output:
                t.output.replace_all_uses_with(new)
                self.graph.remove(t)
            else:
                t.set_input(0, new)
                t.set_attr("perm", list(perm))
        if others:
            self.graph.take_over(v, self._transpose(new, back, None, v.producer))


def _size(value: Value) -> float:
    """Elements, an unknown dim taken for one: what is compared has the same unknown dims nearly always."""
    return float(prod(d for d in types.shape(value) or () if isinstance(d, int)))
