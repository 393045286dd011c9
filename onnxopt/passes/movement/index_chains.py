"""Elements picked separately, picked together."""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Final

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
from onnxopt.rewriting.rule import constant_cuts, listed_axes
from onnxopt.rewriting.spans import cut, listed, parts_of, taken

_BLOCK: Final = 32  # elements copied at once; with 16, onnxruntime's Gather takes as long as Split and Concat
_PICKS: Final = 1 << 12  # indices stored
_MAX_CHAIN: Final = 8
_MAX_PART: Final = 64  # columns side by side
_MAX_VECTOR: Final = 256  # elements of a joined vector


@rewrite(one_of("Gather", "Slice")(op.Shape(var("x"), name="shape_node"), const("first"), ..., name="node"))
def part_of_shape(m: Match, x: Value, first: Array) -> Value:
    """Shape(x)[i:j] = Gather(Shape(x), [i, …, j - 1]) = Shape(x, i to j), if nobody else reads the Shape."""
    rank = m.rank(x)
    m.require(m.opset >= 15 and rank is not None, "Shape takes all dims before opset 15, or their number is unknown")
    m.require(not any(map(_joins_computed, m.anchor.output.users)), "joined with others, which one Shape may list")
    found = m.known(taken(m.node), "not one after the other")
    m.require(not found.drops, "a number, and no list")
    start, end = found.spans[m.node.output]
    dims = range(rank or 0)[listed_by(m.shape_node)][start:end]
    m.require(dims, "no dims")
    return m.op.Shape(x, start=dims.start, end=dims.stop)


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
        picked, last = _picked(m, v, axis, shared), parts[-1] if parts else None
        if picked is not None and isinstance(last, tuple) and last[0] is picked[0]:
            parts[-1] = last[0], last[1] + picked[1]
        else:
            parts.append(picked or v)
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
    x, index = node.inputs[0], node.inputs[1]
    found = listed(node, m.dims(x)) if x is not None and not x.constant and types.rank(index) == 1 else None
    if x is None or found is None or found[0] != axis or types.length_of(x, axis) is None:
        return None
    return x, found[1]


@rewrite(op.Reshape(var("moved"), const("target"), name="reshape", reads=PICKS))
def concat_of_moved(m: Match, moved: Value, target: Array) -> Value:
    """Reshape(Transpose(Slice(Reshape(Concat(a, b, c), …), …), …), [-1]) = Concat(c, a, b), elements of vectors."""
    chain, joined = _moves(m.reshape)
    if len(chain) < 2 or joined is None or m.rank(joined.output) != 1:
        m.skip()  # a single step is a Reshape of a vector to itself
    size = types.length_of(joined.output, 0)
    m.require(size in range(_MAX_VECTOR + 1), "a part of unknown length, or a long one")
    places = np.arange(size or 0)
    for node in reversed(chain):
        given = [places, *map(array_of, node.inputs[1:])]
        places = m.known(evaluate(node, given, m.opset), "a step that no runtime takes")[0]
    m.require(places.ndim == 1 and places.size, "no vector is left")
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    parts = [p for run in runs for p in cut(parts_of(joined.output, 0), run[0].item(), run[-1].item() + 1) or ()]
    m.require(all(p.value.constant or p.is_whole(0) for p in parts), "a part is torn")
    values = list[Value]()
    for is_constant, some in groupby(parts, lambda p: p.value.constant):
        joins = [*some]
        arrays = [p.value.array[p.start : p.end] for p in joins if is_constant]
        values += [m.const(np.concatenate(arrays))] if arrays else [p.value for p in joins]
    return m.op.Concat(*values, axis=0) if len(values) > 1 else values[0]


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Neg", "Unsqueeze"}))
def concat_of_strided(m: Match, first: Value) -> Value:
    """Concat(Unsqueeze(-x[1::2]), Unsqueeze(x[0::2])) = Concat(-b, a), a and b the columns of x in pairs: a Split."""
    rank = len(m.dims(first))
    found = [part for v in m.concat.operands if (part := _strided(v, m.concat, rank)) is not None]
    if len(found) < max(2, len(m.concat.inputs)):
        m.skip()
    if len({p[:3] for p in found}) > 1 or len({p[3] for p in found}) < len(found):
        m.skip()
    x, axis, n, _, _ = found[0]
    m.require(int(m.concat.attr("axis")) % rank == axis + 1, "joined along another axis")
    dims, length = m.dims(x), types.length_of(x, axis)
    whole = length is not None and length % n == 0 and n <= _MAX_PART
    m.require(whole, "no whole number of groups is known")
    target = constant_target(dims, (*dims[:axis], (length or 0) // n, n, *dims[axis + 1 :]))
    m.require(target is not None and m.opset >= 5, "more than one unknown dim")
    groups = m.op.Reshape(x, m.ints(target))
    columns = m.op.Split(groups, m.ints([1] * n), axis=axis + 1, outputs=n)
    made = [m.op.Neg(columns[i]) if negated else columns[i] for _, _, _, i, negated in found]
    return m.op.Concat(*made, like=m.concat)


def _strided(v: Value | None, reader: Node, rank: int) -> tuple[Value, int, int, int, bool] | None:
    """Return (x, axis, n, i, negated) of Unsqueeze(x[i::n], axis + 1), or its Neg, read only by `reader`; else None."""
    steps = dict[str, Node]()
    while rank > 1 and (node := own_producer(v, reader, "Unsqueeze", "Neg", "Slice")) is not None:
        if node.op in steps or v is None or v.users[reader] != 1:
            return None
        v, reader = node.inputs[0], node
        steps[node.op] = node
        if node.op == "Slice":
            break
    if v is None or v.constant or not {"Slice", "Unsqueeze"} <= steps.keys():
        return None
    cuts, axes = constant_cuts(steps["Slice"], rank - 1), listed_axes(steps["Unsqueeze"]) or []
    axis, start, end, step = cuts[0] if len(cuts) == 1 else (-1, 0, 0, 0)
    length = types.length_of(v, axis)
    if [a % rank for a in axes] != [axis + 1] or length is None or not 0 <= start < step:
        return None
    return (v, axis, step, start, "Neg" in steps) if end > length - step + start else None


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
