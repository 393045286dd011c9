"""Computes nodes on [batch · heads, …] with [batch, heads, …] instead, without the Reshapes in between.

PyTorch's `bmm` has a single batch axis: attention written with `bmm` merges batch and heads for the first product,
splits both for the mask, merges for Softmax and the second product, and splits again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Final

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import known_order
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import SAME_ORDER
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, option, register
from onnxopt.rewriting.axes import Apart, Passing
from onnxopt.rewriting.axis_runs import product
from onnxopt.rewriting.parts import parts_beside
from onnxopt.rewriting.relayout import End, Region, Reshaped, regions
from onnxopt.startup.record import record

_SAID: Final = "a value at the border cannot be made by one Reshape"
_MATRIX: Final = 2  # axes
_MAX_SPLITS: Final = 4  # merged axes, and alternative splits tried


@register
@record(frozen=True)
class UnmergeBatches(GraphPass):
    """f(Reshape(x)) = Reshape(f(x)), where the Reshape merges leading axes along which the elements of f are
    independent.

    Applies when: a region of nodes (products, Softmax, elementwise operators, on other axes or permuting them) has more
    Reshapes at its border, merging or splitting only the batch axes, than the unmerged region needs. Dead computations
    of Reshape targets count, too.
    The option `normalizations` has the meaning of the option of flatten-rows.
    Keeps: the shape of values with other readers; quantized values next to a border Reshape.
    Not done: a Reshape with two unknown dims at the border.
    """

    info = PassInfo("unmerge-batches", opt_level=2, after=("shape-arithmetic", "reshape-chains"), ops=("Reshape",))
    normalizations: int = option(0, "so many Reshapes an Add with a LayerNormalization is worth, if of matrices")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.is_function or graph.opset() < 7 or not graph.by_op.get("Reshape"):
            return
        ways = _ways(graph)
        if not ways:
            return
        plans: list[_Plan] = []
        for found in regions(graph, (*SAME_ORDER, "Transpose"), partial(_batch, ways), lambda first: ways[first][0]):
            first, *others = ways[found.kind]
            passing = [found.passing, *({} for _ in others)]
            all_ways = [_Plan(graph, found, w, p, self.normalizations) for w, p in zip((first, *others), passing)]
            best = max((p for p in all_ways if p.merged), key=lambda p: (p.is_possible, p.saved), default=None)
            if best is not None and best.is_possible and best.saved > 0:
                plans.append(best)
            elif best is not None:
                why = "it would not leave fewer nodes" if best.is_possible else _SAID
                ctx.decline("unmerged", why, repr(best.nodes[0]))
        for plan in _without_odd(plans, ctx):
            # Neighbouring regions may have changed.
            now = _Plan(graph, plan.region, plan.view, plan.passing, self.normalizations)
            if now.is_possible and now.saved > 0 and ctx.spend("unmerged", at=now.nodes[-1]):
                now.carry_out()


def _without_odd(plans: list[_Plan], ctx: PassContext) -> list[_Plan]:
    """Return the plans without those that would reshape one of several sibling parts or products differently.

    The pass merge-parallel transposes equal heads together, and saves more.
    """
    while True:
        freed = {end.node for plan in plans for end in plan.ends.values()}
        odd = [plan for plan in plans if plan.is_beside_alike(freed)]
        if not odd:
            return plans
        for plan in odd:
            ctx.decline("unmerged", "a part of the same tensor is reshaped alike, and stays", repr(plan.nodes[0]))
        plans = [plan for plan in plans if plan not in odd]


def _batch(ways: dict[Shape, list[Apart]], node: Node) -> Shape | None:
    """Return the first dim of a node's result as a tuple, or None if `ways` has no split of the dim."""
    dims = types.shape(node.outputs[0]) if node.outputs and node.outputs[0] is not None else None
    return dims[:1] if dims is not None and len(dims) > 1 and dims[:1] in ways else None


def _ways(graph: Graph) -> dict[Shape, list[Apart]]:
    """Return the splits of a first dim found in Reshapes of leading axes."""
    ways: dict[Shape, list[Apart]] = {}
    for node in graph.by_op.get("Reshape", ()):
        x = node.inputs[0]
        dims, made = (types.shape(x) if x is not None else None), types.shape(node.output)
        if dims is None or made is None or len(dims) == len(made):
            continue
        few, many = sorted((dims, made), key=len)
        lead = many[: len(many) - len(few) + 1]
        if (
            len(few) < 2
            or len(lead) > _MAX_SPLITS
            or few[0] in (0, 1, None)
            or None in lead
            or many[len(lead) :] != few[1:]
        ):
            continue
        known = ways.get(few[:1], [])
        if lead not in [w.lead for w in known] and len(known) < _MAX_SPLITS and product(lead) == product(few[:1]):
            ways[few[:1]] = [*known, Apart(few[:1], lead)]
    return ways


# -- a region ------------------------------------------------------------------------------------------------------


class _Plan(Reshaped):
    """Nodes, in order, with a common first axis to be split."""

    view: Apart
    suffix = "_apart"

    def __init__(
        self, graph: Graph, region: Region[Shape], view: Apart, passing: Mapping[Node, Passing], worth: int
    ) -> None:
        """`worth`: number of Reshapes counted for an Add with a LayerNormalization, in matrices."""
        self.region, self.more = region, len(view.lead) - 1
        super().__init__(graph, region.nodes, view, passing)
        self.look()
        self.merged = sum(e.saved > 0 for e in self.all_ends)  # removed Reshapes that merge or split
        if self.is_possible and self.merged:
            if self.more == 1 and len(types.shape(self.nodes[0].output) or ()) == _MATRIX:
                self.saved -= worth * self.normalized_sums
            self.saved += _dying(e.node for e in self.all_ends if e.node is not None and e.saved >= 0)

    def is_beside_alike(self, freed: Set[Node | None]) -> bool:
        """Whether a Reshape's target would differ from the target of a sibling part not in `freed`."""
        for end in self.ends.values():
            if end.node is None or not end.target or end.source is None:
                continue
            made = types.shape(end.node.output)
            readers = {part.only_user for part in parts_beside(end.source) if part is not end.source}
            stay = (r for r in readers - freed if r is not None and r.op == "Reshape")
            if any(types.shape(r.output) == made for r in stay):
                return True
        return False

    def enters(self, v: Value) -> End[Node] | None:
        """Return the end at an outside value; behind a Transpose, the split axis is moved through the Transpose."""
        transpose = v.producer
        y = transpose.inputs[0] if transpose is not None and transpose.op == "Transpose" else None
        alone = not v.is_output and self.inside.issuperset(v.users)
        node = y.producer if y is not None and alone and y.only_user is transpose and y.graph is self.graph else None
        x = node.inputs[0] if node is not None and node.op in SAME_ORDER else None
        if transpose is None or y is None or x is None or self.keeps(x.producer) or x.producer in self.inside:
            return super().enters(v)
        dims = types.shape(y) or ()
        perm = known_order(transpose, types.rank(y))
        if not perm:
            return super().enters(v)
        axis, order = perm[0], _order_apart(perm, perm[0], self.more)
        wanted = (*dims[:axis], *self.view.lead, *dims[axis + 1 :])
        target = self.sizes(types.shape(x), wanted)
        if target is None:
            return super().enters(v)

        def write(before: Node) -> Value:
            read = self.reshape(x, target, self.new(y, wanted), before).output if target else x
            return self._turn(transpose, read, order, before)

        return End(int(not target), write, node=node, source=x, target=target)

    def leaves(self, v: Value, user: Node) -> End[Value] | None:
        """Return the end at an outside reader; a Transpose before the Reshape stays, with more axes."""
        if user.op != "Transpose" or user.graph is not self.graph or v.users[user] != 1 or user.has_references:
            return super().leaves(v, user)
        reader, perm = user.output.only_user, known_order(user, types.rank(v))
        if reader is None or reader.graph is not self.graph or perm is None:
            return None
        if reader.inputs[0] is not user.output or user.output.users[reader] != 1:
            return None
        order, dims = _order_apart(perm, 0, self.more), self.seen_dims(v) or ()
        target = self.sizes_for(v, reader, tuple(dims[i] for i in order))
        if target is None:
            return None

        def write(new: Value) -> Value:
            self.read_by(reader, self._turn(user, new, order, reader), target, new)
            self.graph.remove(user)
            return new

        return End(int(not target), write, node=reader)

    def _turn(self, like: Node, x: Value, perm: Sequence[int], before: Node) -> Value:
        dims = types.shape(x) or ()
        value = self.new(like.output, tuple(dims[i] for i in perm))
        self.graph.insert(like.copy([x], [value]), before).set_attr("perm", list(perm))
        return value


def _order_apart(perm: Sequence[int], axis: int, more: int) -> tuple[int, ...]:
    """Return `perm` with `axis` followed by `more` further axes."""
    found: list[int] = []
    for i in perm:
        found += range(i, i + more + 1) if i == axis else [i + more * (i > axis)]
    return tuple(found)


def _dying(freed: Iterable[Node]) -> int:
    """Return the number of nodes left without readers once these nodes read no target."""
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
