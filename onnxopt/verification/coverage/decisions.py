"""Differences between the files in decisions, found before any run, and values computed from a constant decision."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
from onnx import NodeProto

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.coverage.cones import Cone, made_of
from onnxopt.verification.coverage.probe import Known, changing_values, differs, elsewhere, flips, rows
from onnxopt.verification.model.nodes import deciding_of, int_of
from onnxopt.verification.model.operators import GIVE_OTHERS, having
from onnxopt.verification.pieces.pairs import Pairs, Sameness
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program
from onnxopt.verification.rounding import Draws

# -- constant decisions -----------------------------------------------------------------------------------
# Such a value agrees whatever a different decision would give. If A and B compute the value differently, a probe uses
# different decisions: negated booleans, and all indices into a table. If the decision exists in only one of the two,
# its operand is permuted.

_MAX_DECISIONS: Final = 64
_MAX_VALUES: Final = 64  # computed from decisions
_MAX_ROWS: Final = 1 << 12  # of a table
_MAX_SAMPLES: Final = 8  # samples
_BEST: Final = ("ArgMax", "ArgMin")
# Operators that move a decision, or map its elements one to one.
_TURNS: Final = having("turns")
HANDS_ON: Final = (having("moves") - having("joined")) | _TURNS | {"ArrayFeatureExtractor"}
_LISTS: Final = ("Gather", "ArrayFeatureExtractor")  # operators with a possible table as the first operand


def decided_otherwise(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """Return {value of B computed differently from a decision: whether it differs for a different decision}."""
    changing = changing_values(walk.a)
    names = itertools.islice((name for name in _decisions(walk.a) if name in changing), _MAX_DECISIONS)
    every = {name: _Decision(walk, name) for name in names}
    cuts = {v for v, theirs in walk.pairs.by_original.items() if theirs in walk.cuts}
    handed, values = made_of(walk.a, every, cuts, HANDS_ON)
    behind = {*walk.pairs.made_from([*handed])} & walk.cuts
    made = dict.fromkeys(walk.pairs.made_from(values))
    open_ = itertools.islice((v for v in made if not sameness.is_made_alike(v)), _MAX_VALUES)
    asked = ((v, _differs(Cone.of(walk, v, behind - {v}), every)) for v in open_)
    return {value: found for value, found in asked if found is not None}


def _decisions(program: Program) -> Iterator[str]:
    for node in program.nodes:
        if node.op_type in GIVE_OTHERS:
            yield node.output[0]
        elif node.op_type == "TopK" and len(node.output) > 1:
            yield node.output[1]


def _differs(cone: Cone | None, every: dict[str, _Decision]) -> bool | None:
    """Return whether a value differs for a different decision; None if the cases show both results of each decision."""
    if cone is None:
        return False
    walk = cone.walk
    read = (every[e] for e in cone.entries if e in every)
    open_ = [decision for decision in read if decision.is_fed and not decision.is_seen]
    inside = [walk.a.nodes[i].op_type for i in cone.nodes if not every.keys().isdisjoint(walk.a.nodes[i].output)]
    if not open_ and not inside:
        return None
    if any(decision.turns(cone) for decision in open_):
        return True
    moved = functools.partial(elsewhere, most=_MAX_SAMPLES)
    return not {*_BEST}.isdisjoint(inside) and differs(Cone.of(walk, cone.value), moved)


class _Decision:
    """A result of A that may be different for different inputs."""

    def __init__(self, walk: Walk, name: str) -> None:
        self._walk, self._name = walk, name

    @functools.cached_property
    def _known(self) -> list[Any]:
        every = (known.get(self._name) for known in self._walk.original.values)
        return [v for v in every if isinstance(v, np.ndarray)]

    @functools.cached_property
    def _behind(self) -> set[str]:
        a = self._walk.a
        return a.behind({self._name}, (), len(a.nodes) - 1)

    @property
    def is_fed(self) -> bool:
        """Whether B's pieces start from the decision."""
        return self._walk.pairs.by_original.get(self._name) in self._walk.fed

    @functools.cached_property
    def is_seen(self) -> bool:
        """Whether each boolean is both true and false in the cases."""
        return bool(self._known) and element_kind(self._known[-1]) == "b" and not self._fixed(self._known[-1]).any()

    def turns(self, cone: Cone) -> bool:
        """Return whether the cone's value differs for a different decision.

        False if further entries depend on the decision, and for branches, which are compared separately.
        """
        is_apart = self._behind.isdisjoint(cone.entries) and set(self._walk.a.hiding).isdisjoint(cone.nodes)
        return is_apart and self._name in cone.both and differs(cone, self._others)

    def _others(self, cone: Cone, known: Known) -> Iterator[Known]:
        value = known[self._name]
        if element_kind(value) == "b":
            return flips(known, self._name, self._fixed(value), Draws(self._walk.seed, self._name))
        indices = self._rows(cone) if element_kind(value) == "i" else []
        return rows(known, self._name, indices)

    def _fixed(self, value: Any) -> Any:
        """Return which booleans are equal in all rows of all cases."""
        if not value.ndim or any(v.shape[1:] != value.shape[1:] for v in self._known):
            every = np.concatenate([v.reshape(-1) for v in self._known])
            return np.full(value.shape, every.all() or not every.any())
        rows = np.concatenate(self._known)
        return np.broadcast_to(rows.all(axis=0) | ~rows.any(axis=0), value.shape)

    def _rows(self, cone: Cone) -> Any:
        """Return indices of all rows in the tables indexed by the decision; a sample for long tables."""
        a, handed, counts = self._walk.a, {self._name}, list[int]()
        for node in (a.nodes[i] for i in cone.nodes):
            if node.op_type in _LISTS and node.input[1] in handed and a.is_constant(node.input[0]):
                counts.append(_rows_of(a, node))
            elif node.op_type in HANDS_ON and node.input[0] in handed and node.op_type not in _TURNS:
                handed.update(node.output)
        count = min(counts, default=0)
        return np.linspace(0, max(count - 1, 0), min(count, _MAX_ROWS), dtype=np.int64)


def _rows_of(program: Program, node: NodeProto) -> int:
    dims = program.constants[node.input[0]].dims if node.input[0] in program.constants else [0]
    if node.op_type == "ArrayFeatureExtractor":
        return int(dims[-1]) if dims else 0
    axis = int_of(node, "axis")
    return int(dims[axis]) if -len(dims) <= axis < len(dims) else 0


# -- differences between the files ------------------------------------------------------------------------

# Operators that move numbers, or compute from sizes: no step hides a fault in these.
_PLACES: Final = having("moves", "measures", "picks", "fills") - having("retypes", "drops") | {"Constant"}
_WHOLE: Final = having("whole")


def is_made_otherwise(pairs: Pairs, values: Sequence[str], sameness: Sameness) -> bool:
    """Return whether B computes any value upstream of `values` (of A) differently."""
    return any(not sameness.is_made_alike(v) for v in pairs.made_from(_leading_to(pairs, values)))


def is_computed_otherwise(pairs: Pairs, values: Sequence[str], sameness: Sameness) -> bool:
    """Return whether B computes any value upstream of `values` differently, ignoring values of sizes only."""
    return any(computed_otherwise(pairs, _leading_to(pairs, values), sameness))


def _leading_to(pairs: Pairs, values: Sequence[str]) -> list[str]:
    return pairs.a.made(pairs.a.cone([v for v in values if v in pairs.by_original], ()))


def computed_otherwise(pairs: Pairs, made: Sequence[str], sameness: Sameness) -> Iterator[str]:
    """Yield the values of A, among `made`, that B computes differently, not only moved."""
    if not made:
        return
    mine, theirs = changing_values(pairs.a), changing_values(pairs.b)
    for value in (v for v in pairs.made_from([*made]) if v in theirs and not pairs.is_same(v)):
        original = pairs.of[value]
        computes = _computes(pairs.a, original, pairs.by_original, mine) or _computes(pairs.b, value, pairs.of, theirs)
        if computes and not sameness.is_made_alike(value):
            yield original


def _computes(program: Program, value: str, shared: Collection[str], changing: set[str]) -> bool:
    """Return whether operators besides moves lie between shared values and `value`."""
    nodes = (program.nodes[i] for i in program.cone([value], shared))
    return any(n.op_type not in _PLACES and not changing.isdisjoint(n.output) for n in nodes)


def is_decided_otherwise(pairs: Pairs, decisions: Sequence[str], sameness: Sameness) -> bool:
    """Return whether B computes any value downstream of `decisions` (of A) differently."""
    handed, made = made_of(pairs.a, decisions, pairs.by_original, HANDS_ON)
    mine = handed.union(decisions)
    theirs = {*pairs.made_from([*mine])}
    for value in (v for v in pairs.made_from(made) if not pairs.is_same(v)):
        becomes = _becomes_more(pairs.a, pairs.of[value], pairs.by_original, mine)
        becomes = becomes or _becomes_more(pairs.b, value, pairs.of, theirs)
        if becomes and not sameness.is_made_alike(value):
            return True
    return False


def _becomes_more(program: Program, value: str, shared: Collection[str], decisions: Collection[str]) -> bool:
    """Return whether a decision is more than moved or cast between shared values and `value`."""
    more = set[str]()  # decisions are many, so not copied
    for i in program.cone([value], shared):
        node, reads = program.nodes[i], program.reads[i]
        if any(r in decisions or r in more for r in reads):
            if node.op_type not in _WHOLE:
                return True
            more.update(node.output)
        elif node.op_type in GIVE_OTHERS:
            more.update(node.output)
    return False


def has_another_body(pairs: Pairs, made: Sequence[str], sameness: Sameness) -> bool:
    """Return whether different nodes or bodies make `made` in B."""
    nodes = [pairs.a.maker[name] for name in made if name in pairs.a.maker]
    return bool(nodes) and bool(sameness.changed(nodes, ())[0])


def hides_otherwise(pairs: Pairs) -> bool:
    """Return whether parts that may not run differ. Equal names are assumed to be equal values."""
    sameness = pairs.by_name
    if any(changed(pairs, sameness)):
        return True
    made = pairs.a.made(_only_inside(pairs.a))
    deciding = (name for j in pairs.b.hiding for name in deciding_of(pairs.b.nodes[j]) if name in pairs.of)
    return any(not sameness.is_made_alike(value) for value in (*pairs.made_from(made), *deciding))


def changed(pairs: Pairs, sameness: Sameness, cuts: Collection[str] | None = None) -> tuple[list[int], list[int]]:
    """Return (nodes of A with parts that may not run, not computed alike in B; nodes of B without counterpart in A).

    cuts: cutpoints that operands must be; None: any operands.
    """
    mine, theirs = pairs.a.hiding, pairs.b.hiding
    same = {i: pairs.b.maker[v] for i in mine if (v := _same(pairs, i, cuts))}
    known = set(same.values())
    return sameness.changed([i for i in mine if i not in same], [j for j in theirs if j not in known])


def _same(pairs: Pairs, node: int, cuts: Collection[str] | None) -> str:
    """Return a value of B made by the node equal to A's `node`, or ""."""
    value = next(pairs.made_from(list(pairs.a.nodes[node].output)), "")
    if not value or not pairs.is_same(value):
        return ""
    reads = pairs.b.reads[pairs.b.maker[value]]
    return value if cuts is None or all(r in cuts or pairs.b.is_constant(r) for r in reads) else ""


def _only_inside(program: Program) -> set[int]:
    """Return the nodes whose results are read only by parts that may not run."""
    parts, found = set(program.hiding), set[int]()
    stack = [program.maker[o] for o in program.outputs if o in program.maker]
    while stack:
        i = stack.pop()
        if i not in found:
            found.add(i)
            reads = program.nodes[i].input if i in parts else program.reads[i]
            stack += [program.maker[r] for r in reads if r in program.maker]
    return set(program.cone(program.outputs, ())) - found
