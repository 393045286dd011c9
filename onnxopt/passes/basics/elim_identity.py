"""Nodes whose output equals the input: same type, shape and bits."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.shapes.sizes import is_behind
from onnxopt.graph import Value
from onnxopt.graph.node import array_of
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, either, keeps_shape, one_of, op, rewrite, var, without_ones

_SHORT = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)


@rewrite(op.Identity(var("x")))
def identity(m: Match, x: Value) -> Value:
    """Identity(x) = x."""
    return x


@rewrite(op.Cast(var("x"), name="cast"))
def cast_to_same_type(m: Match, x: Value) -> Value:
    """Cast(x, to = type of x) = x."""
    m.require(m.dtype(x) == m.cast.attr("to"), "the type changes, or is unknown")
    return x


@rewrite(op.Transpose(var("x"), name="transpose"))
def transpose_in_order(m: Match, x: Value) -> Value:
    """Transpose(x, 0, 1, 2, …) = x."""
    perm = m.transpose.attr("perm")
    if perm is None:
        m.require(m.rank(x) is not None and (m.rank(x) or 0) <= 1, "the axes are reversed")
        return x
    m.require(perm == sorted(perm), "the axes move", stays=True)
    m.require(m.rank(x) in (None, len(perm)), "the operand has another number of axes")
    return x


@rewrite(op.Reshape(var("x"), const("shape"), name="reshape"))
def reshape_to_same_shape(m: Match, x: Value, shape: Array) -> Value:
    """Reshape(x, shape of x) = x."""
    dims = m.known(m.shape(x), "the rank of the input is unknown")
    m.require(len(dims) == shape.size, "the rank changes", stays=True)
    keeps = keeps_shape(dims, shape.reshape(-1).tolist(), bool(m.reshape.attr("allowzero", 0)))
    m.require(keeps, "the shape may change", stays=True)
    return x


@rewrite(op.Flatten(var("x"), name="flatten"))
def flatten_of_matrix(m: Match, x: Value) -> Value:
    """Flatten(x) = x for a matrix split between its two axes."""
    m.require(m.rank(x) == 2, "not a matrix")
    m.require(m.flatten.attr("axis") in (1, -1), "flattened elsewhere")
    return x


@rewrite(op.Expand(var("x"), const("shape")))
def expand_by_ones(m: Match, x: Value, shape: Array) -> Value:
    """Expand(x, ones) = x, when the shape is not longer than x's rank."""
    dims = m.shape(x) or ()
    m.require(shape.size <= len(dims), "the rank is unknown, or rises")
    tail = dims[len(dims) - shape.size :]
    m.require(all(t in (1, d) for d, t in zip(tail, shape.reshape(-1).tolist())), "a dimension may grow")
    return x


@rewrite(op.Slice(var("x"), const("starts"), const("ends"), const("axes").opt(), const("steps").opt(), name="slice"))
def slice_of_everything(
    m: Match, x: Value, starts: Array, ends: Array, axes: Array | None, steps: Array | None
) -> Value:
    """Slice(x, 0, INT_MAX or at least the size) = x."""
    m.require(starts.ndim == ends.ndim == 1, "the bounds are no vectors")
    m.require(steps is None or (steps == 1).all(), "a step is not 1")
    m.require((starts == 0).all(), "a start is not 0")
    dims = m.shape(x)
    places = axes.reshape(-1).tolist() if axes is not None else range(starts.size)
    for axis, end in zip(places, ends.tolist()):
        known = dims if dims is not None and -len(dims) <= axis < len(dims) else (None,)
        m.require(is_behind(end, axis % len(known), known), "an end may cut")
    return x


@rewrite(op.Pad(var("x"), const("pads"), ..., name="pad"))
def pad_by_nothing(m: Match, x: Value, pads: Array) -> Value:
    """Pad(x, zeros) = x."""
    m.require(not pads.any(), "pads are not all zero")
    return x


@rewrite(op.Tile(var("x"), const("repeats")))
def tile_once(m: Match, x: Value, repeats: Array) -> Value:
    """Tile(x, ones) = x."""
    m.require((repeats == 1).all(), "repeats")
    return x


@rewrite(one_of("And", "Max", "Min", "Or")(var("x"), var("x")))
def twice_the_same(m: Match, x: Value) -> Value:
    """Max(x, x) = Min(x, x) = And(x, x) = Or(x, x) = x."""
    return x


@rewrite(one_of("Concat", "Sum", "Max", "Min", "Mean")(var("x")))
def of_single_input(m: Match, x: Value) -> Value:
    """Concat(x) = Sum(x) = Max(x) = Min(x) = Mean(x) = x."""
    return x


@rewrite(op.Concat(var("first"), ..., name="concat"))
def concat_of_nothing(m: Match, first: Value) -> Value:
    """Concat(x, e, …) = Concat(x, …), where e has no element along the axis."""
    axis = m.concat.attr("axis")
    m.require(None not in m.concat.inputs, "a part is not given")
    shapes = [*map(m.shape, m.concat.inputs)]
    kept = [v for v, dims in zip(m.concat.inputs, shapes) if v is not None and (dims or ())[axis:][:1] != (0,)]
    m.require(len(kept) < len(shapes), "", stays=None not in shapes)
    return m.op.Concat(*kept, like=m.concat) if kept else first


@rewrite(op.Split(var("x"), ..., name="split"))
def split_into_one(m: Match, x: Value) -> Value:
    """Split(x) into one part = x."""
    m.require(len(m.split.outputs) == 1, "", stays=True)
    return x


@rewrite(op.Unsqueeze(var("x"), var("axes", constant=True, when=lambda axes: not axes.array.size)))
def unsqueeze_of_no_axes(m: Match, x: Value, axes: Value) -> Value:
    """Unsqueeze(x, []) = x. Not for Squeeze: runtimes read an empty list of axes as all axes of size 1."""
    return x


@rewrite(one_of("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")(var("x"), ..., name="reduce"))
def reduce_over_ones(m: Match, x: Value) -> Value:
    """Reduce(x) = x, or Squeeze(x), when every reduced dim is 1."""
    node = m.reduce
    result, reduces = without_ones(m, node, x)
    exact = not reduces or node.op in ("ReduceMax", "ReduceMin") or m.dtype(x) == TensorProto.INT32
    m.require(exact or m.dtype(x) != TensorProto.INT64, "runtimes compute with long integers as floats")
    m.require(exact or node.op == "ReduceProd", "a sum starts at +0 and turns -0 into it")
    return result


@rewrite(op.Resize(var("x"), ..., name="resize"))
def resize_to_same_size(m: Match, x: Value) -> Value:
    """Resize(x, scales all 1) = Resize(x, sizes of x) = x."""
    m.require(m.resize.attr("coordinate_transformation_mode", "") != "tf_crop_and_resize", "crops")
    sizes = m.resize.input(3) if m.opset >= 11 else None
    if sizes is not None:
        dims = m.known(m.shape(x) if sizes.constant else None, "the sizes are computed, or the rank is unknown")
        axes = m.resize.attr("axes") or range(len(dims))
        m.require([dims[i] for i in axes] == sizes.array.reshape(-1).tolist(), "not provably the same size")
        return x
    given = array_of(m.resize.input(2 if m.opset >= 11 else 1))
    scales = m.known(given if given is not None and given.size else None, "no constant scales")
    m.require((scales == 1).all(), "the size changes")
    return x


@rewrite(
    op.QuantizeLinear(
        op.DequantizeLinear(var("q"), const("scale"), const("zero").opt(), name="dequantize", shared=True),
        const("scale"),
        const("zero").opt(),
        name="quantize",
    )
)
def quantized_again(m: Match, q: Value, scale: Array, zero: Array | None) -> Value:
    """Quantize(Dequantize(q, s, z), s, z) = q."""
    kind = m.dtype(q)
    m.require(kind in _SHORT and m.dtype(m.quantize.output) == kind, "not integers of one type, of at most 16 bits")
    between = m.dequantize.attr("output_dtype", 0) or TensorProto.FLOAT
    m.require(scale.dtype == np.float32 and between == TensorProto.FLOAT, "not scaled in single precision")
    m.require((np.abs(scale) > 1e-30).all() and (np.abs(scale) < 1e30).all(), "products with the scale may be lost")
    same = all(m.dequantize.attr(a) == m.quantize.attr(a) for a in ("axis", "block_size"))
    m.require(same and not m.quantize.attr("precision", 0), "scaled otherwise")
    return q


@rewrite(
    one_of("Relu", "Abs", "Ceil", "Floor", "Round", "Sign")(
        one_of("Relu", "Abs", "Ceil", "Floor", "Round", "Sign")(var("x"), name="inner", shared=True), name="outer"
    )
)
def idempotent(m: Match, x: Value) -> Value:
    """f(f(x)) = f(x) for Relu, Abs, Ceil, Floor, Round, Sign."""
    if m.inner.op != m.outer.op:
        m.skip()
    return m.inner.output


@rewrite(either(op.Not(op.Not(var("x"), shared=True)), op.Neg(op.Neg(var("x"), shared=True))))
def not_of_not(m: Match, x: Value) -> Value:
    """not not x = x, -(-x) = x."""
    return x


@rewrite(op.SequenceMap(var("x"), name="map"))
def map_of_nothing(m: Match, x: Value) -> Value:
    """SequenceMap(x; e → e) = x. onnxruntime does not load a body that does no more and says no types."""
    body = m.map.bodies["body"]
    given, made = body.inputs, body.outputs
    maker = made[0].producer
    handed = made[0] if maker is None else maker.inputs[0] if maker.op == "Identity" else None
    m.require(len(made) == len(given) == 1 and handed is given[0], "the body does something")
    return x


@register
class ElimIdentity(RewritePass):
    """Removes nodes that return their input unchanged.

    Applies when: type, shape and bits of the output provably equal the input's.
    Keeps: the Identity between an input, initializer or outer value and a graph output.
    Not done: Relu of Ceil, and other pairs of different operators; Squeeze without axes, whose result depends on sizes.
    """

    info = PassInfo("elim-identity", opt_level=1)
    rules = (
        identity,
        cast_to_same_type,
        transpose_in_order,
        reshape_to_same_shape,
        flatten_of_matrix,
        expand_by_ones,
        slice_of_everything,
        pad_by_nothing,
        tile_once,
        twice_the_same,
        of_single_input,
        concat_of_nothing,
        split_into_one,
        unsqueeze_of_no_axes,
        reduce_over_ones,
        resize_to_same_size,
        quantized_again,
        idempotent,
        not_of_not,
        map_of_nothing,
    )
