"""Constant factors, moved through linear operators into weights.

The usual case is the scale of attention, exported behind heads cut out of a product with weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.weights.onward import downwards
from onnxopt.analysis.weights.upwards import Edit, Reach, are_products, upwards
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import ends_formula, scales_formula
from onnxopt.rewriting.replace import bypass


class _Scaled(NamedTuple):
    """A product x z at `node`, replaced by x after the edits."""

    node: Node
    x: Value
    edits: list[Edit]


@register
class ScalePropagation(GraphPass):
    """T(x W + b) z = T(x (z W) + z b): a constant factor moves into weights, through operators T that move data.

    Applies when: the factor is a single number. All operators in between are linear (Transpose, Reshape, Slice, Split,
    Concat of scaled parts, a product with a scaled operand, average pooling) or keep a positive factor (Relu, MaxPool),
    without other readers except paths to the same factor (rotary embeddings read a query twice). The path ends at a
    product, convolution, normalization or factor with unshared weights, or weights shared by operators with the same
    factor. On the way downstream a constant term is divided by the factor. Also downstream: a factor per channel before
    Transpose, Pad or pooling and a Conv or MatMul.
    Not done: factors of zero, quantized operators, weights that overflow or underflow their type; the last factor of a
    decomposed normalization or Gelu does not move downstream.
    """

    info = PassInfo(
        "scale-propagation", opt_level=2, after=("conv-add-folding", "matmul-scale-folding"), ops=("Mul", "Div")
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 7:
            return  # attributes name the broadcast axes
        for op in ("Mul", "Div"):
            for node in list(graph.by_op.get(op, ())):
                found = _factor(node)
                if found is None:
                    continue
                x, factor = found
                reach = Reach(met={})
                edits = upwards(x, node, factor.reshape(()), reach) if factor.size == 1 else None
                if not reach.all_ask():
                    edits = None
                if edits is None and (ends_formula(x, factor) or scales_formula(node, factor)):
                    reason = "it ends a normalization or Gelu, which runtimes run as one operator"
                    ctx.decline("propagated", reason, repr(node))
                    continue
                if edits is None:
                    edits = downwards(node, factor)
                if edits is None:
                    ctx.decline("propagated", "no weights to go to, or something else reads them", repr(node))
                elif lost := next((e.lost for e in edits if e.lost), ""):
                    ctx.decline("propagated", lost, repr(node))
                elif ctx.spend("propagated", at=node):
                    _carry_out(graph, _Scaled(node, x, edits))
        while _into_shared(graph, ctx):
            pass


def _carry_out(graph: Graph, scaled: _Scaled) -> None:
    for e in scaled.edits:
        e.node.set_input(e.place, graph.constant(e.array, e.old.name, e.node))
    bypass(graph, scaled.node, scaled.x)


def _into_shared(graph: Graph, ctx: PassContext) -> bool:
    """Fold a factor common to all products with the same weights, such as a repeated layer. Returns whether any was
    folded."""
    found: dict[Value, list[_Scaled]] = {}
    for node in (n for op in ("Mul", "Div") for n in graph.by_op.get(op, ())):
        x, factor = _factor(node) or (None, None)
        if x is None or factor is None or factor.size != 1:
            continue
        edits = upwards(x, node, factor.reshape(()), Reach(shared=True)) or []
        weights = [i for i, e in enumerate(edits) if are_products(e.node, e.old)]
        if len(weights) == 1:
            mine = edits.pop(weights[0])
            found.setdefault(mine.old, []).append(_Scaled(node, x, [mine, *edits]))
    changed: set[Node] = set()
    for w, together in found.items():
        each = [{s.node, s.x.producer, *(e.node for e in s.edits)} for s in together]
        nodes = {n for ns in each for n in ns if n is not None}
        # All edits were computed for the same graph, so no node may be edited or removed twice.
        alone = sum(map(len, each)) == len(nodes) and changed.isdisjoint(nodes)
        if len(together) != len(w.users) or not alone or not _agree(together):
            continue
        if ctx.spend("propagated", at=together[0].node):
            scaled = graph.constant(together[0].edits[0].array, w.name, together[0].edits[0].node)
            for s in together:
                s.edits[0].node.set_input(s.edits[0].place, scaled)
                _carry_out(graph, s._replace(edits=s.edits[1:]))
            changed |= nodes
    return bool(changed)


def _agree(together: Sequence[_Scaled]) -> bool:
    """Whether all products scale the shared weights equally, without overflow or underflow."""
    made = together[0].edits[0].array
    if any(e.lost for s in together for e in s.edits):
        return False
    return all(np.array_equal(made, s.edits[0].array) for s in together)


def _factor(node: Node) -> tuple[Value, Array] | None:
    """Return (x, z) of x * z or x / z, z in float64; None for zeros, several varying axes, or a z that widens x."""
    pairs = [(0, 1), (1, 0)] if node.op == "Mul" else [(0, 1)]
    for i, j in pairs:
        x, z = node.inputs[i], node.inputs[j]
        if x is None or z is None or x.constant or not z.constant:
            continue
        data, rank = z.array, types.rank(x)
        if not is_float(data) or rank is None or data.ndim > rank or sum(d != 1 for d in data.shape) > 1:
            return None
        wide = data.astype(np.float64)
        if not np.isfinite(wide).all() or not wide.all():
            return None
        return x, (1.0 / wide if node.op == "Div" else wide)
    return None
