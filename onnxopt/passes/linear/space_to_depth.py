"""Images cut into every b-th row and column (YOLO's Focus): SpaceToDepth, or for channels-last a Transpose between two
Reshapes (Swin's patch merging)."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import LARGEST
from onnxopt.graph import Value
from onnxopt.graph.node import Node, producer
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, op, quantized, rewrite, var
from onnxopt.rewriting.index_maps import constant_target, elements, size_of
from onnxopt.rewriting.rule import constant_cuts

_SPATIAL: Final = (2, 3)
_KERNELS: Final = (TensorProto.FLOAT, TensorProto.DOUBLE)  # types with onnxruntime kernels
_LARGEST_BLOCK: Final = 8  # 64 parts


@rewrite(op.Concat(var("first"), ..., name="concat", axis=1))
def blocks_of_pixels(m: Match, first: Value) -> Value:
    """Concat(x[:, :, i::b, j::b], for all i, j < b) = SpaceToDepth(x, b)[:, p], p: the order of the parts."""
    x, block, places = _blocks(m, _SPATIAL)
    m.require(m.dtype(x) in _KERNELS, "runtimes have no kernel for this type")
    blocks = m.op.SpaceToDepth(x, blocksize=block)
    order = [row * block + column for row, column in places]
    if order == sorted(order):
        return blocks
    channels = m.known(types.length_of(x, 1), "the number of channels is unknown")
    index = np.add.outer(np.array(order, np.int64) * channels, np.arange(channels)).reshape(-1)
    return m.op.Gather(blocks, m.const(index), axis=1)


@rewrite(op.Concat(var("first"), ..., name="concat", axis=lambda axis: axis in (-1, 3), reads={"Slice"}))
def blocks_of_tokens(m: Match, first: Value) -> Value:
    """Concat(x[:, i::b, j::b], for all i, j < b; last axis) = Reshape(Transpose(Reshape(x)))."""
    x, block, places = _blocks(m, (1, 2))
    by_row = places == sorted(places)
    by_column = places == sorted(places, key=lambda place: place[::-1])
    m.require(by_row or by_column, "parts in another order")
    dims = m.dims(x)
    height, width, channels = (d if isinstance(d, int) else 0 for d in dims[1:])
    m.require(channels > 0 and m.opset >= 5, "the number of channels is unknown")
    split = (dims[0], height // block, block, width // block, block, channels)
    cut = m.known(constant_target(dims, split), "there are no pixels")
    blocks = m.op.Transpose(m.op.Reshape(x, m.ints(cut)), perm=[0, 1, 3, 2, 4, 5] if by_row else [0, 1, 3, 4, 2, 5])
    return m.op.Reshape(blocks, m.ints([cut[0], height // block, width // block, block * block * channels]))


def _blocks(m: Match, spatial: tuple[int, int]) -> tuple[Value, int, list[tuple[int, int]]]:
    """Return (image, block size, (row, column) in the block for each part)."""
    parts = m.concat.inputs
    block: int = round(len(parts) ** 0.5)
    if not 2 <= block <= _LARGEST_BLOCK or block * block != len(parts):
        m.skip()
    slices: dict[Node, None] = {}
    found = [part for v in parts if (part := _part(v, block, slices, spatial)) is not None]
    images = {x for x, _ in found}
    if len(found) < len(parts) or len(images) > 1:
        m.skip()
    x, places = found[0][0], [place for _, place in found]
    m.require(len(set(places)) == len(places), "a part is there twice")
    inside = {m.concat, *slices}
    alone = all(not n.output.is_output and inside.issuperset(n.output.users) for n in slices)
    m.require(alone, "a part is read elsewhere")
    # A Concat of parts of different sizes is an error in the standard; onnxruntime omits empty parts.
    sizes = [n % block for i in spatial if (n := types.length_of(x, i)) is not None]
    m.require(m.rank(x) == 4 and sizes == [0, 0], "a size may be no multiple of the block")
    return x, block, places


def _part(
    v: Value | None, block: int, slices: dict[Node, None], spatial: tuple[int, int]
) -> tuple[Value, tuple[int, int]] | None:
    """Return (image, (row, column) in the block) of a part, through Slices along one axis or both, or None."""
    starts: dict[int, int] = {}
    while len(starts) < len(spatial) and (node := producer(v, "Slice")) is not None:
        found = constant_cuts(node, 4)
        open_axes = {axis for axis, _, end, step in found if end in LARGEST and step == block} & {*spatial} - {*starts}
        if not found or len(open_axes) < len(found) or not all(0 <= start < block for _, start, _, _ in found):
            return None
        starts.update((axis, start) for axis, start, _, _ in found)
        slices[node] = None
        v = node.inputs[0]
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
    dims, cut, made = m.dims(x), m.dims(m.cut.output), m.dims(m.joined.output)
    m.require(dims and cut and made, "a rank is unknown")
    m.require((len(dims), len(cut), len(made)) == (4, 6, 4) and None not in dims, "no picture, or a dim is unknown")
    channels, block, other = (d if isinstance(d := cut[i], int) else 1 for i in places)
    m.require(isinstance(cut[places[0]], int) and block == other != 1, "no square blocks")
    m.require((cut[0], dims[1], *cut[4:]) == (dims[0], channels * block**2, *dims[2:]), "other axes are cut")
    wide = [elements((d, block)) for d in dims[2:]]
    m.require([*made[:2], *map(size_of, made[2:])] == [dims[0], channels, *wide], "other axes are joined")
    m.require(m.dtype(x) in _KERNELS, "runtimes have no kernel for this type")
    m.require(m.opset >= 11 or mode == "DCR", "before opset 11 there is no mode")
    return m.op.DepthToSpace(x, blocksize=block, mode=mode if m.opset >= 11 else None)


@rewrite(op.Conv(op.Gather(var("x"), const("order"), axis=1), const("w"), var("b").opt(), name="conv"))
def fold_order_of_channels(m: Match, x: Value, order: Array, w: Array, b: Value | None) -> Value:
    """Conv(x[:, p]; W, b) = Conv(x; V, b), V[:, p] = W, for a permutation p of the channels."""
    channels = types.length_of(x, 1) if m.rank(x) == w.ndim else None
    channels = m.known(channels, "the number of channels is unknown")
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
