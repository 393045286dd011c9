"""Values computed from a decision constant in all cases: a comparison never true, a class never the best.

Such a value agrees whatever a different decision would give. If A and B compute the value differently, a probe uses
different decisions: negated booleans, and all indices into a table. If the decision exists in only one of the two, its
operand is permuted.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.coverage.cones import Cone, made_of
from onnxopt.verification.coverage.probe import differs
from onnxopt.verification.coverage.samplers import changing_values, elsewhere, flips, rows
from onnxopt.verification.model.operators import GIVE_OTHERS, having
from onnxopt.verification.numbers.draws import Draws

if TYPE_CHECKING:
    from onnx import NodeProto

    from onnxopt.verification.coverage.probe import Known
    from onnxopt.verification.pieces.sameness import Sameness
    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program

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
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return int(dims[axis]) if -len(dims) <= axis < len(dims) else 0
