"""What is made of a decision that is the same in all cases: a comparison that is never true, a class never the best.

It agrees whatever would be made of another. So where A and B make it otherwise, it is probed with others: booleans that
are turned round, indices of all that they could pick of a table; or, where only one of the two has the decision, the
same numbers in other places.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.element_types import element_kind
from onnxopt.verification.coverage import samplers
from onnxopt.verification.coverage.cones import Cone, made_of
from onnxopt.verification.coverage.probe import differs
from onnxopt.verification.coverage.samplers import changing_values
from onnxopt.verification.model.operators import GIVE_OTHERS, having
from onnxopt.verification.numbers.draws import Draws

if TYPE_CHECKING:
    from onnx import NodeProto

    from onnxopt.verification.coverage.probe import Known
    from onnxopt.verification.pieces.sameness import Sameness
    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program

_MAX_VALUES: Final = 32  # decisions, and values that are made of each
_MAX_ROWS: Final = 1 << 12  # of a table
_ELSEWHERE: Final = 8  # samples
_BEST: Final = ("ArgMax", "ArgMin")
# What hands a decision on, in another place or as another number for each.
HANDS_ON: Final = (having("moves") - having("joined")) | {"Not", "Neg", "ArrayFeatureExtractor"}
_LISTS: Final = ("Gather", "ArrayFeatureExtractor")  # their first operand may be a table, of which they pick


def decided_otherwise(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """The values of B that agree and are made otherwise of a decision: do they differ where another one was drawn?"""
    found: dict[str, bool] = {}
    cuts = {walk.pairs.of[v] for v in walk.cuts if v in walk.pairs.of}
    changing = changing_values(walk.a)
    decisions = ((kind, name) for kind, name in _decisions(walk.a) if name in changing)
    for kind, name in itertools.islice(decisions, _MAX_VALUES):
        handed, values = made_of(walk.a, [name], cuts, HANDS_ON)
        open_ = (v for v in walk.pairs.made_from(values) if not found.get(v) and not sameness.is_made_alike(v))
        if walk.pairs.by_original.get(name) in walk.fed:
            decision = _Decision(walk, name, {*walk.pairs.made_from([*handed])} & walk.cuts)
            probed = decision.probed(open_)
        else:
            moved = partial(samplers.elsewhere, most=_ELSEWHERE)
            probed = ((v, kind in _BEST and differs(Cone.of(walk, v), moved)) for v in open_)
        found.update(itertools.islice(probed, _MAX_VALUES))
    return found


def _decisions(program: Program) -> Iterator[tuple[str, str]]:
    """(the operator, what it decides)."""
    for node in program.nodes:
        if node.op_type in GIVE_OTHERS:
            yield node.op_type, node.output[0]
        elif node.op_type == "TopK" and len(node.output) > 1:
            yield node.op_type, node.output[1]


class _Decision:
    """One that both models have. `handed`: values of B that hand it on."""

    def __init__(self, walk: Walk, name: str, handed: set[str]) -> None:
        self._walk, self._name, self._handed = walk, name, handed
        every = (known.get(name) for known in walk.original.values)
        self._known = [v for v in every if isinstance(v, np.ndarray)]
        self._behind: set[str] | None = None

    @functools.cached_property
    def _is_seen(self) -> bool:
        """Are these booleans of which each is both, in some row of some case?"""
        return bool(self._known) and element_kind(self._known[-1]) == "b" and not self._fixed(self._known[-1]).any()

    def probed(self, values: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """(value, does it differ). None if the cases show both answers already."""
        return ((v, self._differs(v)) for v in itertools.takewhile(lambda _: not self._is_seen, values))

    def _differs(self, value: str) -> bool:
        """What stands in a branch is compared by itself; entries that A makes of the decision would be others, too."""
        a, cone = self._walk.a, Cone.of(self._walk, value, self._handed - {value})
        if cone is None or self._name not in cone.both or not set(a.hiding).isdisjoint(cone.nodes):
            return False
        if self._behind is None:
            self._behind = a.behind({self._name}, (), len(a.nodes) - 1)
        return self._behind.isdisjoint(cone.entries) and differs(cone, self._others)

    def _others(self, cone: Cone, known: Known) -> Iterator[Known]:
        value = known[self._name]
        if element_kind(value) == "b":
            return samplers.flips(known, self._name, self._fixed(value), Draws(self._walk.seed, self._name))
        indices = self._rows(cone) if element_kind(value) == "i" else []
        return samplers.rows(known, self._name, indices)

    def _fixed(self, value: Any) -> Any:
        """Which of these booleans are the same in all rows of all cases."""
        if not value.ndim or any(v.shape[1:] != value.shape[1:] for v in self._known):
            every = np.concatenate([v.reshape(-1) for v in self._known])
            return np.full(value.shape, every.all() or not every.any())
        rows = np.concatenate(self._known)
        return np.broadcast_to(rows.all(axis=0) | ~rows.any(axis=0), value.shape)

    def _rows(self, cone: Cone) -> Any:
        """All that it could pick of the tables of A's nodes that it picks of; the ends of long ones."""
        a, handed, counts = self._walk.a, {self._name}, list[int]()
        for node in (a.nodes[i] for i in cone.nodes):
            if node.op_type in _LISTS and node.input[1] in handed and a.is_constant(node.input[0]):
                counts.append(_rows_of(a, node))
            elif node.op_type in HANDS_ON and node.input[0] in handed and node.op_type not in ("Not", "Neg"):
                handed.update(node.output)
        count = min(counts, default=0)
        return np.linspace(0, max(count - 1, 0), min(count, _MAX_ROWS), dtype=np.int64)


def _rows_of(program: Program, node: NodeProto) -> int:
    dims = program.constants[node.input[0]].dims if node.input[0] in program.constants else [0]
    if node.op_type == "ArrayFeatureExtractor":
        return int(dims[-1]) if dims else 0
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return int(dims[axis]) if -len(dims) <= axis < len(dims) else 0
