"""What is made of a decision that is the same in all cases, or nearly: of a comparison that is never true, a class that
is never the best.

It agrees whatever would be made of another. So where the two make it otherwise, it is made once more of others: of
booleans that are turned round, of indices of all that they could pick of a table; or, where only one of the two has the
decision, of the same numbers in other places. Where it differs then nobody is accused, for such decisions may never be
taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.element_types import element_kind
from onnxopt.verification.hidden.anew import Piece
from onnxopt.verification.hidden.masked import changing_values
from onnxopt.verification.model.decisions import GIVE_OTHERS
from onnxopt.verification.numbers.draws import Draws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import NodeProto

    from onnxopt.verification.pieces.pairs import Pairs
    from onnxopt.verification.pieces.sameness import Sameness
    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program

_MOST: Final = 32  # decisions, and values that are made of each
_PICKS: Final = 1 << 12  # indices that are tried
_DRAWN: Final = 3  # sets of booleans,
_ORDERS: Final = 8  # and of numbers in other places, or fewer of more:
_NUMBERS: Final = 1 << 16
_BEST: Final = ("ArgMax", "ArgMin")
_MOVES: Final = frozenset(("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"))
# What hands a decision on, in another place or as another number for each.
_HAND_ON: Final = _MOVES | {"Not", "Neg", "Slice", "Split", "Expand", "Gather", "ArrayFeatureExtractor"}
_LISTS: Final = ("Gather", "ArrayFeatureExtractor")  # their first operand may be a table, of which they pick


def is_decided_otherwise(pairs: Pairs, decisions: Sequence[str], sameness: Sameness) -> bool:
    """Is anything made otherwise of these values of A? `sameness`: as far as files tell."""
    handed, made = _made_of(pairs.a, decisions, pairs.by_original)
    mine = handed.union(decisions)
    theirs = {*pairs.made_from([*mine])}
    for value in pairs.made_from(made):
        if not pairs.is_same(value):
            original = pairs.of[value]
            computes = _computes(pairs.a, original, pairs.by_original, mine)
            computes = computes or _computes(pairs.b, value, pairs.of, theirs)
            if computes and not sameness.is_made_alike(value):
                return True
    return False


def _computes(program: Program, value: str, shared: Collection[str], decisions: Collection[str]) -> bool:
    """Does more become of a decision, between values that both have and this one, than it is moved, or another type?"""
    more = set[str]()  # of the many there may be none is copied
    for i in program.cone([value], shared):
        node, reads = program.nodes[i], program.reads[i]
        if any(r in decisions or r in more for r in reads):
            if node.op_type not in _MOVES:
                return True
            more.update(node.output)
        elif node.op_type in GIVE_OTHERS:
            more.update(node.output)
    return False


def masked_by_decisions(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """The values of B that agree, and may differ where others are decided: do they, where that was drawn?"""
    found: dict[str, bool] = {}
    cuts = {walk.pairs.of[v] for v in walk.cuts if v in walk.pairs.of}
    changing = changing_values(walk.a)
    decisions = ((kind, name) for kind, name in _decisions(walk.a) if name in changing)
    for kind, decision in itertools.islice(decisions, _MOST):
        handed, values = _made_of(walk.a, [decision], cuts)
        behind: set[str] | None = None
        open_ = (v for v in walk.pairs.made_from(values) if not found.get(v) and not sameness.is_made_alike(v))
        for value in itertools.islice(open_, _MOST):
            if walk.pairs.by_original.get(decision) in walk.fed:
                if behind is None and _is_seen(walk, decision):
                    break
                behind = _behind(walk.a, decision) if behind is None else behind
                differs = _differs(walk, decision, {*walk.pairs.made_from(list(handed))} & walk.cuts, behind, value)
            else:
                differs = kind in _BEST and _differs_elsewhere(walk, value)
            found[value] = differs
    return found


def _decisions(program: Program) -> Iterator[tuple[str, str]]:
    """(the operator, what it decides)."""
    for node in program.nodes:
        if node.op_type in GIVE_OTHERS:
            yield node.op_type, node.output[0]
        elif node.op_type == "TopK" and len(node.output) > 1:
            yield node.op_type, node.output[1]


def _made_of(program: Program, decisions: Collection[str], cuts: Collection[str]) -> tuple[set[str], list[str]]:
    """What hands these decisions on, themselves not among it; and the next `cuts` that are made of them."""
    handed, found = {*decisions}, list[str]()
    readers = program.readers
    queue = [i for d in handed if d in program.maker for i in readers.get(d, ())]
    heapify(queue)
    last = -1
    while queue:
        if (i := heappop(queue)) == last:
            continue
        last = i
        node, reads = program.nodes[i], program.reads[i]
        hands_on = node.op_type in _HAND_ON and all(r in handed or program.is_constant(r) for r in reads)
        for output in filter(None, node.output):
            if output in cuts:
                found.append(output)
            if hands_on:
                handed.add(output)
            if hands_on or output not in cuts:
                for reader in readers.get(output, ()):
                    heappush(queue, reader)
    return handed.difference(decisions), found


def _differs(walk: Walk, decision: str, handed: set[str], behind: set[str], value: str) -> bool:
    """`behind`: what A makes of the decision, through however many nodes."""
    piece = Piece.of(walk, value, handed - {value})
    if piece is None or decision not in piece.both or any(i in piece.nodes for i in walk.a.hiding):
        return False  # what stands in a branch is compared by itself
    if not behind.isdisjoint(piece.known[0].keys() - {decision}):
        return False  # they would be others, too
    return piece.differs(lambda known: _drawn(walk, piece, decision, known[decision]))


def _differs_elsewhere(walk: Walk, value: str) -> bool:
    """Does it where the same numbers are in other places, and another is the best?"""
    piece = Piece.of(walk, value)
    return piece is not None and piece.differs(lambda known: _in_other_places(walk.seed, value, known))


def _in_other_places(seed: int, value: str, known: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    floats = {n: v for n, v in sorted(known.items()) if element_kind(v) == "f" and v.size > 1}
    count = sum(v.size for v in floats.values())
    for k in range(max(min(_ORDERS, _NUMBERS // count), 1) if count else 0):
        rng = Draws(seed, value, k)
        yield {n: _elsewhere(v, rng) for n, v in floats.items()}


def _elsewhere(value: Any, rng: Draws) -> Any:
    """The same numbers in any order; of many, as they stand, from another on."""
    flat = value.reshape(-1)
    if flat.size > _NUMBERS:
        return np.roll(flat, int(rng.integers(1, flat.size, (1,))[0])).reshape(value.shape)
    return flat[rng.orders(1, flat.size)[0]].reshape(value.shape)


def _behind(program: Program, value: str) -> set[str]:
    found = {value}
    for i in range(program.maker[value] + 1, len(program.nodes)):
        if not found.isdisjoint(program.reads[i]):
            found.update(program.nodes[i].output)
    return found - {value}


def _drawn(walk: Walk, piece: Piece, decision: str, value: Any) -> Iterator[Mapping[str, Any]]:
    """`value`: what was decided in one case."""
    rng = Draws(walk.seed, decision)
    if element_kind(value) == "b":
        one = _one_way(walk, decision, value)
        for k in range(_DRAWN if one.any() else 0):
            turned = one if not k else one & rng.flags(value.shape)
            yield {decision: np.asarray(value ^ turned)}
    elif element_kind(value) == "i" and value.size:
        rows = _rows(walk.a, piece, decision)
        for start in range(0, len(rows), value.size):
            yield {decision: np.resize(rows[start : start + value.size], value.shape).astype(value.dtype)}


def _is_seen(walk: Walk, decision: str) -> bool:
    """Are these booleans of which each is both, in some row of some case?"""
    value = walk.original.values[-1].get(decision)
    return isinstance(value, np.ndarray) and element_kind(value) == "b" and not _one_way(walk, decision, value).any()


def _one_way(walk: Walk, decision: str, value: Any) -> Any:
    """Which of these booleans are the same in all rows of all cases."""
    known = [v.get(decision) for v in walk.original.values]
    tensors = [v for v in known if isinstance(v, np.ndarray)]
    if not value.ndim or any(v.shape[1:] != value.shape[1:] for v in tensors):
        every = np.concatenate([v.reshape(-1) for v in tensors])
        return np.full(value.shape, every.all() or not every.any())
    rows = np.concatenate(tensors)
    return np.broadcast_to(rows.all(axis=0) | ~rows.any(axis=0), value.shape)


def _rows(program: Program, piece: Piece, decision: str) -> Any:
    """All that it could pick of the tables of A's nodes that it picks of; the ends of long ones."""
    handed, counts = {decision}, []
    for node in (program.nodes[i] for i in piece.nodes):
        if node.op_type in _LISTS and node.input[1] in handed and program.is_constant(node.input[0]):
            counts.append(_rows_of(program, node))
        elif node.op_type in _HAND_ON and node.input[0] in handed and node.op_type not in ("Not", "Neg"):
            handed.update(node.output)
    count = min(counts, default=0)
    return np.linspace(0, max(count - 1, 0), min(count, _PICKS), dtype=np.int64)


def _rows_of(program: Program, node: NodeProto) -> int:
    dims = program.constants[node.input[0]].dims if node.input[0] in program.constants else [0]
    if node.op_type == "ArrayFeatureExtractor":
        return int(dims[-1]) if dims else 0
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return int(dims[axis]) if -len(dims) <= axis < len(dims) else 0
