"""Computes nodes on [batch · heads, …] with [batch, heads, …] instead, without the Reshapes in between.

PyTorch's `bmm` has a single batch axis: attention written with `bmm` merges batch and heads for the first product,
splits both for the mask, merges for Softmax and the second product, and splits again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from onnxopt.analysis import types
from onnxopt.graph import Graph, Shape
from onnxopt.graph.node import Node, producer
from onnxopt.operators import SAME_ORDER
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, option, register
from onnxopt.rewriting.axes import Made, To, View
from onnxopt.rewriting.index_maps import elements
from onnxopt.rewriting.regions import Region, regions
from onnxopt.rewriting.relayout import Relayout

_SAID: Final = "a value at the border cannot be made by one Reshape"
_MATRIX: Final = 2  # axes
_QUANTIZERS: Final = frozenset({"DequantizeLinear", "QuantizeLinear"})
_MAX_SPLITS: Final = 4  # merged axes, and alternative splits tried
Kind: TypeAlias = tuple[Shape, int]  # first dim and rank: a batch of (2, 1) is 2, too, on both sides of its Reshapes


class Apart(View):
    """The first axis split into several."""

    def __init__(self, first: Shape, lead: Shape) -> None:
        super().__init__()
        self.first, self.lead = first, lead

    def has(self, dims: Shape) -> bool:
        return dims[:1] == self.first

    def becomes(self, rank: int) -> tuple[To, int]:
        n = len(self.lead)
        return (tuple(range(n)), *((i + n,) for i in range(rank - 1))), rank - 1 + n

    def dims(self, dims: Shape) -> Shape:
        return (*self.lead, *dims[1:])

    def keeps(self, made: Made, rank: int) -> bool:
        return made[:1] == (0,)


@register
@dataclass(eq=False, repr=False)
class UnmergeBatches(GraphPass):
    """f(Reshape(x)) = Reshape(f(x)), where the Reshape merges leading axes along which the elements of f are
    independent.

    Applies when: a region of nodes (products, Softmax, elementwise operators, on other axes or permuting them) has more
    Reshapes at its border, merging or splitting only the batch axes, than the unmerged region needs.
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
        found = regions(graph, (*SAME_ORDER, "Transpose"), partial(_batch, ways), lambda kind: ways[kind[0]][0])
        plans = [plan for region in found if (plan := self._best(graph, region, ways[region.kind[0]], ctx)) is not None]
        for plan in plans:
            # Neighbouring regions may have changed.
            now = _Plan(graph, plan.region, plan.view, self.normalizations)
            if now.is_possible and now.saved > 0 and ctx.spend("unmerged", at=now.nodes[-1]):
                now.carry_out()

    def _best(self, graph: Graph, region: Region[Kind], ways: list[Apart], ctx: PassContext) -> _Plan | None:
        """Return the plan that saves most nodes, of all splits of the first axis; None if none saves any."""
        plans = [_Plan(graph, region, way, self.normalizations) for way in ways]
        best = max((p for p in plans if p.merged), key=lambda p: (p.is_possible, p.saved), default=None)
        if best is None or (best.is_possible and best.saved > 0):
            return best
        why = "it would not leave fewer nodes" if best.is_possible else _SAID
        ctx.decline("unmerged", why, repr(best.nodes[0]))
        return None


def _batch(ways: dict[Shape, list[Apart]], node: Node) -> Kind | None:
    """Return the first dim of a node's result, as a tuple, and the rank; None if `ways` has no split of the dim."""
    dims = types.dims_of(node.outputs[0]) if node.outputs else ()
    return (dims[:1], len(dims)) if len(dims) > 1 and dims[:1] in ways else None


def _ways(graph: Graph) -> dict[Shape, list[Apart]]:
    """Return the splits of a first dim found in Reshapes of leading axes."""
    ways: dict[Shape, list[Apart]] = {}
    for node in graph.by_op.get("Reshape", ()):
        few, many = sorted((types.dims_of(node.inputs[0]), types.dims_of(node.output)), key=len)
        lead = many[: len(many) - len(few) + 1]
        if not _is_split(few, many, lead):
            continue
        known = ways.get(few[:1], [])
        if lead not in [w.lead for w in known] and len(known) < _MAX_SPLITS and elements(lead) == elements(few[:1]):
            ways[few[:1]] = [*known, Apart(few[:1], lead)]
    return ways


def _is_split(few: Shape, many: Shape, lead: Shape) -> bool:
    """Whether `many` has the axes `lead` in place of the first axis of `few`."""
    if not 1 < len(few) < len(many) or len(lead) > _MAX_SPLITS:
        return False
    return few[0] not in (0, 1, None) and None not in lead and many[len(lead) :] == few[1:]


class _Plan(Relayout):
    """Nodes, in order, with a common first axis to be split."""

    view: Apart
    suffix = "_apart"

    def __init__(self, graph: Graph, region: Region[Kind], view: Apart, worth: int) -> None:
        """`worth`: number of Reshapes counted for an Add with a LayerNormalization, in matrices."""
        self.region, self.more = region, len(view.lead) - 1
        super().__init__(graph, region.nodes, view)
        self.look()
        self.merged = sum(e.saved > 0 for e in self.all_ends)  # removed Reshapes that merge or split
        if self.is_possible and self.merged:
            if self.more == 1 and len(types.dims_of(self.nodes[0].output)) == _MATRIX:
                self.saved -= worth * sum(self._reads_sum_apart(n) for n in self.nodes)

    def _reads_sum_apart(self, node: Node) -> bool:
        """Return whether the node is a LayerNormalization that reads an Add, perhaps once a Reshape is removed."""
        v = node.inputs[0] if node.op == "LayerNormalization" else None
        end = None if v is None else self.ends.get(v)
        moves = end.moves if end is not None else None
        return producer(v if moves is None or moves.steps else moves.source, "Add") is not None

    def keeps(self, node: Node | None) -> bool:
        """Return whether the node is a quantizer."""
        return node is not None and node.op in _QUANTIZERS
