"""Differences between the files, found before any run, that decide whether equal outputs are examined further."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.verification.coverage.cones import made_of
from onnxopt.verification.coverage.decisions import HANDS_ON
from onnxopt.verification.coverage.samplers import changing_values
from onnxopt.verification.model.operators import GIVE_OTHERS, having
from onnxopt.verification.pieces.sameness import Sameness

if TYPE_CHECKING:
    from onnxopt.verification.pieces.pairs import Pairs
    from onnxopt.verification.programs.program import Program

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
    sameness = Sameness.of_files(pairs)
    if any(changed(pairs, sameness)):
        return True
    made = pairs.a.made(_only_inside(pairs.a))
    return any(not sameness.is_made_alike(value) for value in pairs.made_from(made))


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
