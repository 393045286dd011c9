"""Results of a walk: by candidate, and by fault; position of a walked body; a fault in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import GraphProto, NodeProto

from onnxopt.verification.compare import as_held
from onnxopt.verification.pieces.noise import View
from onnxopt.verification.pieces.precise import exactly
from onnxopt.verification.pieces.replay import Replay
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.transforms import name_in_file
from onnxopt.verification.records import OutputRecord, Place, Side
from onnxopt.verification.rounding import EPSILON, Difference, allowed, difference, is_float, worst

if TYPE_CHECKING:
    from onnxopt.verification.pieces.walk import Walk


@dataclass
class First:
    """Result of a candidate, run with all candidates, except doubtful candidates, assumed to be cutpoints."""

    ok: bool  # whether the candidate agrees
    # Values read by its piece, with the view through which B was fed (None: A's layout).
    entries: dict[str, View | None]
    found: Difference = Difference()
    moves: bool = False  # the piece only moves numbers, or is a node equal in both: agrees for any operands


MAX_FAULTS: Final = 8  # of a walk, besides values the narrower type cannot hold


@dataclass
class Fault:
    """A value of B that differs although all entries of its piece agree."""

    value: str
    found: Difference
    case: int  # index
    entries: list[str]  # cutpoints read by the piece
    a: list[int]  # indices of A's nodes
    b: list[int]  # indices of B's nodes
    shape: tuple[int, ...] = ()  # of A's value in the case
    # The narrower type cannot hold A's numbers: a float16 value of 1e5 is infinite, and 1e-7 has a single bit,
    # regardless of preceding values. All are reported in one walk, with values that agree only by a clamped operand.
    beyond: bool = False


# -- candidates that are no cutpoints ---------------------------------------------------------------------


def doubts(pending: Sequence[str], first: Mapping[str, First]) -> tuple[set[str], set[str]]:
    """Return (rejected, retry) among `pending` in B's order.

    rejected: candidates that disagree, or only move a rejected value. retry: candidates that disagree, but read a
    rejected value, and may compensate. A candidate that only moves a retried value, or disagrees behind it, waits for
    the next run. Everything further behind is treated as if the retried value agreed.
    """
    doubted, excused, open_ = set[str](), set[str](), set[str]()
    for value in pending:
        seen = first.get(value)
        if seen is None or (seen.ok and not seen.moves):
            continue
        if not open_.isdisjoint(seen.entries):
            if seen.ok:
                open_.add(value)
        elif not doubted.isdisjoint(seen.entries):
            if seen.ok:
                doubted.add(value)
            else:
                excused.add(value)
                open_.add(value)
        elif not seen.ok:
            doubted.add(value)
    return doubted, excused


# -- outputs without cutpoint -----------------------------------------------------------------------------


def unsettled(replay: Replay, cuts: Collection[str]) -> list[str]:
    """Return the outputs that differ, or are computed differently, including constant outputs."""
    a, of, most = replay.original.runner.program, replay.pairs.of, allowed(EPSILON["float32"], 1)
    left = [(x, y) for x, y in replay.pairs.outputs if y not in cuts or of.get(y, y) != x]
    left = [(x, y) for x, y in left if x in a.maker or x in a.constants or x in a.given]  # runnable nodes make them
    return [x for x, y in left if not _of_output(replay, x, y, y in cuts).within(most)]


def _of_output(replay: Replay, x: str, y: str, is_cut: bool) -> Difference:
    """Return the difference of an output `x` of A and its counterpart `y`, from known and constant values."""
    a, b, found = replay.original.runner.program, replay.program, list[Difference]()
    for known in replay.original.values:
        mine = a.constant(x) if x in a.constants and x not in known else known.get(x)
        theirs = known.get(replay.pairs.of.get(y, y)) if is_cut else None
        if theirs is None and y not in b.maker and y in b.constants:
            theirs = b.constant(y)
        if mine is None or theirs is None:
            return Difference(note="it is computed differently")
        found.append(difference(as_held(mine, theirs, replay.dtype), theirs))
    return worst(found)


# -- hidden terms -----------------------------------------------------------------------------------------

_SMALL: Final = 2.0**-8  # of a sum: a small term; of the term: an error
_MAX_SUM_NODES: Final = 20  # of a sum's piece: float64 kernels are slow


def hides_error(walk: Walk, value: str, found: Difference) -> bool:
    """Return whether an agreeing sum hides an error of a small term, and note the errors. `found`: of the sum.

    A residual branch scaled by 1e-6 changes a sum by a few roundings, and may be wrong by all of its range. If a value
    in the branch differs, the sum is compared in float64, relative to the term.
    """
    if not walk.refuted or not found.largest or walk.replay.kind(value) != "tensor(float)":
        return False
    cone = walk.b.cone([value], walk.fed, _MAX_SUM_NODES + 1)
    refuted = walk.refuted.intersection(walk.b.made(cone)) - {value}
    if len(cone) > _MAX_SUM_NODES or all(walk.first[v].ok for v in refuted):
        return False
    errors = [_error_of_term(walk, case, value) for case in range(len(walk.original.values))]
    if not any(error.relative > _SMALL for error in errors):
        return False
    walk.latest[value] = errors
    return True


def _error_of_term(walk: Walk, case: int, value: str) -> Difference:
    """Return the error of a sum in float64 relative to the largest small term; none if unknown, or without a term."""
    known, original, replay = walk.original.values[case], walk.pairs.of[value], walk.replay
    nodes = walk.a.cone([original], walk.fed_of_a)
    share = max((s for node in walk.a.at(nodes) for s in _shares(node, known) if s <= _SMALL), default=0.0)
    if not share:
        return Difference()
    theirs, view, most = walk.b.cone([value], walk.fed), replay.views.get(value), replay.memory // 8
    try:
        fed = {r: known[r] for r in walk.a.entries(nodes, walk.fed_of_a)}
        x = exactly(walk.runner, [original], fed, most)[original]
        y = exactly(replay.runner, [value], {r: replay.fed_as(r, case) for r in walk.b.entries(theirs, walk.fed)}, most)
        error = difference(x if view is None else view(x, case), y[value])
    except KeyError:  # kernels are missing, or values were released
        return Difference()
    return Difference() if error.note else error._replace(span=share * error.span)


def _shares(node: NodeProto, known: Mapping[str, Any]) -> list[float]:
    """Return the size of each term of an Add, relative to the sum; [] for other nodes, and unknown numbers."""
    total: Any = known.get(node.output[0])
    if node.op_type != "Add" or not is_float(total):
        return []
    terms = [known[r] for r in node.input if is_float(known.get(r))]
    return [difference(total, np.broadcast_to(term, total.shape)).relative for term in terms]


# -- bodies -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Enclosing:
    """A body of A and its counterpart in B."""

    outer: Walk  # walk of the enclosing graph
    nodes: tuple[NodeProto, NodeProto]  # nodes with the body, of A and B
    names: tuple[str, str]  # of the bodies
    graphs: tuple[GraphProto, GraphProto]
    cases: Sequence[int]  # indices into the cases of `outer`
    is_sure: bool = True  # the correspondence holds for all inputs, not only by conditions equal in all cases
    outputs: list[tuple[str, str]] | None = None  # corresponding outputs, if not the bodies'
    assumed: Mapping[str, bool] = field(default_factory=dict)  # conditions as required by a branch that no case takes
    in_place: frozenset[int] = frozenset()  # B's nodes compared with the body, if B has no body

    def scope(self, scope: str) -> str:
        """Return the path of B's body below the path `scope`."""
        return scope if self.in_place else f"{scope} / {label_of(self.nodes[1])} / {self.names[1]}"


def label_of(node: NodeProto) -> str:
    """Return a node's label in a path."""
    return f'{node.op_type} "{node.name}"' if node.name else str(node.op_type)


def depth(walk: Walk) -> int:
    """Return the number of bodies around a walk."""
    found = 0
    while walk.enclosing is not None:
        found, walk = found + 1, walk.enclosing.outer
    return found


def case_names(walk: Walk, names: Sequence[str]) -> list[str]:
    """Return the names of a walk's cases. `names`: of the main graph's cases."""
    if walk.enclosing is None:
        return list(names)
    outer = case_names(walk.enclosing.outer, names)
    return [outer[k] for k in walk.enclosing.cases]


# -- faults in words --------------------------------------------------------------------------------------

_TINY: Final = 1e-12  # relative noise below is zero
_MAX_NODES: Final = 50  # nodes listed in a place


def _how(found: Difference) -> str:
    """Return a difference in words."""
    if found.note or found.discrete:
        return found.note or f"{found.largest:.1%} of its elements differ"
    return f"{found.words}, and by much of that of a row or channel" if found.uneven else found.words


def place_of(walk: Walk, fault: Fault, cases: Sequence[str], scope: str) -> Place:
    """Return the place of a fault. `cases`: names of all cases; `scope`: path of the walked graph."""
    found, case = fault.found, fault.case
    noise = walk.noise([fault.value]).get(fault.value) if not fault.beyond else None
    if noise:  # a breakpoint reached in one case excuses nothing in another
        differences = walk.latest[fault.value]
        case = max(
            range(len(noise)), key=lambda k: (noise[k].uneven, differences[k].relative / max(noise[k].relative, _TINY))
        )
        found = differences[case]
    value, nodes = fault.value, (fault.a, fault.b)
    # A value added here for a random operand: report the node that draws.
    if operand := walk.b.skeleton.operands.get(value):
        value = operand.result
        nodes = [*fault.a, walk.a.maker[value]], [*fault.b, walk.b.maker[value]]
    record = OutputRecord(
        value, walk.replay.kind(fault.value), list(fault.shape), found.largest, found.relative, False, _how(found)
    )
    place = Place(cases[case], value, record, fault.entries, scope=scope, beyond=fault.beyond)
    place.a, place.b = (
        [_side(p, i) for i in there if not _is_added(p, p.nodes[i])][-_MAX_NODES:]
        for p, there in zip((walk.a, walk.b), nodes)
    )
    place.noise = _of_whole(noise[case]) if noise else None
    return place


def _of_whole(noise: Difference) -> float | None:
    """Return the noise; None for elements that jump to unseen values, or a few distant elements."""
    return None if noise.unseen or noise.uneven else noise.relative


def _side(program: Program, i: int) -> Side:
    node, operands = program.nodes[i], program.skeleton.operands
    op = f"{node.domain}.{node.op_type}".removeprefix(".")
    reads = [operands[name].read if name in operands else name for name in node.input]
    inputs, outputs = ([name_in_file(n) for n in names if n] for names in (reads, node.output))
    return Side(node.name, op, inputs, outputs)


def _is_added(program: Program, node: NodeProto) -> bool:
    """Return whether a node was added here, and is absent from the file."""
    if node.op_type == "Cast":
        return name_in_file(node.input[0]) == name_in_file(node.output[0])
    return node.op_type == "Identity" and node.output[0] in program.skeleton.operands
