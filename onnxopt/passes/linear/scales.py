"""Constant factors and terms moved into weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, NamedTuple

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.linear import is_finite
from onnxopt.analysis.scale_upstream import Edit, Reach, are_products, upstream_edits
from onnxopt.analysis.terms import MOVES, bias_for
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, array_of, producer
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, RewritePass, option, register
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import (
    Match,
    const,
    either,
    ends_formula,
    only_read_by,
    op,
    quantized,
    rewrite,
    scales_formula,
    var,
)
from onnxopt.rewriting.replace import bypass
from onnxopt.rewriting.rule import FORMULA

_MAX_TERM: Final = 1 << 14  # elements of a term, as many as a bias


class _Scaled(NamedTuple):
    """A product x z at `node`, replaced by x after the edits."""

    node: Node
    x: Value
    edits: list[Edit]


@register
@dataclass(eq=False, repr=False)
class ScalePropagation(GraphPass):
    """T(x W + b) z = T(x (z W) + z b): a constant factor moves into weights, through operators T that move data.

    Applies when: the factor is a single number. All operators in between are linear (Transpose, Reshape, Slice, Split,
    Concat of scaled parts, RotaryEmbedding, a product with a scaled operand, average pooling) or keep a positive factor
    (Relu, MaxPool), without other readers except paths to the same factor (rotary embeddings read a query twice). The
    path ends at a product, convolution, normalization or factor with unshared weights, or weights shared by operators
    with the same factor. On the way downstream a constant term is divided by the factor. Also downstream: a factor per
    channel before Transpose, Pad or pooling and a Conv or MatMul.
    With the option `attention`, Attention(q, k, v, scale = z) = Attention(z q, k, v, scale = 1), unless several queries
    are known: for one query and another scale, onnxruntime copies the keys before it multiplies them.
    Not done: factors of zero, quantized operators, weights that overflow or underflow their type; the last factor of a
    decomposed normalization or Gelu does not move downstream.
    """

    info = PassInfo(
        "scale-propagation",
        opt_level=2,
        after=("conv-add-folding", "matmul-scale-folding"),
        ops=("Mul", "Div", "Attention"),
    )
    attention: int = option(0, "above zero: the scale of an Attention, too")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 7:
            return  # attributes name the broadcast axes
        for node in [n for kind in ("Mul", "Div") for n in graph.by_op.get(kind, ())]:
            found = _factor(node)
            if found is not None:
                _propagate(graph, node, *found, ctx)
        while _into_shared(graph, ctx):
            pass
        for node in graph.by_op.get("Attention", ()) if self.attention > 0 else ():
            _into_queries(graph, node, ctx)


def _into_queries(graph: Graph, node: Node, ctx: PassContext) -> None:
    """Move the scale of an Attention into the weights of its queries."""
    scale, reach = _scale_of(node), Reach(met={})
    if not scale:
        ctx.decline("propagated", "the scale of several queries, or of an unknown width, stays", repr(node))
    elif scale != 1:
        edits = upstream_edits(node.inputs[0], node, np.array(scale), reach)
        if _edit(graph, node, edits if reach.all_agree() else None, ctx):
            node.set_attr("scale", 1.0)


def _scale_of(node: Node) -> float:
    """Return the scale of an Attention; 0 if the scale stays.

    A scale stays if several queries are known, the default's width is unknown, or a function's attribute gives the
    scale. Runtimes refuse scales that are not above zero.
    """
    dims, given = types.dims_of(node.operand(0)), node.attr("scale")
    if node.has_references or len(dims) < 3 or (isinstance(dims[-2], int) and dims[-2] != 1):
        return 0.0
    if given is not None:
        return max(float(given), 0.0)
    heads = node.attr("q_num_heads", 1) if len(dims) == 3 else 1
    return sqrt(heads / dims[-1]) if isinstance(dims[-1], int) and dims[-1] else 0.0


def _propagate(graph: Graph, node: Node, x: Value, factor: Array, ctx: PassContext) -> None:
    """Move a factor upstream, else downstream, into weights."""
    reach = Reach(met={})
    edits = upstream_edits(x, node, factor.reshape(()), reach) if factor.size == 1 else None
    if edits is None or not reach.all_agree():
        if ends_formula(x, factor) or scales_formula(node, factor):
            ctx.decline("propagated", FORMULA, repr(node))
            return
        from onnxopt.analysis.scale_downstream import downstream_edits  # few factors stand before weights

        edits = downstream_edits(node, factor)
    if _edit(graph, node, edits, ctx):
        bypass(graph, node, x)


def _edit(graph: Graph, node: Node, edits: list[Edit] | None, ctx: PassContext) -> bool:
    """Carry out the edits for a factor at `node`; None are declined. Returns whether they were carried out."""
    if edits is None:
        ctx.decline("propagated", "no weights to go to, or something else reads them", repr(node))
    elif ctx.spend("propagated", at=node, unless=next((e.lost for e in edits if e.lost), "")):
        _carry_out(graph, edits)
        return True
    return False


def _carry_out(graph: Graph, edits: Sequence[Edit]) -> None:
    for e in edits:
        e.node.set_input(e.place, graph.constant(e.array, e.old.name, e.node))


def _into_shared(graph: Graph, ctx: PassContext) -> bool:
    """Fold a factor common to all products with the same weights, such as a repeated layer. Returns whether any was
    folded."""
    changed: set[Node] = set()
    for w, together in _by_weights(graph).items():
        nodes = _changed_once(together)
        if len(together) != len(w.users) or not nodes or not changed.isdisjoint(nodes) or not _agree(together):
            continue
        if ctx.spend("propagated", at=together[0].node):
            scaled = graph.constant(together[0].edits[0].array, w.name, together[0].edits[0].node)
            for s in together:
                s.edits[0].node.set_input(s.edits[0].place, scaled)
                _carry_out(graph, s.edits[1:])
                bypass(graph, s.node, s.x)
            changed |= nodes
    return bool(changed)


def _changed_once(together: Sequence[_Scaled]) -> set[Node]:
    """Return the nodes to be edited or removed; none if a node is in two edits, all computed for the same graph."""
    each = [{s.node, s.x.producer, *(e.node for e in s.edits)} for s in together]
    nodes = {n for ns in each for n in ns if n is not None}
    return nodes if sum(map(len, each)) == len(nodes) else set()


def _by_weights(graph: Graph) -> dict[Value, list[_Scaled]]:
    """Return the factors that may move into weights with several readers, by weights; their edit is the first."""
    found: dict[Value, list[_Scaled]] = {}
    for node in (n for kind in ("Mul", "Div") for n in graph.by_op.get(kind, ())):
        x, factor = _factor(node) or (None, None)
        if x is None or factor is None or factor.size != 1:
            continue
        edits = upstream_edits(x, node, factor.reshape(()), Reach(shared=True)) or []
        weights = [i for i, e in enumerate(edits) if are_products(e.node, e.old)]
        if len(weights) == 1:
            mine = edits.pop(weights[0])
            found.setdefault(mine.old, []).append(_Scaled(node, x, [mine, *edits]))
    return found


def _agree(together: Sequence[_Scaled]) -> bool:
    """Whether all products scale the shared weights equally, without overflow or underflow."""
    made = together[0].edits[0].array
    if any(e.lost for s in together for e in s.edits):
        return False
    return all(np.array_equal(made, s.edits[0].array) for s in together)


def _factor(node: Node) -> tuple[Value, Array] | None:
    """Return (x, z) of x * z or x / z, z in float64; None for zeros, several varying axes, or a z that widens x."""
    x, data = _constant_operand(node)
    if x is None or data is None or sum(d != 1 for d in data.shape) > 1:
        return None
    wide = data.astype(np.float64)
    if not np.isfinite(wide).all() or not wide.all():
        return None
    return x, (1.0 / wide if node.op == "Div" else wide)


def _constant_operand(node: Node) -> tuple[Value | None, Array | None]:
    """Return (x, c) of an operator on x and a constant c of floats, not of higher rank than x; else two None."""
    x, c = node.inputs
    if node.op in ("Add", "Mul") and array_of(x) is not None:
        x, c = c, x
    data, dims = array_of(c), types.shape(x)
    if x is None or x.constant or data is None or dims is None or not is_float(data) or data.ndim > len(dims):
        return None, None
    return x, data


def row(m: Match, z: Array, size: int, rank: int | None) -> Array:
    """Return `z` as a factor for each of `size` elements of the last axis; declines for other shapes."""
    m.require(rank is not None and z.ndim <= rank, "the rank is unknown, or would rise")
    m.require(all(d == 1 for d in z.shape[:-1]) and z.size in (1, size), "not one factor per element of the last axis")
    m.require(np.isfinite(z).all() and z.all(), "a factor is zero or not finite")
    return z.reshape(-1).astype(np.float64)


def weights(m: Match, x: Value, w: Array) -> None:
    m.require(w.ndim == 2 and is_float(w), "the weights are no matrix of floats")
    m.require(len(m.value("w").users) == 1, "the weights are shared, and would be there twice")
    m.require(not quantized(m, x), "the product is quantized")


_PRODUCT: Final = op.MatMul(var("x"), const("w"), name="product")


_SUM: Final = op.Add(_PRODUCT, const("b"), name="sum")


@rewrite(either(*(kind(inner, const("z")) for inner in (_PRODUCT, _SUM) for kind in (op.Mul, op.Div))))
def fold_factor(m: Match, x: Value, w: Array, z: Array, b: Array | None = None) -> Value:
    """(x W) z = x (W z), z along the columns; likewise /, and (x W + b) z = x (W z) + b z, the scale of a layer."""
    if b is not None and z.size == 1:
        m.skip()  # scale-propagation handles single numbers more generally
    weights(m, x, w)
    factor, scale = row(m, z, w.shape[1], m.rank(x)), np.divide if m.anchor.op == "Div" else np.multiply
    product = m.op.MatMul(x, m.const(scale(w.astype(np.float64), factor), like=w), like=m.product)
    if b is None:
        return product
    m.require(all(d == 1 for d in b.shape[:-1]) and b.size in (1, w.shape[1]), "what is added is no bias")
    return m.op.Add(product, m.const(scale(b.astype(np.float64), factor), like=b), like=m.sum)


@rewrite(op.MatMul(op.Mul(var("x"), const("z"), name="scaling", shared=True), const("w"), name="product"))
def fold_scaled_rows(m: Match, x: Value, z: Array, w: Array) -> Value:
    """(x z) W = x (z W), z along the rows of W; all readers of x z are such products."""
    m.require(not ends_formula(x, z), FORMULA)
    only_read_by(m, m.scaling, "MatMul")
    weights(m, x, w)
    factor = row(m, z, w.shape[0], m.rank(x))
    m.require(factor.size == 1 or m.dims(x)[-1:] == (factor.size,), "it may widen rows of one element")
    wide = w.astype(np.float64) * (factor if factor.size == 1 else factor[:, None])
    return m.op.MatMul(x, m.const(wide, like=w), like=m.product)


@rewrite(op.MatMul(op.Mul(var("x"), const("z"), name="scaling"), op.Mul(var("y"), const("u")), name="product"))
def join_factors(m: Match, x: Value, z: Array, y: Value, u: Array) -> Value:
    """(x z) (y u) = (x zu) y, for scalars z and u, as in attention with queries and keys scaled by a root each."""
    m.require(z.dtype == u.dtype and z.dtype in (np.float32, np.float64), "half precision is scaled in two steps")
    m.require(z.size == u.size == 1, "a factor for each element")
    m.require(z.ndim <= (m.rank(x) or 0) and u.ndim <= (m.rank(y) or 0), "a rank is unknown, or would rise")
    factor = z.reshape(()).astype(np.float64) * u.reshape(())
    m.require(np.isfinite(factor) and factor.astype(z.dtype), "a factor is zero or not finite")
    return m.op.MatMul(m.op.Mul(x, m.const(factor, like=z), like=m.scaling), y, like=m.product)


@register
class MatMulScaleFolding(RewritePass):
    """(x z) W = x (z W), (x W + b) z = x (W z) + b z, (x z) (y u) = (x zu) y: merges scales.

    Applies when: the factor is a single number, or has an element for each element of the last axis; the inner value
    has no other readers. Unlike scale-propagation, which follows a factor through data movement, this pass examines a
    product and its factor, and merges the scales of queries and keys, as in LLaMA, DINOv2, HuBERT and SAM.
    Not done: shared weights, which would be stored twice; factors of zero; quantized products; the end of a decomposed
    normalization or Gelu, which runtimes fuse (4 % of T5's time, 5 % of ViT's).
    """

    # After: separate weights would hide common subexpressions.
    info = PassInfo("matmul-scale-folding", opt_level=2, after=("common-subexpressions",), ops=("MatMul",))
    rules = (fold_factor, fold_scaled_rows, join_factors)


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
        for node in [n for kind in ("Add", "Sub") for n in graph.by_op.get(kind, ())]:
            found = _term(node)
            if found is None:
                continue
            x, term = found
            bias = bias_for(x, node, term.astype(np.float64))
            if isinstance(bias, str):
                ctx.decline("propagated", bias, repr(node))
                continue
            array = bias.array.astype(term.dtype)
            why = "" if is_finite(array) else "the folded constant overflows its type"
            if ctx.spend("propagated", at=node, unless=why):
                _set_bias(graph, bias.node, bias.place, array)
                bypass(graph, node, x)


def _set_bias(graph: Graph, node: Node, place: int, array: Array) -> None:
    old = node.input(place)
    name = old.name if old is not None else f"{node.output.name}_bias"
    node.set_input(place, graph.constant(array, name, node))
    if node.op == "Gemm":
        node.set_attr("beta", None)


def _term(node: Node) -> tuple[Value, Array] | None:
    """Return (x, c) of x + c or x - (-c), where x was moved; None if c is not finite, or widens x."""
    x, data = _constant_operand(node)
    if x is None or data is None or producer(x, *MOVES) is None or data.size > _MAX_TERM or not is_finite(data):
        return None
    return x, data if node.op == "Add" else -data
