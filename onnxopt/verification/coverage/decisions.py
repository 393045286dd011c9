"""Values computed from a decision that is constant in all cases."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from onnx import NodeProto

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.coverage.cones import Cone, made_of, tensors
from onnxopt.verification.coverage.probe import Known, changing_values, differs, elsewhere
from onnxopt.verification.model.nodes import int_of
from onnxopt.verification.model.operators import GIVE_OTHERS, having
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
_MAX_MASKS: Final = 2  # random sets of booleans
_BEST: Final = ("ArgMax", "ArgMin")
# Operators that move a decision, or map its elements one to one.
_TURNS: Final = having("turns")
HANDS_ON: Final = (having("moves") - having("joined")) | _TURNS | {"ArrayFeatureExtractor"}
_LISTS: Final = ("Gather", "ArrayFeatureExtractor")  # operators with a possible table as the first operand


def decided_otherwise(walk: Walk) -> dict[str, bool]:
    """Return {value of B computed differently from a decision: whether it differs for a different decision}."""
    changing = changing_values(walk.a)
    decisions = {*itertools.islice((name for name in _decisions(walk.a) if name in changing), _MAX_DECISIONS)}
    cuts = {v for v, theirs in walk.pairs.by_original.items() if theirs in walk.cuts}
    handed, values = made_of(walk.a, decisions, cuts, HANDS_ON)
    behind = {*walk.pairs.made_from([*handed])} & walk.cuts
    made = dict.fromkeys(walk.pairs.made_from(values))
    open_ = itertools.islice(walk.sameness.made_differently(made), _MAX_VALUES)
    asked = ((v, _differs(Cone.of(walk, v, behind - {v}), decisions)) for v in open_)
    return {value: found for value, found in asked if found is not None}


def _decisions(program: Program) -> Iterator[str]:
    for node in program.nodes:
        if node.op_type in GIVE_OTHERS:
            yield node.output[0]
        elif node.op_type == "TopK" and len(node.output) > 1:
            yield node.output[1]


def _differs(cone: Cone | None, decisions: set[str]) -> bool | None:
    """Return whether a value differs for a different decision; None if the cases show both results of each decision."""
    if cone is None:
        return False
    a, read = cone.walk.a, _half_seen(cone, decisions)
    inside = {a.nodes[i].op_type for i in cone.nodes if not decisions.isdisjoint(a.nodes[i].output)}
    if not read and not inside:
        return None
    if _differs_for_others(cone, read):
        return True
    moved = functools.partial(elsewhere, most=_MAX_SAMPLES)
    return not inside.isdisjoint(_BEST) and differs(Cone.of(cone.walk, cone.value), moved)


def _half_seen(cone: Cone, decisions: set[str]) -> list[str]:
    """Return the decisions fed to a cone without both results of each boolean in the cases."""
    walk = cone.walk
    fed = (e for e in cone.entries if e in decisions and walk.pairs.by_original.get(e) in walk.fed)
    known = ((e, tensors(walk, e)) for e in fed)
    return [e for e, v in known if not v or element_kind(v[-1]) != "b" or _fixed(v, v[-1]).any()]


def _differs_for_others(cone: Cone, read: Sequence[str]) -> bool:
    """Return whether a value differs for a different result of one of the decisions `read`."""
    a = cone.walk.a
    if not set(a.hiding).isdisjoint(cone.nodes):  # branches are compared separately
        return False
    # A further entry that depends on the decision would contradict the decision.
    apart = [e for e in read if e in cone.both and a.behind({e}, (), len(a.nodes) - 1).isdisjoint(cone.entries)]
    return any(differs(cone, functools.partial(_others, name=e)) for e in apart)


def _others(cone: Cone, known: Known, name: str) -> Iterator[Known]:
    """Yield other results of a decision: booleans equal in all cases negated, and indices of all rows of a table."""
    value, kind = known[name], element_kind(known[name])
    if kind == "b" and (fixed := _fixed(tensors(cone.walk, name), value)).any():
        rng = Draws(cone.walk.replay.seed, name)
        for mask in (fixed, *(fixed & rng.flags(value.shape) for _ in range(_MAX_MASKS))):
            yield {name: np.asarray(value ^ mask)}
    rows = _rows(cone, name) if kind == "i" and value.size else ()
    for start in range(0, len(rows), value.size or 1):
        yield {name: np.resize(rows[start : start + value.size], value.shape).astype(value.dtype)}


def _fixed(known: Sequence[Any], value: Any) -> Any:
    """Return which booleans of a value are equal in all rows of all cases."""
    if not value.ndim or any(v.shape[1:] != value.shape[1:] for v in known):
        every = np.concatenate([v.reshape(-1) for v in known])
        return np.full(value.shape, every.all() or not every.any())
    rows = np.concatenate(known)
    return np.broadcast_to(rows.all(axis=0) | ~rows.any(axis=0), value.shape)


def _rows(cone: Cone, name: str) -> Any:
    """Return indices of all rows in the tables indexed by a decision; a sample for long tables."""
    a, handed, counts = cone.walk.a, {name}, list[int]()
    for node in a.at(cone.nodes):
        if node.op_type in _LISTS and node.input[1] in handed and a.is_constant(node.input[0]):
            counts.append(_count_rows(a, node))
        elif node.op_type in HANDS_ON and node.input[0] in handed and node.op_type not in _TURNS:
            handed.update(node.output)
    count = min(counts, default=0)
    return np.linspace(0, max(count - 1, 0), min(count, _MAX_ROWS), dtype=np.int64)


def _count_rows(program: Program, node: NodeProto) -> int:
    """Return the rows of the constant table that a node indexes; 0 if unknown."""
    dims = program.constants[node.input[0]].dims if node.input[0] in program.constants else [0]
    axis = -1 if node.op_type == "ArrayFeatureExtractor" else int_of(node, "axis")
    return int(dims[axis]) if -len(dims) <= axis < len(dims) else 0
