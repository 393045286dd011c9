"""What files say that B makes otherwise than A, before anything is run: whether equal outputs are looked into."""

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

# What moves numbers, or is made of sizes: what is wrong with that no step hides.
_PLACES: Final = (having("moves", "measures") - {"Cast", "CastLike", "Where"}) | {
    "ConstantOfShape", "DepthToSpace", "SpaceToDepth", "Constant", "Range",
}  # fmt: skip
_WHOLE: Final = having("whole")


def is_made_otherwise(pairs: Pairs, values: Sequence[str], sameness: Sameness) -> bool:
    """Is anything that leads to these values of A made otherwise?"""
    return any(not sameness.is_made_alike(v) for v in pairs.made_from(_leading_to(pairs, values)))


def is_computed_otherwise(pairs: Pairs, values: Sequence[str], sameness: Sameness) -> bool:
    """Is anything that leads to these values of A, and depends on more than sizes, computed otherwise?"""
    return any(computed_otherwise(pairs, _leading_to(pairs, values), sameness))


def _leading_to(pairs: Pairs, values: Sequence[str]) -> list[str]:
    return pairs.a.made(pairs.a.cone([v for v in values if v in pairs.by_original], ()))


def computed_otherwise(pairs: Pairs, made: Sequence[str], sameness: Sameness) -> Iterator[str]:
    """The ones of these values of A that are computed otherwise, not moved only."""
    if not made:
        return
    mine, theirs = changing_values(pairs.a), changing_values(pairs.b)
    for value in (v for v in pairs.made_from([*made]) if v in theirs and not pairs.is_same(v)):
        original = pairs.of[value]
        computes = _computes(pairs.a, original, pairs.by_original, mine) or _computes(pairs.b, value, pairs.of, theirs)
        if computes and not sameness.is_made_alike(value):
            yield original


def _computes(program: Program, value: str, shared: Collection[str], changing: set[str]) -> bool:
    """Is more done than numbers moved between values that both have and this one?"""
    nodes = (program.nodes[i] for i in program.cone([value], shared))
    return any(n.op_type not in _PLACES and not changing.isdisjoint(n.output) for n in nodes)


def is_decided_otherwise(pairs: Pairs, decisions: Sequence[str], sameness: Sameness) -> bool:
    """Is anything made otherwise of these values of A?"""
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
    """Does more become of a decision, between values that both have and this one, than it is moved, or another type?"""
    more = set[str]()  # of the many there may be none is copied
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
    """Do other nodes, or bodies, make these values in B?"""
    nodes = [pairs.a.maker[name] for name in made if name in pairs.a.maker]
    return bool(nodes) and bool(sameness.changed(nodes, ())[0])


def hides_otherwise(pairs: Pairs) -> bool:
    """Is there anything that may not run, and is not the same in both? One name is one value here."""
    sameness = Sameness.of_files(pairs)
    if any(changed(pairs, sameness)):
        return True
    made = pairs.a.made(_only_inside(pairs.a))
    return any(not sameness.is_made_alike(value) for value in pairs.made_from(made))


def changed(pairs: Pairs, sameness: Sameness, cuts: Collection[str] | None = None) -> tuple[list[int], list[int]]:
    """The nodes of A that hide parts, of which B does not make the same of what it reads; if that is said, of `cuts`.
    And those of B that A has not."""
    mine, theirs = pairs.a.hiding, pairs.b.hiding
    same = {i: pairs.b.maker[v] for i in mine if (v := _same(pairs, i, cuts))}
    known = set(same.values())
    return sameness.changed([i for i in mine if i not in same], [j for j in theirs if j not in known])


def _same(pairs: Pairs, node: int, cuts: Collection[str] | None) -> str:
    """What B makes by the same node; empty if it does not."""
    value = next(pairs.made_from(list(pairs.a.nodes[node].output)), "")
    if not value or not pairs.is_same(value):
        return ""
    reads = pairs.b.reads[pairs.b.maker[value]]
    return value if cuts is None or all(r in cuts or pairs.b.is_constant(r) for r in reads) else ""


def _only_inside(program: Program) -> set[int]:
    """The nodes that make what only parts that may not run read, and no output."""
    parts, found = set(program.hiding), set[int]()
    stack = [program.maker[o] for o in program.outputs if o in program.maker]
    while stack:
        i = stack.pop()
        if i not in found:
            found.add(i)
            reads = program.nodes[i].input if i in parts else program.reads[i]
            stack += [program.maker[r] for r in reads if r in program.maker]
    return set(program.cone(program.outputs, ())) - found
