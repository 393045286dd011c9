"""Elements picked separately, picked together."""

from __future__ import annotations

from itertools import islice, takewhile
from math import prod
from typing import Any, Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.kernels import evaluate
from onnxopt.analysis.shapes.sizes import listed_by
from onnxopt.graph import Value
from onnxopt.graph.node import Node, array_of, own_producer, present, producer
from onnxopt.operators import PICKS
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var
from onnxopt.rewriting.index_maps import constant_target
from onnxopt.rewriting.rule import canonical_operands
from onnxopt.rewriting.spans import taken

_BLOCK: Final = 32  # elements copied at once; with 16, onnxruntime's Gather takes as long as Split and Concat
_PICKS: Final = 1 << 12  # indices stored
_MAX_CHAIN: Final = 8
_MAX_PART: Final = 64  # elements of a part


@rewrite(one_of("Gather", "Slice")(op.Shape(var("x"), name="shape_node"), const("first"), ..., name="node"))
def part_of_shape(m: Match, x: Value, first: Array) -> Value:
    """Shape(x)[i:j] = Gather(Shape(x), [i, …, j - 1]) = Shape(x, i to j), if nobody else reads the Shape."""
    rank = m.rank(x)
    m.require(m.opset >= 15 and rank is not None, "Shape takes all dims before opset 15, or their number is unknown")
    m.require(not any(map(_joins_computed, m.anchor.output.users)), "joined with others, which one Shape may list")
    m.require(first.ndim == 1, "a number, and no list")
    given = [array_of(v) for v in m.node.inputs[1:]]
    m.require([v is None for v in given] == [v is None for v in m.node.inputs[1:]], "what is computed")
    listed = np.arange(rank or 0)[listed_by(m.shape_node)]
    taken = m.known(evaluate(m.node, [listed, *given], m.opset), "a dim that is not there")[0]
    m.require(taken.size and (taken == np.arange(taken[0], taken[0] + taken.size)).all(), "not one after the other")
    return m.op.Shape(x, start=int(taken[0]), end=int(taken[-1]) + 1)


def _joins_computed(node: Node) -> bool:
    return node.op == "Concat" and sum(v is not None and not v.constant for v in node.inputs) > 1


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Gather", "Split"}))
def concat_of_picks(m: Match, first: Value) -> Value:
    """Concat(Gather(x, [i]), Gather(x, [j]), …) = Gather(x, [i, j, …]), along the gathered axis.

    A part of a Split counts as a Gather of all its indices.
    """
    rank = m.rank(first)
    if not rank:  # rank 0 never runs
        m.skip()
    axis = int(m.concat.attr("axis")) % rank
    parts = _parts(m, axis, shared=True)
    if len(parts) > 1:  # more than one node would replace it
        parts = _parts(m, axis, shared=False)
    if len(parts) == len(m.concat.inputs):
        m.skip()
    inputs = [m.op.Gather(p[0], m.ints(p[1]), axis=axis) if isinstance(p, tuple) else p for p in parts]
    return inputs[0] if len(inputs) == 1 and inputs[0] is not None else m.op.Concat(*inputs, like=m.concat)


def _parts(m: Match, axis: int, shared: bool) -> list[tuple[Value, list[int]] | Value | None]:
    """Return the joined values, with runs of picks from a tensor merged to (tensor, indices).

    `shared`: also picks read by several Concats.
    """
    made = next((n for v in m.concat.inputs if (n := producer(v)) is not None), None)
    if made is not None and made.op == "Split":
        x, places = _split(m, made, axis)
        return [(x, [i for v in present(m.concat.inputs) for i in places[v]])]
    parts: list[tuple[Value, list[int]] | Value | None] = []
    for v in m.concat.inputs:
        picked = _picked(m, v, axis, shared)
        last = parts[-1] if parts else None
        if picked is None:
            parts.append(v)
        elif isinstance(last, tuple) and last[0] is picked[0]:
            parts[-1] = last[0], last[1] + picked[1]
        else:
            parts.append(picked)
    return parts


def _split(m: Match, split: Node, axis: int) -> tuple[Value, dict[Value, range]]:
    """Return (source of a Split whose parts only the Concat reads, index range of each part)."""
    x, parts = split.operands[0], split.results
    found = m.known(taken(split, axis), "joined along another axis")
    m.require(all(v in parts for v in m.concat.inputs), "other tensors are joined, too")
    alone = all(not v.is_used or v.feeds_only(lambda u: u is m.concat) for v in parts)
    m.require(alone and len(parts) == len(split.outputs), "a part is read elsewhere")
    block = prod(d for d in m.dims(x)[axis + 1 :] if isinstance(d, int))
    m.require(block >= _BLOCK, "a Gather would copy a few elements at a time")
    places = {v: range(*bounds) for v in parts if (bounds := found.bounds(v)) is not None}
    is_short = len(places) == len(parts) and (found.size or 0) <= _PICKS
    m.require(is_short, "parts of unknown length, or long ones")
    m.require(sum(len(places[v]) for v in present(m.concat.inputs)) <= _PICKS, "an index for each would be large")
    return x, places


def _picked(m: Match, v: Value | None, axis: int, shared: bool) -> tuple[Value, list[int]] | None:
    """Return (tensor, indices) of a Gather read only by the Concat, along an axis of known length; else None."""
    node = producer(v, "Gather")
    if v is None or node is None or node.has_references:
        return None
    if v.only_user is not m.concat and not (shared and v.feeds_only(lambda u: u.op == "Concat")):
        return None
    x, indices = node.inputs[0], array_of(node.inputs[1])
    if x is None or x.constant or indices is None or indices.ndim != 1:
        return None
    size = types.length_of(x, axis)
    if size is None or node.attr("axis") % len(m.dims(x)) != axis:
        return None
    if ((indices < -size) | (indices >= size)).any():
        return None
    return x, (indices % size).tolist()


@rewrite(op.Reshape(var("moved"), const("target"), name="reshape", reads=PICKS))
def concat_of_moved(m: Match, moved: Value, target: Array) -> Value:
    """Reshape(Transpose(Slice(Reshape(Concat(a, b, c), …), …), …), [-1]) = Concat(c, a, b), elements of vectors."""
    chain, joined = _moves(m.reshape)
    if len(chain) < 2 or joined is None or m.rank(joined.output) != 1:
        m.skip()  # a single step is a Reshape of a vector to itself
    places = _elements(m, joined)
    where = np.arange(len(places))
    for node in reversed(chain):
        given = [where, *map(array_of, node.inputs[1:])]
        where = m.known(evaluate(node, given, m.opset), "a step that no runtime takes")[0]
    m.require(where.ndim == 1 and where.size, "no vector is left")
    parts = _in_order(m, [places[i] for i in where.tolist()])
    return m.op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]


def _in_order(m: Match, elements: list[tuple[Value, int]]) -> list[Value]:
    """Return the parts with these elements, constants next to each other as one; declines if a part is torn."""
    parts, at = list[Value](), 0
    while at < len(elements):
        part = elements[at][0]
        if part.constant:
            run = [v.array[i] for v, i in takewhile(lambda e: e[0].constant, islice(elements, at, None))]
            parts.append(m.const(np.array(run, part.array.dtype)))
            at += len(run)
            continue
        size = _length(m, part)
        m.require(elements[at : at + size] == [(part, j) for j in range(size)], "a part is torn")
        at += size
        parts.append(part)
    return parts


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Neg", "Unsqueeze"}))
def concat_of_strided(m: Match, first: Value) -> Value:
    """Concat(Unsqueeze(-x[1::2]), Unsqueeze(x[0::2])) = Concat(-b, a), a and b the columns of x in pairs: a Split."""
    rank = len(m.dims(first))
    found = _columns(m, rank)
    x, axis, n, _, _ = found[0]
    m.require(int(m.concat.attr("axis")) % rank == axis + 1, "joined along another axis")
    dims, length = m.dims(x), types.length_of(x, axis)
    whole = length is not None and length % n == 0 and n <= _MAX_PART
    m.require(whole, "no whole number of groups is known")
    target = constant_target(dims, (*dims[:axis], (length or 0) // n, n, *dims[axis + 1 :]))
    m.require(target is not None and m.opset >= 5, "more than one unknown dim")
    groups = m.op.Reshape(x, m.ints(target))
    columns = m.op.Split(groups, m.ints([1] * n), axis=axis + 1, outputs=n)
    made = [m.op.Neg(columns[i]) if turned else columns[i] for _, _, _, i, turned in found]
    return m.op.Concat(*made, like=m.concat)


def _columns(m: Match, rank: int) -> list[tuple[Value, int, int, int, bool]]:
    """Return the joined values, if all are different strided parts of a single tensor."""
    found = [part for v in m.concat.inputs if (part := _strided(v, m.concat, rank)) is not None]
    if len(found) < max(2, len(m.concat.inputs)):
        m.skip()
    if len({p[:3] for p in found}) > 1 or len({p[3] for p in found}) < len(found):
        m.skip()
    return found


def _strided(
    v: Value | None, reader: Node, rank: int, place: int | None = None, turned: bool = False
) -> tuple[Value, int, int, int, bool] | None:
    """Return (x, axis, n, i, negated) of Unsqueeze(x[i::n], axis + 1), or its Neg, read only by `reader`; else None.

    `place`, `turned`: the axis added, and whether a Neg stands, between `v` and the Concat.
    """
    node = own_producer(v, reader, "Unsqueeze", "Neg", "Slice") if rank > 1 else None
    if v is None or node is None or v.users[reader] != 1:
        return None
    arrays = map(array_of, canonical_operands(node)[1:])
    given: list[Any] = [None if a is None else a.reshape(-1).tolist() for a in arrays]
    if node.op == "Neg" and not turned:
        return _strided(node.inputs[0], node, rank, place, True)
    if node.op == "Unsqueeze" and place is None and [len(g or ()) for g in given] == [1]:
        return _strided(node.inputs[0], node, rank, given[0][0] % rank, turned)
    return _every(node, given, rank, place, turned) if node.op == "Slice" and place is not None else None


def _every(
    node: Node, given: list[Any], rank: int, place: int, turned: bool
) -> tuple[Value, int, int, int, bool] | None:
    if [len(g or ()) for g in given] != [1] * 4:
        return None
    (start,), (end,), (axis,), (step,) = given
    axis %= rank - 1
    x, length = node.inputs[0], types.length_of(node.inputs[0], axis)
    if x is None or x.constant or length is None or not 0 <= start < step or axis + 1 != place:
        return None
    return (x, axis, step, start, turned) if end > length - step + start else None


def _moves(node: Node | None) -> tuple[list[Node], Node | None]:
    """Return (steps that move the elements of a vector, last first; the Concat that makes the vector)."""
    chain: list[Node] = []
    while node is not None and node.op in PICKS and len(node.outputs) == 1 and len(chain) < _MAX_CHAIN:
        if not _is_fixed(node) or (chain and node.output.only_user is not chain[-1]):
            return [], None
        chain.append(node)
        node = producer(node.inputs[0])
    return chain, own_producer(chain[-1].inputs[0], chain[-1], "Concat") if chain else None


def _is_fixed(node: Node) -> bool:
    """Whether only the first operand of a node is computed."""
    return all(v is None or v.constant for v in node.inputs[1:]) and not node.has_references


def _elements(m: Match, concat: Node) -> list[tuple[Value, int]]:
    """Return (part, index) for each element of a concatenated vector."""
    return [(v, i) for v in present(concat.inputs) for i in range(_length(m, v))]


def _length(m: Match, v: Value) -> int:
    length = types.length_of(v, 0)
    m.require(length in range(_MAX_PART + 1), "a part of unknown length, or a long one")
    return length or 0


@register
class IndexChains(RewritePass):
    """Concat(Gather(x, [i]), Gather(x, [j])) = Gather(x, [i, j]); a Concat of Split parts in another order is a
    Gather; consecutive dims taken from a Shape are a Shape of these.

    Applies when: indices are constant, the axis length is known, and gathered values have no other readers.
    Exporters write Reshape targets like this, a dim of a Shape at a time. `torch.roll` joins parts in another order: a
    Gather replaces it if it copies at least 32 elements at once. PyTorch lists pads from the last axis on, and reverses
    them.
    """

    info = PassInfo("index-chains", opt_level=1, after=("merge-chains",), ops=("Concat", "Gather", "Reshape", "Slice"))
    rules = (part_of_shape, concat_of_picks, concat_of_moved, concat_of_strided)
