"""Decomposed attention becomes the standard operator (opset 23)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.score_masks import bounds
from onnxopt.graph import Node, Value
from onnxopt.graph.dims import is_invented
from onnxopt.graph.node import arrays_of, present, producer
from onnxopt.graph.value import Dim, Shape
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import BY_CODE
from onnxopt.proto.messages import Array, numpy_dtype
from onnxopt.rewriting import Match, Pattern, const, either, op, rewrite, var
from onnxopt.rewriting.attention import (
    PROBABILITIES,
    Filled,
    Kept,
    Scores,
    is_regular,
    kept_by,
    kept_by_numbers,
    of_windows,
    one_number,
    scores_behind,
    target,
    with_one_lead,
)
from onnxopt.rewriting.compositions import LEFT

_HIDES: Final = "a mask of minus infinity for all keys: the operator gives zeros, the formula NaN"
_UNKNOWN_MASK: Final = "a mask that may be the lowest number for all keys: the operator gives zeros, the formula means"
_PAST: Final = "it has a past, or gives scores"
_RANKS: Final = (3, 4, 5)  # of batches of heads: without heads; with windows in front of heads
_HUGE: Final = 1e30  # scores are negligible beside it
_NEXT: Final = np.nextafter(np.finfo(np.float32).min, np.float32(0))  # the number next to the lowest


@rewrite(op.MatMul(PROBABILITIES, var("v")))
def attention(m: Match, x: Value, v: Value, guarded: Value | None = None) -> Value:
    """Softmax(c Tanh(q kᵀ z / c) + mask) v = Attention(q, k, v, mask, scale = z, softcap = c)."""
    m.require(m.opset >= 23, "the operator is there from opset 23 on")
    m.require(m.dtype(v) in (TensorProto.FLOAT, TensorProto.FLOAT16), "neither float32 nor float16")
    s = scores_behind(m, x, guarded)
    m.require(s.cap >= 0, "not the scores of queries and keys")
    (q, of_queries), (keys, of_keys) = _unscaled(s.q), _unscaled(s.keys)
    scale = s.scale * of_queries * of_keys
    m.require(0 < scale <= np.finfo(np.float32).max, "the scale is not positive, or none")
    sizes = _sizes(m, q, keys, v, s.turned)
    keys = _straight(m, keys) if s.turned else keys
    same = s.turned or types.length_of(q, -1) == types.length_of(keys, -1) is not None
    m.require(same, "a size may be 1 and broadcast")
    terms, causal = _without_causal(m, s.terms, sizes)
    needed = Kept.SOME if len(s.terms) == 1 else Kept.FIRST  # a key kept by all masks is kept by the sum
    mask = _mask(m, terms, Kept.UNKNOWN if guarded is not None else needed)
    if mask is not None:
        mask = _as_large(m, mask, q, keys, v, sizes)
    more: dict[str, Any] = ({"softcap": s.cap} if s.cap else {}) | ({"is_causal": 1} if causal else {})
    if len(sizes) == 3:
        more |= {"q_num_heads": 1, "kv_num_heads": 1}
    operands = (q, keys, v) if len(sizes) < 5 else of_windows(m, (q, keys, v))
    result: Value = m.op.Attention(*operands, mask, scale=scale, **more)
    if len(sizes) == 5:
        result = m.op.Reshape(result, target(m, (*sizes[:-1], m.dims(v)[-1])))
        _require_fewer(m, s, (q, keys, v))
    return result


def _require_fewer(m: Match, s: Scores, operands: tuple[Value, ...]) -> None:
    """Decline if more nodes are made than removed; Reshapes and Transposes beside the new ones merge with them."""
    beside = [m.anchor.output.only_user, *(x.producer for x in operands)]
    merging = sum(n is not None and n.op in ("Reshape", "Transpose") for n in beside)
    turned = [s.keys] * (producer(s.keys, "Transpose") is not None)
    gone = [*s.through, *m.softmax.outputs, *m.anchor.outputs, *turned]
    m.require(len(m.new_nodes) - merging <= len(gone), LEFT)


def _of_batches(m: Match, mask: Value, full: Shape, lead: Shape) -> Value:
    """Return a mask of dims `full` for scores with axes `lead` in front, as [batch, heads, queries, keys]."""
    if len(full) == 3 and full[0] != 1:
        return m.op.Unsqueeze(mask, m.ints([1]))
    if len(full) < 5:
        return mask
    # Measured: repeating the masks of windows for each batch takes longer than the operator saves.
    m.require(
        full[:2] in ((1, 1), lead[:2]), "a mask of some windows or batches, which would be repeated for the others"
    )
    return mask if len(m.dims(mask)) < 5 else with_one_lead(m, mask)


def _unscaled(x: Value) -> tuple[Value, float]:
    """Return (value, factor) of a product with a number, else (x, 1)."""
    node = x.producer
    if node is not None and node.op == "Mul":
        for value, factor in (node.inputs, node.inputs[::-1]):
            number = one_number(factor)
            if value is not None and number is not None:
                return value, number
    return x, 1.0


def _without_causal(m: Match, terms: Sequence[Value | Filled], sizes: Shape) -> tuple[list[Value | Filled], bool]:
    """Return (terms without causal masks, whether a causal mask was found).

    Next to further masks, which may hide earlier keys, a mask with finite numbers does not count as causal.
    """
    least = -np.inf if len(terms) > 1 else -_HUGE
    others = [t for t in terms if not _is_causal(m, t, sizes, least)]
    return others, len(others) < len(terms)


def _is_causal(m: Match, term: Value | Filled, sizes: Shape, least: float) -> bool:
    filled = _as_filled(term)
    if filled is not None:
        dims = m.dims(filled.condition)
        hides = (one_number(filled.fill) or 0.0) <= least
        kept = kept_by(filled.condition, filled.kept) if hides else Kept.UNKNOWN
    elif isinstance(term, Filled):
        return False
    else:
        dims, found = m.dims(term), bounds(term)
        hides = found is not None and found.hides and found.low == found.high == 0
        kept = kept_by_numbers(term) if hides else Kept.UNKNOWN
    rows = sizes[-2:]
    return kept == Kept.CAUSAL and dims[-2:] == rows and {*dims[:-2]} <= {1} and None not in rows


def _sizes(m: Match, q: Value, k: Value, v: Value, turned: bool) -> Shape:
    """Return (batch, heads, queries, keys): without heads, or with windows in front of heads, too.

    Widths and numbers of keys and values are equal, as the products require.
    """
    shapes = queries, keys, values = [_of_heads(m, x, _RANKS) for x in (q, k, v)]
    lead, length = queries[:-2], keys[-1 if turned else -2]
    m.require(keys[:-2] == values[:-2] == lead and None not in lead, "batches or heads may differ, and broadcast")
    m.require(all(0 not in s for s in shapes), "there is nothing, of which runtimes take no Attention")
    many = some_keys(length, queries[-2])
    m.require(many, "no keys may be left of some: the operator fails then, the formula gives zeros")
    return *queries[:-1], length


def _of_heads(m: Match, x: Value, ranks: Sequence[int] = (4,)) -> Shape:
    """Return (batch, heads, rows, width); declines for another rank."""
    m.require(m.rank(x) in ranks, "not batches of heads")
    return m.dims(x)


def some_keys(columns: Dim, rows: Dim) -> bool:
    """Whether keys exist wherever queries do, with no empty operand.

    True for equal sizes, a number, a size named in the file, or a sum of sizes; not for a part of a size.
    """
    if columns is None or columns == rows or isinstance(columns, int):
        return columns not in (0, None)
    return not is_invented(columns) and not (columns.startswith("{") and set("(-") & set(columns))


def _straight(m: Match, turned: Value) -> Value:
    """Return the keys with the last axes swapped back: the operand of the Transpose, if possible."""
    node = producer(turned, "Transpose")
    before, perm = turned, [*range(len(m.dims(turned)))]
    if node is not None and "perm" in node.attributes:
        before, perm = node.operands[0], list(node.attr("perm"))
    straight = [*perm[:-2], perm[-1], perm[-2]]
    return before if straight == sorted(perm) else m.op.Transpose(before, perm=straight)


def _mask(m: Match, terms: Sequence[Value | Filled], needed: Kept) -> Value | None:
    """Return a single mask for all terms and replaced scores, boolean if it is 0 or minus infinity."""
    conditions, numbers, sizes = [], [], []
    for term in terms:
        filled = _as_filled(term)
        if filled is not None and one_number(filled.fill) == -np.inf:
            m.require(kept_by(filled.condition, filled.kept) >= needed, _HIDES)
            conditions.append(filled.condition if filled.kept else m.op.Not(filled.condition))
            continue
        value, size = _numbers(m, term, filled, needed)
        numbers.append(value)
        sizes.append(size)
    small = sum(sorted(sizes)[:-1]) <= 5 * _HUGE  # negligible next to the lowest number, but not next to its neighbour
    m.require(small, "a sum of huge numbers: it may be minus infinity")
    if not terms:
        return None
    if not numbers:
        return _joined(m.op.And, conditions)
    if conditions:
        zero = np.zeros((), numpy_dtype(m.dtype(numbers[0])))
        numbers.append(m.op.Where(_joined(m.op.And, conditions), m.const(zero), m.const(zero - np.inf)))
    return _joined(m.op.Add, numbers)


def _joined(build: Callable[[Value, Value], Value], parts: Sequence[Value]) -> Value:
    return reduce(build, parts)


def _as_filled(term: Value | Filled) -> Filled | None:
    """Return a term Where(c, number, 0), equivalent to the same Where on scores, as Filled; else None."""
    if isinstance(term, Filled):
        return term
    node = producer(term, "Where")
    if node is None or node.inputs[0] is None:
        return None
    numbers = [one_number(v) for v in node.inputs[1:]]
    if 0.0 not in numbers or None in numbers:
        return None
    kept = numbers[0] == 0.0
    fill = node.inputs[2 if kept else 1]
    assert fill is not None
    return Filled(node.inputs[0], kept, fill)


def _numbers(m: Match, term: Value | Filled, filled: Filled | None, needed: Kept) -> tuple[Value, float]:
    """Return (additive term, its largest magnitude), with the lowest number replaced by its neighbour.

    For rows of the lowest number the operator gives zeros, the formula the mean of all values; for the neighbour both
    give the mean.
    """
    fill = one_number(filled.fill) if filled is not None and m.dtype(filled.fill) == TensorProto.FLOAT else None
    if filled is not None and fill is not None and fill <= -_HUGE:
        a, b = m.const(np.zeros((), np.float32)), m.const(max(np.float32(fill), _NEXT))
        return m.op.Where(filled.condition, *((a, b) if filled.kept else (b, a))), -fill
    m.require(not isinstance(term, Filled), "scores are replaced by a number that they may reach")
    assert isinstance(term, Value)
    found = m.known(bounds(term), _UNKNOWN_MASK)
    m.require(not found.hides or kept_by_numbers(term) >= needed, _HIDES)
    size, limit = max(-found.low, found.high), BY_CODE[m.dtype(term)].high
    if size < limit:
        return term, size
    m.require(not found.hides and m.dtype(term) == TensorProto.FLOAT, _UNKNOWN_MASK)
    return m.op.Max(term, m.const(_NEXT)), size


def _as_large(m: Match, mask: Value, q: Value, keys: Value, v: Value, sizes: Shape) -> Value:
    """Return the mask expanded over all queries and keys, where a single row or column is possible."""
    rows, columns = sizes[-2:]
    dims = m.dims(mask)
    rank = len(dims)
    m.require(0 < rank <= len(sizes), "the mask has another rank")
    full = (1,) * (len(sizes) - rank) + dims
    widens = any(n not in (1, size) for n, size in zip(full, sizes[:-1]))
    m.require(not widens, "the mask may widen the scores")
    # keys, values and mask columns are equally many, or the mask has a single column; otherwise the product fails
    sure = full[-1] == 1 or columns == m.dims(v)[-2] is not None
    m.require(full[-1] == columns is not None or sure, "the mask may widen the scores")
    wanted = [m.ints([1]), m.ints([1])]
    if full[-2] != rows or rank < 2:
        wanted[0] = _size(m, mask, rank - 1) if rows == columns == full[-1] else _size(m, q, len(sizes) - 2)
    if full[-1] != columns:
        wanted[1] = _size(m, keys, len(sizes) - 2)
    return _expanded(m, _of_batches(m, mask, full, sizes[:-2]), wanted, rank)


def _expanded(m: Match, mask: Value, wanted: Sequence[Value], rank: int) -> Value:
    """Return the mask, which had this rank, expanded to at least the last two sizes."""
    numbers = arrays_of(wanted)
    if numbers is None:
        return m.op.Expand(mask, m.op.Concat(*wanted, axis=0))
    target = [n.item() for n in numbers]
    return mask if target == [1, 1] and rank > 1 else m.op.Expand(mask, m.ints(target))


def _size(m: Match, value: Value, axis: int) -> Value:
    """Return the size of an axis; for past and new keys a sum, usable by an operator that concatenates both."""
    size = types.length_of(value, axis)
    if size is not None:
        return m.ints([size])
    node = value.producer
    if node is not None and node.inputs[0] is not None:
        if node.op == "Gather" and node.attr("axis") % 4 < axis and m.rank(value) == m.rank(node.inputs[0]):
            return _size(m, node.inputs[0], axis)
        if node.op == "Concat" and node.attr("axis") % 4 == axis:
            return _joined(m.op.Add, [_size(m, v, axis) for v in present(node.inputs)])
    return m.op.Shape(value, start=axis, end=axis + 1)


def _scaled(x: str) -> Pattern:
    return op.Mul(var(x), const(f"{x}_scale"))


@rewrite(
    either(
        op.Attention(_scaled("q"), _scaled("k"), ..., name="attention"),
        op.Attention(_scaled("q"), var("k"), ..., name="attention"),
        op.Attention(var("q"), _scaled("k"), ..., name="attention"),
    )
)
def scale_of_attention(
    m: Match, q: Value, k: Value, q_scale: Array | None = None, k_scale: Array | None = None
) -> tuple[Value, ...]:
    """Attention(y q, z k, scale = s) = Attention(q, k, scale = s y z)."""
    factors = [f for f in (q_scale, k_scale) if f is not None]
    m.require(all(f.size == 1 and f.ndim <= 3 for f in factors), "a scale for each element")
    scale = m.attention.attr("scale", 0.0)
    m.require(scale > 0, "the scale follows from the width")
    m.require(all(v is None for v in m.attention.inputs[4:]) and m.attention.used_outputs() == [0], _PAST)
    z = float(np.prod([np.float64(f.item()) for f in factors], initial=scale))
    m.require(0 < z <= np.finfo(np.float32).max, "the scale is not positive, or none")
    return (m.op.Attention(q, k, *m.attention.inputs[2:], like=m.attention, scale=z),)


def _gathered(x: str, name: str) -> Pattern:
    picked = op.Gather(var(x), const(f"{name}_of"), name=name, shared=True)
    return either(picked, op.Transpose(picked))


@rewrite(op.Attention(var("q"), _gathered("k", "keys"), _gathered("v", "values"), ..., name="attention"))
def shared_heads(m: Match, q: Value, k: Value, v: Value, keys_of: Array, values_of: Array) -> Value:
    """Attention(q, k[:, heads], v[:, heads]) = Attention(q, k, v), where equal numbers of queries share a head.

    The picked heads may be transposed afterwards.
    """
    rest = _only_scored(m)
    found = [_few(m, x, n, i) for x, n, i in zip((k, v), (m.keys, m.values), m.attention.inputs[1:])]
    count = m.known(found[0][1] or None, "the number of heads is unknown")
    equal = found[1][1] == count and np.array_equal(keys_of, values_of)
    m.require(equal and is_regular(keys_of, count), "the same number of queries does not share each head, in order")
    return m.op.Attention(q, *(x for x, _ in found), *rest, like=m.attention)


def _few(m: Match, x: Value, pick: Node, picked: Value | None) -> tuple[Value, int | None]:
    """Return the heads, and their number, from which `pick` copies for `picked`, [batch, heads, rows, width]."""
    turn = producer(picked, "Transpose")
    perm = [0, 1, 2, 3] if turn is None else list(turn.attr("perm") or ())
    m.require(m.rank(x) == len(perm) == 4, "not batches of heads")
    m.require(pick.attr("axis") % 4 == perm[1], "not heads are picked")
    return x if turn is None else m.op.Transpose(x, like=turn), types.length_of(x, perm[1])


def _joined_past(past: str, new: str, name: str) -> Pattern:
    return op.Concat(var(past), var(new), name=name, shared=True)


@rewrite(
    op.Attention(
        var("q"), _joined_past("past_k", "k", "keys"), _joined_past("past_v", "v", "values"), ..., name="attention"
    )
)
def past_and_present(m: Match, q: Value, past_k: Value, k: Value, past_v: Value, v: Value) -> tuple[Value, ...]:
    """Attention(q, [past k, k], [past v, v], mask) = Attention(q, k, v, mask, past k, past v).

    The new Attention also outputs [past k, k] and [past v, v].
    """
    rest = _only_scored(m)
    joined = m.keys, m.values
    m.require(all(n.attr("axis") in (2, -2) for n in joined), "not a past along the axis of the keys")
    rows, columns, values = (_of_heads(m, x)[2] for x in (q, k, v))
    m.require(columns == values and some_keys(columns, rows), "new keys may be none, or not as many as new values")
    alone = m.keys is not m.values and all(set(n.output.users) == {m.attention} for n in joined)
    m.require(alone, "something else reads the keys or values")
    given_out = m.graph.owner is not None and any(n.output.output_count for n in joined)
    m.require(not given_out, "a body gives them out, and runtimes do not infer their sizes")
    m.require(not m.attention.attr("is_causal", 0), "what is causal begins elsewhere where a past is read")
    m.results = [m.attention.output, m.keys.output, m.values.output]
    m.bindings.roots = m.attention, m.keys, m.values
    mask = rest[0] if rest else None
    return m.op.Attention(q, k, v, mask, past_k, past_v, like=m.attention, outputs=3)


def _only_scored(m: Match) -> list[Value | None]:
    """Return the mask of an Attention without further inputs and with a single used output."""
    rest = m.attention.inputs[3:]
    m.require(all(v is None for v in rest[1:]) and m.attention.used_outputs() == [0], _PAST)
    return rest[:1]


@register
class FuseAttention(RewritePass):
    """Softmax(q kᵀ z + mask) v = Attention (opset 23).

    Applies when: batch and heads are known to be equal, inner values have no other readers, and the mask cannot be
    minus infinity for all keys, or zeros replace the resulting NaN. A causal mask (a triangle, or compared positions)
    becomes is_causal. Biases and masks are added up; booleans stay booleans; a single row for all queries is expanded,
    once for all readers of the mask; the lowest number becomes its neighbour, for which formula and operator give the
    mean of all values. Windows in front of heads become batches; without an axis of heads there is one head.
    Keeps: masks of unknown numbers; masks with minus infinity and no zeros: if all keys are hidden, the operator gives
    zeros and the formula NaN; masks that differ for windows and not for batches.
    Keys and values are read before copies are made for grouped queries; past and new ones are concatenated by the
    operator.
    Not done: types other than float32 and float16; float16 masks of the lowest number. Without queries, keys or batch
    elements the formula gives zeros or nothing, and onnxruntime's operator fails.
    """

    info = PassInfo("fuse-attention", opt_level=3, after=("merge-parallel",), ops=("Attention", "MatMul"))
    rules = (attention, scale_of_attention, shared_heads, past_and_present)
