"""Shape rules for operators that compute: convolutions, pools, resampling, products, reductions, recurrent layers.

A rule takes (known sizes, node) and returns the dims of the output, or a list with the dims of each output; None for
unknown ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.analysis import types
from onnxopt.analysis.misread import pads_undilated, window
from onnxopt.analysis.shapes.sizes import (
    SHAPE_RULES,
    Dims,
    PartialDims,
    axis_of,
    broadcast,
    joined,
    reduced,
    rows_by_columns,
    shape_rule,
)
from onnxopt.analysis.shapes.symbolic import Size, divide, is_nonnegative, is_positive, quotient
from onnxopt.graph.node import Node
from onnxopt.operators import BROADCASTING, GLOBAL_POOLS, LIKE_FIRST, POOLS, RECURRENT, REDUCTIONS

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

_HALVES: Final = frozenset(2.0**-i for i in range(1, 9))  # exact in float32, times any size
_MAX_SCALE: Final = 1 << 16
# Onnxruntime's operators whose first output has the shape of the first input.
_ALIKE: Final = (
    *("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "SkipLayerNormalization"),
    *("SkipSimplifiedLayerNormalization", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"),
)
_MORE: Final = ("CastLike", "ai.onnx.ml::Normalizer", "ai.onnx.ml::Scaler", *(f"com.microsoft::{o}" for o in _ALIKE))


@shape_rule(*LIKE_FIRST, *_MORE)
def _first(s: ShapeData, n: Node) -> PartialDims | None:
    return s.dims_in(n, 0)


@shape_rule("DynamicQuantizeLinear")
def _with_scale(s: ShapeData, n: Node) -> list[PartialDims | None]:
    return [s.dims_in(n, 0), (), ()]


@shape_rule(*BROADCASTING)
def _like_inputs(s: ShapeData, n: Node) -> PartialDims | None:
    shapes = [s.dims_of(v) for v in n.operands]
    found = broadcast(shapes) if shapes else None
    # For a larger slope runtimes infer another shape than they compute, and would reject rewrites based on the true
    # one.
    return None if n.op == "PRelu" and found != shapes[0] else found


# -- windows --------------------------------------------------------------------------------------------------


def _positions(n: Node, x: Dims, kernel: Sequence[int]) -> Iterator[Size | None]:
    """Yield the number of window positions along each spatial axis of x."""
    batch, sizes = x[0], x[2:]
    strides, dilations, pads = window(n, len(sizes))
    mode = n.attr("auto_pad") or "NOTSET"
    for i, size in enumerate(sizes):
        stride, span, before, behind = strides[i], dilations[i] * (kernel[i] - 1) + 1, pads[i], pads[i + len(sizes)]
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            yield quotient(size + (stride - 1), stride)
        elif n.attr("ceil_mode") and stride > 1:
            yield _places_and_more(size, span, stride, before, behind) if mode == "NOTSET" else None
        else:
            more = (0 if mode == "VALID" else before + behind) - span
            yield _places(size + more, stride, n.op == "Conv" or _fits(size + more, more, batch))


def _fits(room: Size, more: int, batch: Size) -> bool:
    """Whether a window fits: runtimes reject an empty image unless the batch is empty."""
    return is_nonnegative(room) or (is_positive(batch) and more >= -1)


def _places(room: Size, stride: int, fits: bool) -> Size | None:
    """Return 1 plus the number of strides in the remaining room. Runtimes truncate: -1 / 2 is 0."""
    if isinstance(room, int):
        return (room // stride if room >= 0 else -(-room // stride)) + 1
    constant = dict(room.terms).get((), 0)
    if not fits and constant % stride and divide(room - constant, stride) is not None:
        return None
    return quotient(room + stride, stride)


def _places_and_more(size: Size, span: int, stride: int, before: int, behind: int) -> Size | None:
    """Return the positions for `ceil_mode`, with an additional position for a remainder.

    None if the last window may start behind the end: runtimes omit it, the standard only from opset 22 on.
    """
    room = size + (before + behind - span)
    if isinstance(size, int) and isinstance(room, int):
        steps = -(-room // stride)
        return steps + 1 if room >= 0 and steps * stride < size + before else None
    rounded = room + (2 * stride - 1)
    return quotient(rounded, stride) if stride + behind <= span and is_nonnegative(rounded) else None


@shape_rule("Conv", "ConvInteger", "QLinearConv")
def _conv(s: ShapeData, n: Node) -> PartialDims | None:
    x, w = s.shape(n.input(0)), s.dims_in(n, 3 if n.op == "QLinearConv" else 1)
    if x is None:
        return _of_weights(w, w[0])
    kernel = [k for k in w[2:] if isinstance(k, int)]
    if not 3 <= len(x) == len(w) == len(kernel) + 2:
        return None
    return (x[0], w[0], *_positions(n, x, kernel))


def _of_weights(w: Dims, channels: Size) -> PartialDims | None:
    """Return the dims of a convolution of unknown shape, with the rank of the weights."""
    return (None, channels, *(None for _ in w[2:])) if len(w) > 2 else None


def least_read(n: Node) -> Iterator[tuple[str, int]]:
    """Yield (symbol, minimum) for the spatial dims of a Conv, whose window must fit.

    Runtimes reject an empty image, unless the padding holds a window.
    """
    x, w = (types.shape(v) for v in n.inputs[:2])
    if x is None or w is None or len(x) != len(w) or n.attr("auto_pad") not in (None, "NOTSET"):
        return
    count = len(x) - 2
    _, dilations, pads = window(n, count)
    for i, (dim, kernel) in enumerate(zip(x[2:], w[2:])):
        if isinstance(dim, str) and isinstance(kernel, int):
            yield dim, dilations[i] * (kernel - 1) + 1 - pads[i] - pads[i + count]


@shape_rule("ConvTranspose")
def _conv_transpose(s: ShapeData, n: Node) -> PartialDims | None:
    x, w, group = s.shape(n.input(0)), s.dims_in(n, 1), n.attr("group") or 1
    if x is None:
        return _of_weights(w, w[1] * group)
    if len(x) != len(w) or n.attr("output_shape") or n.attr("auto_pad") not in (None, "NOTSET"):
        return None
    count = len(x) - 2
    (strides, dilations, pads), extra = window(n, count), n.attr("output_padding") or [0] * count
    result: list[Size | None] = [x[0], w[1] * group]
    for i, k in enumerate(w[2:]):
        more = dilations[i] * (k + -1) + 1 + extra[i] - pads[i] - pads[i + count]
        result.append(strides[i] * (x[i + 2] + -1) + more)
    return tuple(result)


@shape_rule(*POOLS)
def _pool(s: ShapeData, n: Node) -> list[PartialDims | None] | None:
    x, kernel = s.dims_in(n, 0), n.attr("kernel_shape")
    if not kernel or len(kernel) != len(x) - 2 or pads_undilated(n):
        return None
    return [(*x[:2], *_positions(n, x, kernel))] * len(n.outputs)


@shape_rule(*GLOBAL_POOLS, "com.microsoft::QLinearGlobalAveragePool")
def _global_pool(s: ShapeData, n: Node) -> PartialDims | None:
    x = s.dims_in(n, 0)
    return None if n.attr("channels_last") else (*x[:2], *(1 for _ in x[2:]))


# -- resampling -----------------------------------------------------------------------------------------------


@shape_rule("Resize")
def _resize(s: ShapeData, n: Node) -> PartialDims | None:
    x, sizes, scales = s.dims_in(n, 0), s.content(n.input(3)), n.input(2)
    if n.attr("keep_aspect_ratio_policy") not in (None, "stretch"):
        return None
    axes = [i % len(x) for i in n.attr("axes") or range(len(x))]
    made = [] if sizes is None else sizes.reshape(-1).tolist()
    if not made and scales is not None and scales.constant:
        made = [_scaled(x[i], scale) for i, scale in zip(axes, scales.array.reshape(-1).tolist(), strict=True)]
    named = dict(zip(axes, made))
    return tuple(named.get(i, d) for i, d in enumerate(x)) if len(made) == len(axes) else None


def _scaled(size: Size, scale: float) -> Size | None:
    if scale in _HALVES:
        return quotient(size, round(1 / scale))
    return size * int(scale) if scale in range(1, _MAX_SCALE) else None


@shape_rule("GridSample")
def _grid_sample(s: ShapeData, n: Node) -> PartialDims | None:
    x, grid = s.dims_in(n, 0), s.dims_in(n, 1)
    return (*x[:2], *grid[1:-1]) if len(x) == len(grid) else None


# -- products and reductions ----------------------------------------------------------------------------------


@shape_rule("MatMul", "MatMulInteger", "QLinearMatMul")
def _matmul(s: ShapeData, n: Node) -> PartialDims | None:
    a, b = s.dims_in(n, 0), s.dims_in(n, 3 if n.op == "QLinearMatMul" else 1)
    if len(a) < 2 or len(b) < 2:
        return None
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1]) if len(a) > 2 or len(b) > 2 else (a[0], b[1])


@shape_rule("Gemm")
def _gemm(s: ShapeData, n: Node) -> PartialDims | None:
    return rows_by_columns(s.dims_in(n, 0), s.dims_in(n, 1), n)


@shape_rule("Einsum")
def _einsum(s: ShapeData, n: Node) -> PartialDims | None:
    from onnxopt.operators.operands import read_equation

    shapes = [s.dims_of(v) for v in n.inputs]
    equation = read_equation(str(n.attr("equation")), [len(dims) for dims in shapes])
    if equation is None:
        return None
    sizes: dict[str, Size | None] = {}
    for term, dims in zip(equation.terms, shapes):
        for letter, d in zip(term, dims):
            known = sizes.get(letter, 1)
            sizes[letter] = None if known is None else broadcast([(known,), (d,)])[0]
    return tuple(sizes.get(letter) for letter in equation.result)


@shape_rule(*REDUCTIONS)
def _reduce(s: ShapeData, n: Node) -> PartialDims | None:
    x = s.dims_in(n, 0)
    at = reduced(s, n, len(x))
    if at is None:
        return None
    if n.keeps_dims:
        return tuple([1 if i in at else d for i, d in enumerate(x)])
    return tuple([d for i, d in enumerate(x) if i not in at])


@shape_rule("ArgMax", "ArgMin")
def _place_of_largest(s: ShapeData, n: Node) -> PartialDims | None:
    x = s.dims_in(n, 0)
    axis = axis_of(n.attr("axis", 0), len(x))
    return (*x[:axis], *((1,) if n.keeps_dims else ()), *x[axis + 1 :])


@shape_rule("TopK")
def _top_k(s: ShapeData, n: Node) -> list[PartialDims | None] | None:
    x, k = s.dims_in(n, 0), s.data_in(n, 1)
    axis = int(n.attr("axis")) % len(x)
    return [(*x[:axis], k.item(), *x[axis + 1 :])] * 2


@shape_rule(*RECURRENT)
def _recurrent(s: ShapeData, n: Node) -> list[PartialDims | None] | None:
    x, hidden = s.shape(n.input(0)), n.attr("hidden_size")
    if (x is not None and len(x) != 3) or not hidden or n.attr("layout"):
        return None
    steps, batch, _ = x or (None, None, None)  # for any operand
    directions = 2 if n.attr("direction") == "bidirectional" else 1
    last: PartialDims = (directions, batch, int(hidden))
    return [(steps, *last), last, last]


# -- onnxruntime's own operators ------------------------------------------------------------------------------


@shape_rule("com.microsoft::MatMulNBits")
def _columns(s: ShapeData, n: Node) -> PartialDims | None:
    x, columns = s.dims_in(n, 0), n.attr("N")
    return (*x[:-1], columns) if x and columns else None


@shape_rule("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul")
def _quantized_elementwise(s: ShapeData, n: Node) -> PartialDims | None:
    return broadcast([s.dims_in(n, 0), s.dims_in(n, 3)])


@shape_rule("com.microsoft::QLinearConcat")
def _quantized_concat(s: ShapeData, n: Node) -> PartialDims | None:
    """Inputs: scale and zero point of the result, then (tensor, scale, zero point) for each part."""
    return joined([s.dims_of(v) for v in n.inputs[2::3]], n.attr("axis"))


@shape_rule("com.microsoft::QGemm")
def _quantized_gemm(s: ShapeData, n: Node) -> PartialDims | None:
    return rows_by_columns(s.dims_in(n, 0), s.dims_in(n, 3), n)


# Operators unknown to the standard or to its inference.
ELSEWHERE: Final = (
    *(op for op in SHAPE_RULES if op.startswith("com.microsoft::")),
    *("GroupNormalization", "Loop", "MeanVarianceNormalization"),
)
