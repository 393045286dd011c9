"""Work on [batch · heads, …] is work on [batch, heads, …], without the Reshapes that merge the two and take them apart.

PyTorch's `bmm` takes one batch axis: attention that is written with it merges batch and heads for its products, takes
them apart for the mask, merges them for Softmax and the second product, and takes them apart again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import partial
from itertools import islice
from typing import Final

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import SAME_ORDER
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.record import record
from onnxopt.rewriting.axes import Apart, passes
from onnxopt.rewriting.axis_runs import constant_target, product
from onnxopt.rewriting.parts import parts_beside
from onnxopt.rewriting.relayout import Region, Relayout, regions

_QUANTIZERS: Final = frozenset({"DequantizeLinear", "QuantizeLinear"})
_SAID: Final = "what comes in, or goes out, is not said by one Reshape"
_MOST: Final = 4  # axes that are one, and ways to take them apart that are tried


@register
class UnmergeBatches(GraphPass):
    """f(Reshape(x)) = Reshape(f(x)), where the Reshape merges leading axes and f treats what lies along them apart.

    Applies when: a region of nodes (products, Softmax, what works element by element, along other axes or turns them)
    has more Reshapes at its border that do nothing but merge those axes, or take them apart, than it needs then. What
    computes targets that become constant counts, too.
    Keeps: the shape of what is read elsewhere; what is quantized before or behind such a Reshape.
    Not done: where a Reshape at the border would have two unknown dims.
    """

    info = PassInfo("unmerge-batches", opt_level=2, after=("shape-arithmetic",), ops=("Reshape",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.is_function or graph.opset() < 7 or not graph.by_op.get("Reshape"):
            return
        ways = _ways(graph)
        if not ways:
            return
        plans: list[_Plan] = []
        for found in regions(graph, partial(_batch, ways), lambda first: ways[first][0]):
            all_ways = [_Plan(graph, found, view) for view in ways[found.kind]]
            best = max((p for p in all_ways if p.merged), key=lambda p: (p.is_possible, p.saved), default=None)
            if best is not None and best.is_possible and best.saved > 0:
                plans.append(best)
            elif best is not None:
                why = "it would not leave fewer nodes" if best.is_possible else _SAID
                ctx.decline("unmerged", why, repr(best.nodes[0]))
        for plan in _without_odd(plans, ctx):
            now = _Plan(graph, plan.region, plan.view)  # what is beside it may have changed
            if now.is_possible and now.saved > 0 and ctx.spend("unmerged", at=now.nodes[-1]):
                now.carry_out()


def _without_odd(plans: list[_Plan], ctx: PassContext) -> list[_Plan]:
    """The plans without those that would have one of several parts, or products, of one tensor reshaped otherwise.

    Heads are turned together where they are turned alike (merge-parallel), which saves more.
    """
    while True:
        freed = {end.reshape for plan in plans for end in plan.ends.values()}
        odd = [plan for plan in plans if plan.is_beside_alike(freed)]
        if not odd:
            return plans
        for plan in odd:
            ctx.decline("unmerged", "what is beside it is reshaped alike, and stays", repr(plan.nodes[0]))
        plans = [plan for plan in plans if plan not in odd]


def _batch(ways: dict[Shape, list[Apart]], node: Node) -> Shape | None:
    """The first dim (alone) of what the node makes, if there are ways to take it apart."""
    dims = types.shape(node.outputs[0]) if node.outputs and node.outputs[0] is not None else None
    return dims[:1] if dims is not None and len(dims) > 1 and dims[:1] in ways else None


def _ways(graph: Graph) -> dict[Shape, list[Apart]]:
    """By the first dim (alone): those that a Reshape makes one, or makes of one, in front of others that stay."""
    ways: dict[Shape, list[Apart]] = {}
    for node in graph.by_op.get("Reshape", ()):
        x = node.inputs[0]
        dims, made = (types.shape(x) if x is not None else None), types.shape(node.output)
        if dims is None or made is None or len(dims) == len(made):
            continue
        few, many = sorted((dims, made), key=len)
        lead = many[: len(many) - len(few) + 1]
        if len(few) < 2 or len(lead) > _MOST or few[0] in (0, 1, None) or None in lead or many[len(lead) :] != few[1:]:
            continue
        known = ways.get(few[:1], [])
        if lead not in [w.lead for w in known] and len(known) < _MOST and product(lead) == product(few[:1]):
            ways[few[:1]] = [*known, Apart(few[:1], lead)]
    return ways


# -- a region ------------------------------------------------------------------------------------------------------


@record(frozen=True, eq=False)
class _End:
    """Where the region ends: at a value that comes in, or at a reader of one that it makes.

    `reshape`: what is there, of `source`, turned by `perm` behind it (in front of it, where it is a reader); `target`:
    what it becomes, None where it goes.
    """

    saved: int
    source: Value
    reshape: Node | None = None
    target: list[int] | None = None
    perm: tuple[int, ...] | None = None
    transpose: Node | None = None


class _Plan(Relayout):
    """Nodes, in order, whose values have one first dim, which is to be several."""

    view: Apart
    suffix = "_apart"

    def __init__(self, graph: Graph, region: Region[Shape], view: Apart) -> None:
        super().__init__(graph, region.nodes, view, {n: p for n in region.nodes if (p := passes(n, view))})
        self.region, self.more = region, len(view.lead) - 1
        self.merged = 0  # Reshapes that merge, or take apart, and go
        self.is_possible = True
        self.ends: dict[Value, _End] = {}
        self.leaving: dict[Value, list[_End]] = {}
        self.restored: dict[Value, list[int]] = {}
        self._look()
        ends = [*self.ends.values(), *(e for found in self.leaving.values() for e in found)]
        self.merged = sum(e.saved > 0 for e in ends)
        freed = {e.reshape for e in ends if e.reshape is not None and e.saved >= 0}
        self.saved = sum(e.saved for e in ends) - len(self.restored)
        if self.is_possible and self.merged:
            self.saved += _dying(freed)

    def _look(self) -> None:
        for v in self.entering:
            end = self._enters(v)
            if end is None:
                self.is_possible = False
                return
            self.ends[v] = end
        for v in self.made():
            outside = self.outside(v)
            if not outside and not v.is_output:
                continue
            ends = [self._leaves(v, u) for u in outside]
            if v.is_output or None in ends:
                target = _target(self._apart(v), types.shape(v))
                if target is None:
                    self.is_possible = False
                    return
                self.restored[v] = target
            self.leaving[v] = [e for e in ends if e is not None]

    def is_beside_alike(self, freed: Set[Node | None]) -> bool:
        """Would a Reshape have another target than that of another part of the same tensor, which is not `freed`?"""
        for end in self.ends.values():
            if end.reshape is None or end.target is None:
                continue
            made = types.shape(end.reshape.output)
            readers = {part.only_user for part in parts_beside(end.source) if part is not end.source}
            stay = (r for r in readers - freed if r is not None and r.op == "Reshape")
            if any(types.shape(r.output) == made for r in stay):
                return True
        return False

    def _apart(self, v: Value, axis: int = 0) -> Shape:
        dims = types.shape(v) or ()
        return (*dims[:axis], *self.view.lead, *dims[axis + 1 :])

    def _enters(self, v: Value) -> _End | None:
        """What is read in place of a value from outside; None where that cannot be said."""
        wanted, node = self._apart(v), v.producer
        alone = not v.is_output and self.inside.issuperset(v.users)
        x = node.inputs[0] if node is not None and node.op in SAME_ORDER and node.graph is self.graph else None
        if x is not None:
            if _is_quantizer(x.producer) or x.producer in self.inside:
                return None
            if _same(types.shape(x), wanted):
                return _End(int(alone), x, node if alone else None)
            target = _target(types.shape(x), wanted)
            if target is not None:
                return _End(0 if alone else -1, x, node, target)
        if node is not None and node.op == "Transpose" and alone and node.graph is self.graph:
            end = self._enters_turned(node)
            if end is not None:
                return end
        target = _target(types.shape(v), wanted)
        return None if target is None else _End(-1, v, None, target)

    def _enters_turned(self, transpose: Node) -> _End | None:
        """The first axis comes from behind, where a Reshape makes it."""
        y = transpose.inputs[0]
        node = y.producer if y is not None and y.only_user is transpose and not y.is_output else None
        if y is None or node is None or node.op not in SAME_ORDER or node.graph is not self.graph:
            return None
        x, perm = node.inputs[0], order_of(transpose, types.rank(y) or 0)
        if (
            x is None
            or _is_quantizer(x.producer)
            or x.producer in self.inside
            or sorted(perm) != list(range(len(perm)))
        ):
            return None
        wanted, order = self._apart(y, perm[0]), _order_apart(perm, perm[0], self.more)
        if _same(types.shape(x), wanted):
            return _End(1, x, node, None, order, transpose)
        target = _target(types.shape(x), wanted)
        return None if target is None else _End(0, x, node, target, order, transpose)

    def _leaves(self, v: Value, user: Node) -> _End | None:
        """What becomes of a reader outside; None where it needs the value as it is."""
        if user.graph is not self.graph or user.inputs[0] is not v or user.has_references or v.users[user] != 1:
            return None
        transpose, order, dims = None, None, self._apart(v)
        if user.op == "Transpose":
            turned, reader = user.output, user.output.only_user
            perm = order_of(user, types.rank(v) or 0)
            if reader is None or turned.is_output or reader.graph is not self.graph or 0 not in perm:
                return None
            if reader.inputs[0] is not turned or turned.users[reader] != 1 or sorted(perm) != list(range(len(perm))):
                return None
            order = _order_apart(perm, 0, self.more)
            transpose, user, dims = user, reader, tuple(dims[i] for i in order)
        if user.op not in SAME_ORDER or any(_is_quantizer(u) for u in islice(user.output.users, _MOST)):
            return None
        made = types.shape(user.output)
        if _same(dims, made) and not (user.output.is_output and v.is_output):
            return _End(1, v, user, None, order, transpose)
        target = _target(dims, made)
        return None if target is None else _End(0, v, user, target, order, transpose)

    # -- doing it --------------------------------------------------------------------------------------------------

    def enter(self, v: Value, before: Node) -> Value:
        end = self.ends[v]
        x = end.source
        if end.target is not None:
            like = end.transpose.inputs[0] if end.transpose is not None else v
            assert like is not None
            axis = 0 if end.transpose is None else order_of(end.transpose, types.rank(like) or 0)[0]
            x = self.new(like, self._apart(like, axis))
            self.reshape(end.source, end.target, x, before)
        return x if end.transpose is None else self._turn(end.transpose, x, end.perm or (), self._apart(v), before)

    def hand_out(self, v: Value, new: Value) -> None:
        """A result of the graph keeps its name."""
        for end in self.leaving.get(v, ()):
            new = self._leave(new, end)
        if v in self.restored:
            self.graph.take_over(v, self.reshape(new, self.restored[v], None, v.producer))

    def _leave(self, new: Value, end: _End) -> Value:
        """Returns what is `new` from then on."""
        reader, x = end.reshape, new
        assert reader is not None
        if end.transpose is not None:
            dims = self._apart(end.source)
            x = self._turn(end.transpose, new, end.perm or (), tuple(dims[i] for i in end.perm or ()), reader)
        made = reader.output
        if end.target is not None:
            self.graph.take_over(made, self.reshape(x, end.target, None, reader))
        else:
            read = made.replace_all_uses_with(x)
            new = read if x is new else new
        self.graph.remove(reader)
        if end.transpose is not None:
            self.graph.remove(end.transpose)
        return new

    def _turn(self, like: Node, x: Value, perm: Sequence[int], dims: Shape, before: Node) -> Value:
        value = self.new(like.output, dims)
        self.graph.insert(like.copy([x], [value]), before).set_attr("perm", list(perm))
        return value


def _order_apart(perm: Sequence[int], axis: int, more: int) -> tuple[int, ...]:
    """`perm`, where `axis` is that one and `more` axes behind it."""
    found: list[int] = []
    for i in perm:
        found += range(i, i + more + 1) if i == axis else [i + more * (i > axis)]
    return tuple(found)


def _target(dims: Shape | None, wanted: Shape | None) -> list[int] | None:
    return None if dims is None or wanted is None or None in wanted else constant_target(dims, wanted)


def _same(dims: Shape | None, wanted: Shape | None) -> bool:
    return dims is not None and dims == wanted and None not in dims


def _is_quantizer(node: Node | None) -> bool:
    return node is not None and node.op in _QUANTIZERS


def _dying(freed: Iterable[Node]) -> int:
    """How many nodes nothing reads any more once these read no target."""
    gone, count = set(freed), 0
    todo: list[Value | None] = [v for n in gone for v in n.inputs[1:]]
    while todo:
        v = todo.pop()
        node = v.producer if v is not None else None
        if node is None or node in gone or node.graph is None or not node.graph.is_pure(node):
            continue
        if all(not w.is_output and gone.issuperset(w.users) for w in node.outputs if w is not None):
            gone.add(node)
            count += 1
            todo += node.inputs
    return count
