"""Constant terms, moved past data movement into the bias of the producer."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.weights.linear import is_finite
from onnxopt.analysis.weights.terms import MOVES, bias_for
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting.replace import bypass

_MAX_TERM: Final = 1 << 14  # elements of a term, as many as a bias


@register
class TermPropagation(GraphPass):
    """T(x W + b)[i] + c = T(x W + b')[i], where b' is b plus c at the elements of part i.

    Applies when: the term is a single number, or has an element for each element of an axis of the product; in between
    are Split (other parts stay), Reshape, Transpose, Squeeze, Unsqueeze without other readers; and the path ends at a
    Gemm, convolution or constant summand. Conditioned transformers scale by 1 plus a part of an embedding; Keras adds
    biases to attention heads; VITS has four such terms. Unlike terms, factors (scale-propagation) also pass products,
    Relu and pooling.
    Keeps: computed biases, and biases with many readers; quantized operators.
    """

    # After: terms directly behind a product are in its bias by then, and axes are inserted before the Split.
    info = PassInfo(
        "term-propagation", opt_level=2, after=("conv-add-folding", "axes-before-split"), ops=("Add", "Sub")
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 7:
            return  # attributes name the broadcast axes
        for node in [n for op in ("Add", "Sub") for n in graph.by_op.get(op, ())]:
            found = _term(node)
            if found is None:
                continue
            x, term = found
            bias = bias_for(x, node, term.astype(np.float64))
            if isinstance(bias, str):
                ctx.decline("propagated", bias, repr(node))
                continue
            array = bias.array.astype(term.dtype)
            if not is_finite(array):
                ctx.decline("propagated", "the folded constant overflows its type", repr(node))
            elif ctx.spend("propagated", at=node):
                old = bias.node.input(bias.place)
                new = graph.constant(array, old.name if old is not None else f"{bias.node.output.name}_bias", bias.node)
                bias.node.set_input(bias.place, new)
                if bias.node.op == "Gemm":
                    bias.node.set_attr("beta", None)
                bypass(graph, node, x)


def _term(node: Node) -> tuple[Value, Array] | None:
    """Return (x, c) of x + c or x - (-c), where x was moved; None if c is not finite, or widens x."""
    for i, j in [(0, 1), (1, 0)] if node.op == "Add" else [(0, 1)]:
        x, c = node.inputs[i], node.inputs[j]
        if x is None or c is None or x.constant or not c.constant or x.producer is None or x.producer.op not in MOVES:
            continue
        data, rank = c.array, types.rank(x)
        if not is_float(data) or data.size > _MAX_TERM or rank is None or data.ndim > rank or not is_finite(data):
            return None
        return x, data if node.op == "Add" else -data
    return None
