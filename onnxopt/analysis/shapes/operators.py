"""Shape rules for convolutions, pools, resampling, recurrent layers and onnxruntime's own operators.

A rule takes (known sizes, node) and returns the dims of each output, None for unknown ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from onnxopt.analysis import types
from onnxopt.analysis.misread import pads_undilated
from onnxopt.analysis.shapes import indexing
from onnxopt.analysis.shapes.indexing import carried
from onnxopt.analysis.shapes.sizes import Found, axis_of, broadcast, product
from onnxopt.analysis.shapes.symbolic import Size, divide, is_nonnegative, is_positive, quotient
from onnxopt.graph.node import Node
from onnxopt.operators import GLOBAL_POOLS, LIKE_FIRST, POOLS, RECURRENT
from onnxopt.operators.operands import read_equation

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

_HALVES: Final = frozenset(2.0**-i for i in range(1, 9))  # exact in float32, times any size
Rule = Callable[["ShapeData", Node], "list[Found | None] | None"]


def _ints(s: ShapeData, n: Node, index: int, name: str) -> list[int] | None:
    """Return a list of numbers from an attribute (older opsets) or input."""
    written = n.attr(name)
    if written is not None:
        return [int(written)] if isinstance(written, int) else [int(i) for i in written]
    content = s.content(n.input(index))
    values = content.reshape(-1).tolist() if content is not None else None
    return values if values is not None and all(isinstance(v, int) for v in values) else None


def _windows(n: Node, x: tuple[Size, ...], kernel: list[int]) -> Iterator[Size | None]:
    """Yield the number of window positions along each spatial axis of x."""
    batch, sizes = x[0], x[2:]
    count, some = len(sizes), is_positive(batch)
    strides, dilations = n.attr("strides") or [1] * count, n.attr("dilations") or [1] * count
    pads = n.attr("pads") or [0] * (2 * count)
    mode = n.attr("auto_pad") or "NOTSET"
    for i, size in enumerate(sizes):
        stride, span = strides[i], dilations[i] * (kernel[i] - 1) + 1
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            yield quotient(size + (stride - 1), stride)
        elif n.attr("ceil_mode") and stride > 1:
            yield _places_and_more(size, span, stride, pads[i], pads[i + count]) if mode == "NOTSET" else None
        else:
            border = 0 if mode == "VALID" else pads[i] + pads[i + count]
            # Runtimes reject an empty image unless the batch is empty, and a Conv whose window does not fit.
            fits = n.op == "Conv" or is_nonnegative(size + (border - span)) or (some and border - span >= -1)
            yield _places(size + (border - span), stride, fits)


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


def _conv(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, w = s.shape(n.input(0)), s.shape(n.input(3 if n.op == "QLinearConv" else 1))
    if x is None and w is not None and len(w) > 2:
        return [(None, w[0], *(None for _ in w[2:]))]  # the input has the rank of the weights
    if x is None or w is None or len(x) < 3 or len(x) != len(w):
        return None
    kernel = [k for k in w[2:] if isinstance(k, int)]
    return [(x[0], w[0], *_windows(n, x, kernel))] if len(kernel) == len(x) - 2 else None


def least_read(n: Node) -> Iterator[tuple[str, int]]:
    """Yield (symbol, minimum) for the spatial dims of a Conv, whose window must fit.

    Runtimes reject an empty image, unless the padding holds a window.
    """
    x, w = (types.shape(v) if v is not None else None for v in n.inputs[:2])
    if x is None or w is None or len(x) != len(w) or n.attr("auto_pad") not in (None, "NOTSET"):
        return
    count = len(x) - 2
    dilations, pads = n.attr("dilations") or [1] * count, n.attr("pads") or [0] * (2 * count)
    for i, (dim, kernel) in enumerate(zip(x[2:], w[2:])):
        if isinstance(dim, str) and isinstance(kernel, int):
            yield dim, dilations[i] * (kernel - 1) + 1 - pads[i] - pads[i + count]


def _conv_transpose(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, w = s.shape(n.input(0)), s.shape(n.input(1))
    if x is None and w is not None and len(w) > 2:
        return [(None, w[1] * (n.attr("group") or 1), *(None for _ in w[2:]))]
    if (
        x is None
        or w is None
        or len(x) != len(w)
        or n.attr("output_shape")
        or n.attr("auto_pad") not in (None, "NOTSET")
    ):
        return None
    count, group = len(x) - 2, n.attr("group") or 1
    strides, dilations = n.attr("strides") or [1] * count, n.attr("dilations") or [1] * count
    pads, extra = n.attr("pads") or [0] * (2 * count), n.attr("output_padding") or [0] * count
    result: list[Size | None] = [x[0], w[1] * group]
    for i, k in enumerate(w[2:]):
        more = dilations[i] * (k + -1) + 1 + extra[i] - pads[i] - pads[i + count]
        result.append(strides[i] * (x[i + 2] + -1) + more)
    return [tuple(result)]


def _pool(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, kernel = s.shape(n.input(0)), n.attr("kernel_shape")
    if x is None or not kernel or len(kernel) != len(x) - 2 or pads_undilated(n):
        return None
    dims = (*x[:2], *_windows(n, x, kernel))
    return [dims] * len(n.outputs)


def _global_pool(s: ShapeData, n: Node) -> list[Found | None] | None:
    x = s.shape(n.input(0))
    return [(*x[:2], *(1 for _ in x[2:]))] if x is not None else None


def _first(s: ShapeData, n: Node) -> list[Found | None]:
    return [s.shape(n.input(0))]


def _resize(s: ShapeData, n: Node) -> list[Found | None] | None:
    x = s.shape(n.input(0))
    policy = n.attr("keep_aspect_ratio_policy")
    if x is None or policy not in (None, "stretch"):
        return None
    result: list[Size | None] = list(x)
    axes = [i % len(x) for i in n.attr("axes") or range(len(x))]
    sizes, scales = s.content(n.input(3)), n.input(2)
    if sizes is not None and sizes.size == len(axes):
        for i, size in zip(axes, sizes.reshape(-1).tolist()):
            result[i] = size
        return [tuple(result)]
    if scales is None or not scales.constant or scales.array.size != len(axes):
        return None
    for i, scale in zip(axes, scales.array.reshape(-1).tolist()):
        size = result[i]
        if scale in _HALVES and size is not None:
            result[i] = quotient(size, round(1 / scale))
        else:
            result[i] = size * int(scale) if scale in range(1, 1 << 16) and size is not None else None
    return [tuple(result)]


def _pad(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, pads = s.shape(n.input(0)), n.attr("pads")
    if pads is None:
        content = s.content(n.input(1))
        pads = content.reshape(-1).tolist() if content is not None else None
    if x is None or pads is None:
        return None
    given = n.input(3)
    axes = list(range(len(x))) if given is None else _ints(s, n, 3, "axes")
    if axes is None or len(pads) != 2 * len(axes):
        return None
    result: list[Size | None] = list(x)
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(axes)]
        result[axis] = None if before is None or after is None else x[axis] + (before + after)
    return [tuple(result)]


def _tile(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, repeats = s.shape(n.input(0)), s.content(n.input(1))
    if x is None or repeats is None or repeats.shape != (len(x),):
        return None
    return [tuple(None if r is None else d * r for d, r in zip(x, repeats.tolist()))]


def _split(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, count = s.shape(n.input(0)), len(n.outputs)
    if x is None:
        return None
    axis = int(n.attr("axis") or 0) % len(x)
    sizes: list[Any] | None
    if n.input(1) is not None:
        content = s.content(n.input(1))
        sizes = content.reshape(-1).tolist() if content is not None else None
    else:
        sizes = n.attr("split") or [divide(x[axis], count)] * count
    if sizes is None or len(sizes) != count:
        sizes = [None] * count
    return [(*x[:axis], size, *x[axis + 1 :]) for size in sizes]


def _top_k(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, k = s.shape(n.input(0)), s.content(n.input(1))
    if not x or k is None or k.size != 1:
        return None
    axis = int(n.attr("axis")) % len(x)
    dims = (*x[:axis], k.reshape(-1)[0], *x[axis + 1 :])
    return [dims, dims]


def _one_hot(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, depth = s.shape(n.input(0)), s.content(n.input(1))
    if x is None:
        return None
    axis = axis_of(int(n.attr("axis")), len(x) + 1)
    return [(*x[:axis], depth.reshape(-1)[0] if depth is not None and depth.size == 1 else None, *x[axis:])]


def _grid_sample(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, grid = s.shape(n.input(0)), s.shape(n.input(1))
    return [(*x[:2], *grid[1:-1])] if x is not None and grid is not None and len(x) == len(grid) else None


def _einsum(s: ShapeData, n: Node) -> list[Found | None] | None:
    shapes = [s.shape(v) for v in n.inputs]
    equation = read_equation(str(n.attr("equation")), [None if dims is None else len(dims) for dims in shapes])
    if equation is None or None in shapes:
        return None
    sizes: dict[str, Size | None] = {}
    for term, dims in zip(equation.terms, shapes):
        for letter, d in zip(term, dims or ()):
            known = sizes.get(letter, 1)
            sizes[letter] = None if known is None else broadcast([(known,), (d,)])[0]
    return [tuple(sizes.get(letter) for letter in equation.result)]


def _recurrent(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, hidden = s.shape(n.input(0)), n.attr("hidden_size")
    if (x is not None and len(x) != 3) or not hidden or n.attr("layout"):
        return None
    steps, batch, _ = x or (None, None, None)  # for any operand
    directions = 2 if n.attr("direction") == "bidirectional" else 1
    last: Found = (directions, batch, int(hidden))
    return [(steps, *last), last, last]


def _flatten(s: ShapeData, n: Node) -> list[Found | None] | None:
    x = s.shape(n.input(0))
    if x is None:
        return None
    axis = axis_of(int(n.attr("axis")), len(x))
    return [(product(x[:axis]), product(x[axis:]))]


def _columns(s: ShapeData, n: Node) -> list[Found | None] | None:
    x, columns = s.shape(n.input(0)), n.attr("N")
    return [(*x[:-1], columns)] if x and columns else None


# onnxruntime operators whose first output has the type of the first input.
_SAME_THERE: Final = (
    *("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "SkipLayerNormalization"),
    *("SkipSimplifiedLayerNormalization", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"),
)
RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys((*LIKE_FIRST, "ai.onnx.ml::Normalizer", "ai.onnx.ml::Scaler"), _first),
    **{f"com.microsoft::{op}": _first for op in _SAME_THERE},
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(GLOBAL_POOLS, _global_pool),
    **indexing.QUANTIZED,
    "com.microsoft::MatMulNBits": _columns,
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _conv),
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Flatten": _flatten,
    "GridSample": _grid_sample,
    "Loop": carried,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Resize": _resize,
    "Split": _split,
    "Tile": _tile,
    "TopK": _top_k,
}
# Operators unknown to the standard or to its inference.
ELSEWHERE: Final = (
    *(op for op in RULES if op.startswith("com.microsoft::")),
    *("GroupNormalization", "Loop", "MeanVarianceNormalization"),
)
