"""Decomposed rotary embeddings become the standard operator (opset 23)."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import is_behind
from onnxopt.graph import Shape, Value
from onnxopt.graph.node import Node, array_of, present, producer
from onnxopt.operators import UNARY
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, Pattern, either, op, rewrite, var
from onnxopt.rewriting.rule import constant_cuts, listed_axes

_Angles: TypeAlias = tuple[Value, Value]
_MAX_STEPS: Final = 8  # nodes before x, whose operand may have the batch of x: embeddings are about five nodes away
_HALVES: Final = op.Split(var("x"), ..., name="halves")


def _exchanged(parts: Call) -> Pattern:
    """Return the pattern of [-x₂, x₁] or [x₂, x₁]."""
    first, second = parts.at(0), parts.at(1)
    return either(op.Concat(op.Neg(second), first, name="turned"), op.Concat(second, first, name="turned"))


@rewrite(op.Add(op.Mul(var("x"), var("cos")), op.Mul(_exchanged(_HALVES), var("sin"))))
def rotary_embedding(m: Match, x: Value, cos: Value, sin: Value) -> Value:
    """x [c, c] + [-x₂, x₁] [s, s] = x [c, c] + [x₂, x₁] [-s, s] = RotaryEmbedding(x, c, s), x = [x₁, x₂]."""
    _require_halves(m, x)
    m.require(m.turned.attr("axis") in (-1, 3), "not along the last axis")
    return _rotated(
        m, x, *_halves_of_angles(m, cos, sin, paired=False, why="the angles are not the same for both halves")
    )


def _halves_of_angles(m: Match, cos: Value, sin: Value, paired: bool, why: str) -> tuple[_Angles, _Angles]:
    """Return (half, whole angles) of cosines and sines; declines if the halves differ. Without a Neg of x₂, the first
    half of the sines has the sign."""
    sign = 1 if producer(m.turned.inputs[0], "Neg") is not None else -1
    return (m.known(_half(m, cos, 1, paired), why), cos), (m.known(_half(m, sin, sign, paired), why), sin)


@rewrite(
    op.Concat(
        op.Sub(op.Mul(_HALVES.at(0), var("cos")), op.Mul(_HALVES.at(1), var("sin"))),
        op.Add(op.Mul(_HALVES.at(1), var("cos")), op.Mul(_HALVES.at(0), var("sin"))),
        name="turned",
    )
)
def rotary_of_halves(m: Match, x: Value, cos: Value, sin: Value) -> Value:
    """[x₁ c - x₂ s, x₂ c + x₁ s] = RotaryEmbedding(x, c, s), x = [x₁, x₂], two halves."""
    _require_halves(m, x)
    m.require(m.turned.attr("axis") in (-1, 3), "not along the last axis")
    return _rotated(m, x, (cos, cos), (sin, sin))


_PAIRS: Final = op.Split(op.Reshape(var("x"), ..., name="pairs"), ..., name="halves")


@rewrite(op.Add(op.Mul(var("x"), var("cos")), op.Mul(op.Reshape(_exchanged(_PAIRS), ..., name="row"), var("sin"))))
def rotary_of_pairs(m: Match, x: Value, cos: Value, sin: Value) -> Value:
    """x [c, c] + [-x₂, x₁] [s, s] = RotaryEmbedding(x, c, s, interleaved = 1), x₁ and x₂ at even and odd places."""
    _require_heads(m, x)
    dims = [m.dims(v) for v in (m.pairs.output, *m.halves.outputs)]
    ones = [d[-1:] for d in dims] == [(2,), (1,), (1,)]  # in row-major order pairs are adjacent
    m.require(ones and m.turned.attr("axis") in (-1, len(dims[0]) - 1), "not pairs of features")
    m.require(types.same_shape(x, m.row.output), "not pairs of features")
    angles = _halves_of_angles(m, cos, sin, paired=True, why="the angles are not the same for both of a pair")
    return _rotated(m, x, *angles, interleaved=1)


@rewrite(
    op.Reshape(
        op.Concat(
            op.Unsqueeze(op.Sub(op.Mul(var("a"), var("cos")), op.Mul(var("b"), var("sin"))), ..., name="first"),
            op.Unsqueeze(op.Add(op.Mul(var("a"), var("sin")), op.Mul(var("b"), var("cos"))), ..., name="second"),
            name="turned",
        ),
        ...,
    )
)
def rotary_of_numbers(m: Match, a: Value, b: Value, cos: Value, sin: Value) -> Value:
    """(a + i b) (c + i s) = RotaryEmbedding(x, c, s, interleaved = 1), of complex numbers, which are pairs in x."""
    x, other = _every_other(m, a, 0), _every_other(m, b, 1)
    x = m.known(x if x is other else None, "not pairs of features")
    _require_heads(m, x)
    last = all(listed_axes(n) in ([4], [-1]) for n in (m.first, m.second)) and m.turned.attr("axis") in (-1, 4)
    m.require(last and types.same_shape(x, m.anchor.output), "not pairs of features")
    return _rotated(m, x, (cos, cos), (sin, sin), interleaved=1)


def _every_other(m: Match, value: Value, place: int) -> Value | None:
    """Return x if `value` is x[..., place::2], or Gather(Reshape(x, pairs), place) along the last axis; else None."""
    node = producer(value, "Gather", "Slice")
    source = node.inputs[0] if node is not None else None
    dims = m.dims(source)
    if node is None or source is None or not dims:
        return None
    last = len(dims) - 1
    if node.op == "Slice":
        return source if _takes_every_other(node, dims, place) else None
    index, pairs = array_of(node.inputs[1]), producer(source, "Reshape")
    if node.attr("axis") % (last + 1) != last or index is None or index.ndim or int(index) != place or pairs is None:
        return None
    x = pairs.operands[0]
    return x if _are_pairs(m, x, source) else None


def _takes_every_other(node: Node, dims: Shape, place: int) -> bool:
    """Whether a Slice of a tensor of these dims is [..., place::2]."""
    cuts, last = constant_cuts(node, len(dims)), len(dims) - 1
    is_second = [(axis, start, step) for axis, start, _, step in cuts] == [(last, place, 2)]
    return is_second and isinstance(dims[last], int) and is_behind(cuts[0][2], last, dims)


def _are_pairs(m: Match, x: Value, pairs: Value) -> bool:
    """Whether `pairs` is x with the last axis split into pairs."""
    dims, split = m.shape(x), m.shape(pairs)
    if not dims or split is None or not isinstance(dims[-1], int):
        return False
    return split == (*dims[:-1], dims[-1] // 2, 2) and None not in split


_ROTATED: Final = op.RotaryEmbedding(var("part"), var("cos"), var("sin"), name="rotary")


@rewrite(op.Concat(either(op.Reshape(_ROTATED, ...), _ROTATED), var("rest"), name="joined"))
def rotary_of_part(m: Match, part: Value, cos: Value, sin: Value, rest: Value) -> Value:
    """[RotaryEmbedding(x₁), x₂] = RotaryEmbedding([x₁, x₂]) of the features x₁ alone, where a Split has cut both."""
    heads = m.rotary.attr("num_heads", 0)
    rows = producer(part, "Reshape") if heads else None
    first = part if rows is None else rows.operands[0]
    cut = producer(first, "Split")
    adjacent = cut is not None and rest.producer is cut and rest.index == first.index + 1
    m.require(adjacent and types.same_shape(first, m.joined.operands[0]), "not parts side by side")
    assert cut is not None
    dims = m.dims(m.joined.output)
    m.require(len(dims) == 4 and {m.joined.attr("axis"), cut.attr("axis")} <= {-1, 3}, "not features of heads")
    m.require(not heads or dims[2] == heads, "other heads")
    size = types.length_of(first, -1)
    m.require(size is not None and not m.rotary.attr("rotary_embedding_dim", 0), "a part of a part")
    whole = m.op.Concat(first, rest, like=m.joined)
    return _embedded(m, whole, dims, heads, cos, sin, like=m.rotary, rotary_embedding_dim=size)


def _require_heads(m: Match, x: Value) -> int:
    m.require(m.opset >= 23, "the operator is there from opset 23 on")
    m.require(m.dtype(x) in (TensorProto.FLOAT, TensorProto.FLOAT16), "neither float32 nor float16")
    return m.known(types.length_of(x, 3) if m.rank(x) == 4 else None, "not batches of heads")


def _require_halves(m: Match, x: Value) -> None:
    width = _require_heads(m, x)
    halves = [m.dims(v)[-1:] for v in present(m.halves.outputs)]
    m.require(width % 2 == 0 and halves == [(width // 2,)] * 2, "not two halves")


def _rotated(m: Match, x: Value, *angles: _Angles, **attributes: int) -> Value:
    """Return RotaryEmbedding(x). `angles`: for cosines and sines (angles of a half, whole angles).

    The axes of x are [batch, heads, positions, width], or [batch, positions, heads, width], which become rows.
    """
    dims = m.dims(x)
    full = _full(m, angles[0][1])
    place = 1 if full[1:3] == (dims[1], 1) != (1, dims[2]) else 2
    cos, sin = [_of_each(m, *given, x, place) for given in angles]
    heads = m.known(types.length_of(x, 2), "not batches of heads") if place == 1 else 0
    return _embedded(m, x, dims, heads, cos, sin, **attributes)


def _embedded(m: Match, x: Value, dims: Shape, heads: int, *angles: Value, **attributes: Any) -> Value:
    """Return RotaryEmbedding(x); of x [batch, positions, heads, width] as rows, if `heads` are given."""
    width = dims[3]
    assert isinstance(width, int)
    if heads:
        x, attributes = m.op.Reshape(x, m.ints([0, 0, heads * width])), attributes | {"num_heads": heads}
    rows: Value = m.op.RotaryEmbedding(x, *angles, **attributes)
    if not heads:
        return rows
    return m.op.Reshape(rows, m.ints([0, 0, heads, width]))


def _full(m: Match, angles: Value) -> Shape:
    dims = m.dims(angles)
    m.require(1 < len(dims) <= 4, "the positions of x and of the angles may differ, and broadcast")
    return (1,) * (4 - len(dims)) + dims


def _of_each(m: Match, angles: Value, whole: Value, x: Value, place: int) -> Value:
    """Return the angles in the operator's layout [batch, positions, half]; `whole`: angles of both halves, with the
    positions at axis `place`."""
    batch, width = m.dims(x)[::3]
    assert isinstance(width, int)
    full = _full(m, whole)
    m.require(full[3] == (width if whole is not angles else width // 2), "one angle for several features")
    same = full[place] == m.dims(x)[place] is not None
    m.require(same, "the positions of x and of the angles may differ, and broadcast")
    m.require(full[3 - place] == 1, "angles for each head")
    m.require(full[0] in (1, batch) and batch is not None, "angles for another batch")
    rank = len(m.dims(whole))
    if rank == 4:
        angles = _without_heads(m, angles, 3 - place)
    elif rank == 2:
        angles = m.op.Unsqueeze(angles, m.ints([0]))
    elif place == 1:
        angles = m.op.Transpose(angles, perm=[1, 0, 2])
    if full[0] == batch:
        return angles
    if isinstance(batch, int):
        return m.op.Expand(angles, m.ints([batch, 1, 1]))
    listed = m.op.Shape(_first_of_batch(m, x), start=0, end=1)
    return m.op.Expand(angles, m.op.Concat(listed, m.ints([1, 1]), axis=0))


def _first_of_batch(m: Match, x: Value) -> Value:
    """Return an early value with the batch of `x` in front. A Shape of `x` would keep its Transpose."""
    batch = m.dims(x)[:1]
    for _ in range(_MAX_STEPS):
        source = x.producer.input(0) if x.producer is not None else None
        if source is None or source.graph is not x.graph or m.dims(source)[:1] != batch:
            break
        x = source
    return x


def _without_heads(m: Match, angles: Value, axis: int) -> Value:
    """Return Squeeze(angles, axis), or the operand of an Unsqueeze."""
    node = producer(angles, "Unsqueeze")  # a new node, or a node of the graph
    axes = array_of(node.input(1)) if node is not None else None
    inner = node.inputs[0] if node is not None and axes is not None and axes.tolist() in ([axis], [axis - 4]) else None
    return inner if inner is not None else m.op.Squeeze(angles, m.ints([axis]))


# -- tables of angles ---------------------------------------------------------------------------------------------

_MAX_ROTATION_DEPTH: Final = 8


def _half_of_constant(m: Match, value: Value, sign: int, paired: bool) -> Value | None:
    """Return the second half of a constant; None unless equal to `sign` times the first. `paired`: see `_half`."""
    a, b = _halves_of(value.array, paired)
    equal = a.ndim and a.shape == b.shape and np.array_equal(a * a.dtype.type(sign), b)
    return m.const(np.ascontiguousarray(b), like=value.array) if equal else None


def _half(m: Match, value: Value, sign: int, paired: bool = False, reach: int = _MAX_ROTATION_DEPTH) -> Value | None:
    """Return the second half of [h, h] along the last axis, or of [-h, h] with sign -1; None if the halves may differ.

    With `paired` the halves are the elements at even and at odd indices.
    """
    if value.constant:
        return _half_of_constant(m, value, sign, paired)
    node = producer(value)
    if node is None or not reach or node.inputs[0] is None:
        return None
    if node.op == "Concat":
        return None if paired else _half_of_concat(m, node, sign)
    if node.op == "Mul":
        return _half_of_product(m, node, sign, paired, reach - 1)
    if node.op == "Gather" and paired and sign == 1 and _is_of_pairs(m, node):
        added = range((m.rank(node.inputs[0]) or 0) - 1, (m.rank(node.output) or 0) - 1)
        return m.op.Unsqueeze(node.inputs[0], m.ints([*added])) if added else node.inputs[0]
    if not _keeps_halves(m, node, sign):
        return None
    inner = _half(m, node.inputs[0], sign, paired, reach - 1)
    return None if inner is None else m.op[node.op](inner, *node.inputs[1:], like=node)


def _keeps_halves(m: Match, node: Node, sign: int) -> bool:
    """Whether a node applied to a half of its first operand gives the half of its result, with the sign."""
    if node.op in ("Unsqueeze", "Squeeze", "Gather"):
        return _keeps_last(m, node)
    return node.op == "Cast" or (sign == 1 and node.op in UNARY)


def _half_of_concat(m: Match, node: Node, sign: int) -> Value | None:
    """Return a half of a Concat of two equal parts, the first of them with the sign."""
    rank = m.rank(node.output)
    if len(node.inputs) != 2 or rank is None or node.attr("axis") % rank != rank - 1:
        return None
    first, second = node.inputs
    if sign < 0:
        turned = first.producer if first is not None else None
        first = turned.inputs[0] if turned is not None and turned.op == "Neg" else None
    return second if first is second else None


def _halves_of(array: Array, paired: bool) -> tuple[Array, Array]:
    if not array.ndim:
        return array, array
    middle = array.shape[-1] // 2
    return (array[..., ::2], array[..., 1::2]) if paired else (array[..., :middle], array[..., middle:])


def _is_of_pairs(m: Match, node: Node) -> bool:
    """Whether a Gather takes each element of the last axis twice, in order, perhaps behind new axes of size 1."""
    dims, indices = m.dims(node.inputs[0]), array_of(node.inputs[1])
    if not dims or indices is None or not indices.ndim or node.attr("axis") % len(dims) != len(dims) - 1:
        return False
    twice = np.repeat(np.arange(dims[-1]), 2) if isinstance(dims[-1], int) else np.zeros(0)
    return indices.shape[-1] == indices.size and np.array_equal(indices.reshape(-1), twice)


def _half_of_product(m: Match, node: Node, sign: int, paired: bool, reach: int) -> Value | None:
    """Return a half of a product whose second factor is a number, or the sign of each half."""
    for value, other in (node.inputs, node.inputs[::-1]):
        if value is None or other is None or not other.constant:
            continue
        array = other.array
        if array.size == 1 and array.ndim <= (m.rank(value) or 0):
            inner = _half(m, value, sign, paired, reach)
            return None if inner is None else m.op.Mul(inner, other)
        if _is_sign_of_halves(array, m.shape(value), paired):
            return _half(m, value, -sign, paired, reach)
    return None


def _is_sign_of_halves(array: Array, dims: Shape | None, paired: bool) -> bool:
    """Whether a factor of a value of these dims is -1 on the first half of the last axis, and 1 on the second."""
    count = array.size
    if not dims or not 0 < array.ndim <= len(dims) or dims[-1] != count or array.shape[-1] != count:
        return False
    signs = np.tile([-1, 1], count // 2) if paired else np.repeat([-1, 1], count // 2)
    return np.array_equal(array.reshape(-1), signs)


def _keeps_last(m: Match, node: Node) -> bool:
    """Whether the last axis of the result is the whole last axis of the first operand."""
    before, after = m.rank(node.inputs[0]) if node.inputs[0] is not None else None, m.rank(node.output)
    if not before or not after:
        return False
    if node.op == "Gather":
        return bool(node.attr("axis") % before != before - 1)
    axes = listed_axes(node)
    longer = max(before, after)
    return axes is not None and all(a % longer != longer - 1 for a in axes)


@register
class FuseRotary(RewritePass):
    """x [c, c] + [-x₂, x₁] [s, s] = RotaryEmbedding(x, c, s) (opset 23), for all forms of signs and angles.

    Applies when: the angles are equal for both halves (by Concat, Gather of a table, product with signs, or constants)
    and for all heads, and belong to the positions of x. Angles of a single sequence are expanded over the batch, once
    for all layers. Heads behind the positions stay there, as rows. A rotated part before unrotated features is fused as
    well.
    """

    info = PassInfo("fuse-rotary", opt_level=3, after=("merge-parallel",), ops=("Concat",))
    rules = (rotary_embedding, rotary_of_halves, rotary_of_pairs, rotary_of_numbers, rotary_of_part)
