"""Signs are part of a sum, of a product, of a constant: exact, as no rounding depends on them."""

from __future__ import annotations

from itertools import islice
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.linear import lengths_of
from onnxopt.graph import Shape, Value
from onnxopt.graph.node import Node, array_of, own_producer, present
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS, is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, either, one_of, only_read_by, op, rewrite, var

_MAX_SIGN_READERS: Final = 100  # readers examined
_MAX_SIGNS: Final = 1 << 12  # signs stored
_MAX_SINES: Final = 1 << 16  # elements of a sine table stored twice


_NEGATIVE: Final = op.Neg(var("y"), name="inner", shared=True)


@rewrite(either(op.Add(var("x"), _NEGATIVE), op.Sub(var("x"), _NEGATIVE)))
def sum_with_neg(m: Match, x: Value, y: Value) -> Value:
    """x + (-y) = x - y, x - (-y) = x + y, where all readers of the Neg can absorb the sign."""

    def takes(user: Node) -> bool:
        return user.op == "Add" or (user.op == "Sub" and user.inputs[0] is not m.inner.output)

    m.require(m.inner.output.feeds_only(takes), "Neg output used elsewhere")
    return m.op["Sub" if m.anchor.op == "Add" else "Add"](x, y, like=m.anchor)


@rewrite(
    either(
        one_of("Mul", "Div")(op.Neg(var("x"), name="inner", shared=True), const("c"), name="node"),
        op.Neg(one_of("Mul", "Div")(var("x"), const("c"), name="node")),
    )
)
def sign_of_factor(m: Match, x: Value, c: Array) -> Value:
    """(-x) c = -(x c) = x (-c), (-x) / c = -(x / c) = x / (-c)."""
    if m.anchor.op != "Neg":
        only_read_by(m, m.inner, "Mul", "Div")
    return m.op[m.node.op](x, turned(m, c), like=m.node)


def turned(m: Match, c: Array) -> Value:
    """Return the constant -c, which takes no more memory than c."""
    m.require(is_float(c), "not floating point")
    m.require(c.size == 1 or m.value("c").only_user is not None, "the constant is used elsewhere")
    return m.const(-c, like=c)


@rewrite(op.Abs(op.Neg(var("x"), shared=True), name="node"))
def size_of_neg(m: Match, x: Value) -> Value:
    """|-x| = |x|."""
    return m.op.Abs(x, like=m.node)


_JOINED: Final = op.Concat(var("first"), ..., name="concat")


@rewrite(op.Mul(either(_JOINED, op.Reshape(_JOINED, var("target"), name="reshape")), var("y"), name="node"))
def sign_of_parts(m: Match, first: Value, y: Value, target: Value | None = None) -> Value:
    """[-a, b] y = [a, b] (y [-1, 1]), with the signs multiplied into y once for all products of the same parts.

    The parts may be columns joined by a Reshape.
    """
    turned = _turned_parts(m.concat)
    if turned is None:
        m.skip()
    signs, inputs = turned
    if target is not None:
        signs = _in_a_row(signs, m.reshape)
    signs = m.known(signs, "the length of a part is unknown, or large")
    m.require(m.dtype(first) in FLOATS, "the lowest of the integers has no negative")
    factor = _with_signs(m, y, signs, first)
    joined = m.op.Concat(*inputs, like=m.concat)
    return m.op.Mul(joined if target is None else m.op.Reshape(joined, target, like=m.reshape), factor, like=m.node)


def _with_signs(m: Match, y: Value, signs: Array, like: Value) -> Value:
    """Return y times the signs: a constant of the same size, or a product that several readers share."""
    if y.constant:
        c = y.array
        m.require((c * signs).size == c.size, "the constant would become larger")
        m.require(y.feeds_only(lambda u: _signs_beside(u, y) is not None), "the constant is used elsewhere")
        return m.const(c * signs, like=c)
    beside = (_signs_beside(u, y) for u in islice(y.users, _MAX_SIGN_READERS))
    alike = (s for s in beside if s is not None and np.array_equal(s, signs))
    m.require(len(list(islice(alike, 2))) == 2, "a product more for a Neg less")
    return m.op.Mul(y, m.const(signs, like=like))


def _turned_parts(concat: Node) -> tuple[Array | None, list[Value]] | None:
    """Return (signs along the axis of a Concat, parts without Neg); None if no part is a Neg of its own."""
    negs = [own_producer(v, concat, "Neg") for v in concat.inputs]
    if not any(negs):
        return None
    inputs = present([v if neg is None else neg.inputs[0] for neg, v in zip(negs, concat.inputs)])
    axis = int(concat.attr("axis"))
    lengths = lengths_of(inputs, axis)
    if lengths is None or sum(lengths) > _MAX_SIGNS:
        return None, []
    signs = np.concatenate([np.full(n, 1.0 if neg is None else -1.0) for n, neg in zip(lengths, negs)])
    behind = len(types.dims_of(inputs[0])) - 1 - axis if axis >= 0 else -1 - axis
    return signs.reshape(-1, *(1,) * behind), inputs


def _in_a_row(signs: Array | None, reshape: Node) -> Array | None:
    """Return the signs along the last axis of a Reshape of columns, repeated for each column block."""
    length = types.length_of(reshape.output, -1)
    if signs is None or signs.ndim > 1 or length is None:
        return None
    if length > _MAX_SIGNS or not signs.size or length % signs.size:
        return None
    return np.tile(signs, length // signs.size)


def _signs_beside(user: Node, y: Value) -> Array | None:
    """Return the signs by which `user` multiplies y: from parts of a Concat, or an existing constant."""
    if user.op != "Mul" or user.graph is not y.graph:
        return None
    other = next((v for v in present(user.inputs) if v is not y), None)
    given = array_of(other)
    if given is not None:
        return given if (np.abs(given) == 1).all() else None
    reshape = own_producer(other, user, "Reshape")
    node = own_producer(other if reshape is None else reshape.inputs[0], reshape or user, "Concat")
    turned = _turned_parts(node) if node is not None else None
    if turned is None:
        return None
    return turned[0] if reshape is None else _in_a_row(turned[0], reshape)


_HALVES: Final = op.Split(var("x"), ..., name="halves", shared=True)
_FIRST, _SECOND = _HALVES.at(0), _HALVES.at(1)


def _are_halves(width: int, c: Shape, d: Shape, s: Shape, t: Shape) -> bool:
    """Return whether factors have known shapes, equal in pairs, and half of the width."""
    half = width % 2 == 0 and all(r[-1:] == (width // 2,) and None not in r for r in (c, d, s, t))
    return half and c == d and s == t


@rewrite(
    op.Concat(
        op.Sub(op.Mul(_FIRST, var("c")), op.Mul(_SECOND, var("s"))),
        op.Add(op.Mul(_SECOND, var("d")), op.Mul(_FIRST, var("t"))),
        name="concat",
    )
)
def turned_halves(m: Match, x: Value, c: Value, s: Value, d: Value, t: Value) -> Value:
    """[x₁ c - x₂ s, x₂ d + x₁ t] = x [c, d] + [x₂, x₁] [-s, t], where x₁ and x₂ are the halves of x.

    Saves three nodes of a rotary embedding for all rotated values but the first. The factors are constants, or a Concat
    each that all rotated values share.
    """
    width, rank = types.length_of(x, -1) or 0, len(m.dims(x))
    m.require(width and m.dtype(x) in FLOATS, "no floats, or nobody knows how many")
    m.require(len(m.halves.outputs) == 2, "not two halves")
    shapes = [m.dims(v) for v in (c, d, s, t)]
    last = all(int(n.attr("axis")) in (-1, rank - 1) for n in (m.concat, m.halves))
    m.require(last and max(map(len, shapes)) <= rank, "not along the last axis")  # a higher rank shifts the axes
    m.require(_are_halves(width, *shapes), "the factors are not as wide as the halves")
    if all(v.constant and v.array.size <= _MAX_SINES for v in (c, d, s, t)):
        cosines = m.const(np.concatenate((c.array, d.array), -1), like=c.array)
        sines = m.const(np.concatenate((-s.array, t.array), -1), like=s.array)
    else:
        m.require(c is d and s is t and _is_shared(c) and _is_shared(s), "one product more in place of two")
        cosines, sines = m.op.Concat(c, c, axis=-1), m.op.Concat(m.op.Neg(s), s, axis=-1)
    crossed = m.op.Concat(*m.halves.outputs[::-1], like=m.concat)
    return m.op.Add(m.op.Mul(x, cosines), m.op.Mul(crossed, sines))


def _is_shared(c: Value) -> bool:
    """Whether further values than one, rotated by two products, are multiplied by a factor, alone or joined."""
    users = [u for u in islice(c.users, _MAX_SIGN_READERS) if u.graph is c.graph]
    return any(u.op == "Concat" and u.input(1) is c for u in users) or [u.op for u in users].count("Mul") > 2


@register
class FoldSigns(RewritePass):
    """x - (-y) = x + y, (-x) c = x (-c), [-a, b] y = [a, b] (y [-1, 1]), |-x| = |x|;
    [x₁ c - x₂ s, x₂ c + x₁ s] = x [c, c] + [x₂, x₁] [-s, s].

    Applies when: a sum, a difference, or a product with constants reads the Neg, and stored constants do not grow.
    Rotary embeddings rotate half of each query and key: instead, the shared sines get the sign, once.
    Not done: -(x - y), which is -0.0 where y - x is 0.0 (see `simplify-arithmetic`); integer constants.
    """

    info = PassInfo("fold-signs", opt_level=1, ops=("Neg", "Abs", "Concat"))
    rules = (sum_with_neg, sign_of_factor, sign_of_parts, turned_halves, size_of_neg)
