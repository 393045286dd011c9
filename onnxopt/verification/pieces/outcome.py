"""Results of a walk: by candidate, and by fault; position of a walked body; a fault in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from onnx import NodeProto

from onnxopt.verification.compare import as_held
from onnxopt.verification.pieces.noise import View
from onnxopt.verification.pieces.replay import OVERFLOWS, TOO_SMALL, Replay
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.transforms import name_in_file
from onnxopt.verification.records import OutputRecord, Place, Side
from onnxopt.verification.rounding import EPSILON, Difference, allowed, difference, worst

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
    beyond: bool = False  # the narrower type cannot hold A's numbers


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
    a, b, values = replay.original.runner.program, replay.program, replay.original.values
    mine, is_known = replay.pairs.of.get(y, y), all(x in known for known in values)
    if is_cut and is_known and all(mine in known for known in values):
        return worst([difference(known[x], known[mine]) for known in values])
    if y not in b.maker and y in b.constants and is_known:
        constant = b.constant(y)
        return worst([difference(as_held(known[x], constant, replay.dtype), constant) for known in values])
    if x not in a.maker and x in a.constants and y in b.constants:
        return difference(a.constant(x), b.constant(y))
    return Difference(note="it is computed differently")


# -- faults -----------------------------------------------------------------------------------------------
# A float16 value of 1e5 is infinite, and 1e-7 has a single bit, regardless of preceding values. All such values are
# reported in the same walk, including those that agree only because a too large value was fed as the largest number.

_MAX_FAULTS: Final = 8  # faults, besides values the narrower type cannot hold


class Faults:
    """The faults of a walk."""

    def __init__(self, replay: Replay, found: list[Fault]) -> None:
        self.found = found
        self.beyond: set[str] = set()  # values that the narrower type cannot hold
        self._replay = replay
        self._a, self._b = replay.original.runner.program, replay.program

    def chosen(self, blocked: Sequence[str], latest: Mapping[str, list[Difference]]) -> Sequence[str]:
        """Return the values to report next: all that the narrower type cannot hold, else the first of `blocked`.

        Empty once enough faults are found.
        """
        unfit = {v: found[0] for v in blocked if (found := self._replay.unfit(v))}
        beyond = [v for v, note in unfit.items() if note == OVERFLOWS and worst(latest[v]).note]
        beyond = beyond or [v for v, note in unfit.items() if note == TOO_SMALL]
        is_full = sum(not fault.beyond for fault in self.found) >= _MAX_FAULTS
        return beyond or ([] if is_full else blocked[:1])

    def add(self, value: str, fed: set[str], fed_of_a: set[str], latest: list[Difference]) -> Fault:
        """Record a fault at `value` and return it.

        fed: cutpoints of B; fed_of_a: their names in A; latest: differences by case.
        """
        original, nodes = self._replay.pairs.of[value], self._b.cone([value], fed)
        if unfit := self._replay.unfit(value):
            found, case = Difference(note=unfit[0]), unfit[1]
            self.beyond.add(value)
        else:
            found = worst(latest)
            case = latest.index(found)
        its, shape = self._a.cone([original], fed_of_a), np.shape(self._replay.mine(value)[case])
        fault = Fault(value, found, case, self._b.entries(nodes, fed), its, nodes, shape, value in self.beyond)
        self.found.append(fault)
        return fault

    def follow(self, value: str, fed: set[str]) -> bool:
        """Return whether a value agrees only because a too large operand was fed as the largest number."""
        if not self.beyond or (self._replay.unfit(value) or ("",))[0] != OVERFLOWS:
            return False
        return not self.beyond.isdisjoint(self._b.entries(self._b.cone([value], fed), fed))


# -- bodies -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Enclosing:
    """The position of a body of A and its counterpart in B."""

    outer: Walk  # walk of the enclosing graph
    nodes: tuple[NodeProto, NodeProto]  # nodes with the body, of A and B
    name: str  # of A's body
    theirs: str  # name of B's body
    cases: Sequence[int]  # indices into the cases of `outer`
    is_sure: bool = True  # the correspondence holds for all inputs, not only by conditions equal in all cases
    in_place: frozenset[int] = frozenset()  # B's nodes compared with the body, if B has no body

    def scope(self, scope: str) -> str:
        """Return the path of B's body below the path `scope`."""
        return scope if self.in_place else f"{scope} / {label_of(self.nodes[1])} / {self.theirs}"


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
    # For elements that jump to unseen values, or a few distant elements, noise of the whole is irrelevant.
    whole = noise[case] if noise else None
    place.noise = None if whole is None or whole.unseen or whole.uneven else whole.relative
    return place


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
