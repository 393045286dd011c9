"""Images cut into every b-th row and column (YOLO's Focus): SpaceToDepth, or for channels-last a Transpose between two
Reshapes (Swin's patch merging)."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.shapes.sizes import LARGEST, cuts
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, op, quantized, rewrite, var
from onnxopt.rewriting.axis_runs import constant_target, product, size_of
from onnxopt.rewriting.rule import operands

_SPATIAL: Final = (2, 3)
_KERNELS: Final = (TensorProto.FLOAT, TensorProto.DOUBLE)  # types with onnxruntime kernels
_LARGEST_BLOCK: Final = 8  # 64 parts


@rewrite(op.Concat(var("first"), ..., name="concat", axis=1))
def blocks_of_pixels(m: Match, first: Value) -> Value:
    """Concat(x[:, :, i::b, j::b], for all i, j < b) = SpaceToDepth(x, b)[:, p], p: the order of the parts."""
    x, block, places = _blocks(m, _SPATIAL)
    m.require(m.dtype(x) in _KERNELS, "runtimes have no kernel for this type")
    dims = m.shape(x) or ()
    blocks = m.op.SpaceToDepth(x, blocksize=block)
    order = [row * block + column for row, column in places]
    if order == sorted(order):
        return blocks
    channels = dims[1]
    m.require(isinstance(channels, int), "the number of channels is unknown")
    assert isinstance(channels, int)
    index = np.add.outer(np.array(order, np.int64) * channels, np.arange(channels)).reshape(-1)
    return m.op.Gather(blocks, m.const(index), axis=1)


@rewrite(op.Concat(var("first"), ..., name="concat", axis=lambda axis: axis in (-1, 3), reads={"Slice"}))
def blocks_of_tokens(m: Match, first: Value) -> Value:
    """Concat(x[:, i::b, j::b], for all i, j < b; last axis) = Reshape(Transpose(Reshape(x)))."""
    x, block, places = _blocks(m, (1, 2))
    by_row = places == sorted(places)
    by_column = places == sorted(places, key=lambda place: place[::-1])
    m.require(by_row or by_column, "parts in another order")
    dims = m.shape(x) or ()
    height, width, channels = dims[1:]
    m.require(isinstance(channels, int) and channels > 0 and m.opset >= 5, "the number of channels is unknown")
    assert isinstance(height, int) and isinstance(width, int) and isinstance(channels, int)
    cut = m.known(
        constant_target(dims, (dims[0], height // block, block, width // block, block, channels)), "there are no pixels"
    )
    blocks = m.op.Transpose(m.op.Reshape(x, m.ints(cut)), perm=[0, 1, 3, 2, 4, 5] if by_row else [0, 1, 3, 4, 2, 5])
    return m.op.Reshape(blocks, m.ints([cut[0], height // block, width // block, block * block * channels]))


def _blocks(m: Match, spatial: tuple[int, int]) -> tuple[Value, int, list[tuple[int, int]]]:
    """Return (image, block size, (row, column) in the block for each part)."""
    parts = m.concat.inputs
    block = round(len(parts) ** 0.5)
    if block < 2 or block * block != len(parts) or block > _LARGEST_BLOCK:
        m.skip()
    slices: dict[Node, None] = {}
    found = [_part(v, block, slices, spatial) for v in parts]
    x = found[0][0] if found[0] is not None else None
    if x is None or any(part is None or part[0] is not x for part in found):
        m.skip()
    places = [part[1] for part in found if part is not None]
    m.require(len(set(places)) == len(places), "a part is there twice")
    read = [v for node in slices for v in node.outputs if v is not None]
    inside = {m.concat, *slices}
    m.require(not any(v.is_output or v.users.keys() - inside for v in read), "a part is read elsewhere")
    dims = m.shape(x) or ()
    # A Concat of parts of different sizes is an error in the standard; onnxruntime omits empty parts.
    sizes = [d for i in spatial for d in dims[i : i + 1] if isinstance(d, int) and d % block == 0]
    m.require(len(dims) == 4 and len(sizes) == 2, "a size may be no multiple of the block")
    return x, block, places


def _part(
    v: Value | None, block: int, slices: dict[Node, None], spatial: tuple[int, int]
) -> tuple[Value, tuple[int, int]] | None:
    """Return (image, (row, column) in the block) of a part, through Slices along one axis or both, or None."""
    starts: dict[int, int] = {}
    while v is not None and v.producer is not None and v.producer.op == "Slice" and len(starts) < len(spatial):
        node = v.producer
        given = [*operands(node), None, None, None][:5]
        if any(p is not None and not p.constant for p in given[1:]) or given[1] is None or given[2] is None:
            return None
        lists = [None if p is None else [int(i) for i in p.array.reshape(-1)] for p in given[1:]]
        assert lists[0] is not None and lists[1] is not None
        for axis, start, end, step in cuts(lists[0], lists[1], lists[2], lists[3], 4) or [(0, 0, 0, 0)]:
            if axis not in spatial or axis in starts or step != block or not 0 <= start < block or end not in LARGEST:
                return None
            starts[axis] = start
        slices[node] = None
        v = given[0]
    return (v, (starts[spatial[0]], starts[spatial[1]])) if v is not None and len(starts) == len(spatial) else None


# [n, c, r, r, h, w] or [n, r, r, c, h, w] to [n, c, h, r, w, r]: mode, and positions of c and both r
_SHUFFLES: Final = {(0, 1, 4, 2, 5, 3): ("CRD", (1, 2, 3)), (0, 3, 4, 1, 5, 2): ("DCR", (3, 1, 2))}


_SHUFFLED: Final = op.Transpose(
    op.Reshape(var("x"), ..., name="cut"), name="turned", perm=lambda perm: perm and tuple(perm) in _SHUFFLES
)


@rewrite(op.Reshape(_SHUFFLED, ..., name="joined"))
def shuffled_pixels(m: Match, x: Value) -> Value:
    """Reshape(Transpose(Reshape(x, [n, c, r, r, h, w])), [n, c, h r, w r]) = DepthToSpace(x, r)."""
    mode, places = _SHUFFLES[tuple(m.turned.attr("perm"))]
    dims, cut, made = m.shape(x), m.shape(m.cut.output), m.shape(m.joined.output)
    m.require(dims is not None and cut is not None and made is not None, "a rank is unknown")
    assert dims is not None and cut is not None and made is not None
    m.require((len(dims), len(cut), len(made)) == (4, 6, 4) and None not in dims, "no picture, or a dim is unknown")
    channels, block, other = (cut[i] for i in places)
    m.require(isinstance(channels, int) and isinstance(block, int) and block == other != 1, "no square blocks")
    assert isinstance(channels, int) and isinstance(block, int)
    m.require((cut[0], dims[1], *cut[4:]) == (dims[0], channels * block**2, *dims[2:]), "other axes are cut")
    wide = [product((d, block)) for d in dims[2:]]
    m.require([*made[:2], *map(size_of, made[2:])] == [dims[0], channels, *wide], "other axes are joined")
    m.require(m.dtype(x) in _KERNELS, "runtimes have no kernel for this type")
    m.require(m.opset >= 11 or mode == "DCR", "before opset 11 there is no mode")
    return m.op.DepthToSpace(x, blocksize=block, mode=mode if m.opset >= 11 else None)


@rewrite(op.Conv(op.Gather(var("x"), const("order"), axis=1), const("w"), var("b").opt(), name="conv"))
def fold_order_of_channels(m: Match, x: Value, order: Array, w: Array, b: Value | None) -> Value:
    """Conv(x[:, p]; W, b) = Conv(x; V, b), V[:, p] = W, for a permutation p of the channels."""
    dims = m.shape(x)
    channels = dims[1] if dims is not None and len(dims) == w.ndim else None
    m.require(isinstance(channels, int), "the number of channels is unknown")
    assert isinstance(channels, int)
    m.require(m.conv.attr("group") == 1, "grouped convolution")
    m.require(not quantized(m, x), "the convolution is quantized")
    places = order.reshape(-1) + np.where(order.reshape(-1) < 0, channels, 0)
    permutes = order.ndim == 1 and np.array_equal(np.sort(places), np.arange(channels))
    m.require(permutes and w.shape[1] == channels, "no permutation of all channels")
    weight = np.empty_like(w)
    weight[:, places] = w
    return m.op.Conv(x, m.const(weight, like=w), b, like=m.conv)


@register
class SpaceToDepth(RewritePass):
    """Concat(x[:, :, i::b, j::b], for all i, j < b) = SpaceToDepth(x, b), with permuted channels; weights of a
    following Conv are permuted.

    Reshape(Transpose(Reshape(x, [n, c, r, r, h, w])), [n, c, h r, w r]) = DepthToSpace(x, r), in half of the time.

    Applies when: the Slices take every b-th row and column to the end, each part once, read only by the Concat, and the
    sizes are known multiples of b. YOLO's Focus is a case with b = 2.
    Not done: types other than float32 and float64, for which runtimes have no kernel; grouped and quantized Convs.
    """

    # After: a Slice of a Slice may become a single Slice.
    info = PassInfo(
        "space-to-depth", opt_level=2, after=("merge-chains", "gather-axes"), ops=("Concat", "Gather", "Transpose")
    )
    rules = (blocks_of_pixels, blocks_of_tokens, shuffled_pixels, fold_order_of_channels)
