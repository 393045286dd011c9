"""Parts that no case ran: untaken branches and zero-trip loops, at every depth.

Parts computed alike in both models need no run. All further bodies are compared on the values they would get, run or
not. Bodies that cannot be compared, or give only blank results, are reported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from onnx import NodeProto

from onnxopt.verification.coverage.bodies import walk_bodies
from onnxopt.verification.coverage.conditions import asks_alike, held, is_never, is_open, running
from onnxopt.verification.coverage.gaps import Gap, gaps, paired_cuts, unproven_blanks
from onnxopt.verification.model.nodes import deciding_of, first_of, holds, inside, is_part
from onnxopt.verification.model.operators import MEASURING
from onnxopt.verification.pieces.outcome import depth, label_of
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program, bodies

_DECIDED: Final = ("If", "Loop")  # operands decide which parts run
_LATER: Final = 3  # an iteration
_MAX_NESTED_PARTS: Final = 4  # nested parts for which several counterparts are tried
_MAX_OTHERS: Final = 4  # candidates for the counterpart of a renamed node, on either side


def unseen(walk: Walk, scope: str = "main", *, is_wrong: bool) -> Iterator[Gap]:
    """Yield the coverage gaps and faults in parts of A not run by any case, in a main graph or walked body.

    scope: path of B's nodes; is_wrong: a fault is known, so gaps besides hidden parts are left out, as they accuse
    nothing.
    """
    yield from _hidden(walk, scope, is_wrong=is_wrong)
    if is_wrong:
        return
    for value, other in _indistinct(walk):
        why = f"only one of the models computes `{value}` from `{other}`"
        yield Gap(f"{why}, and no case has other numbers in the operand of the other model")
    yield from gaps(walk)


def _hidden(walk: Walk, scope: str, *, is_wrong: bool) -> Iterator[Gap]:
    """Yield gaps in parts of nodes without equal node in B."""
    hiding = walk.a.hiding
    decided = sorted({*walk.a.deciding}.difference(hiding))  # all parts run, which proves little about a decision
    apart, new = walk.sameness.changed([*hiding, *decided], walk.b.hiding)
    counterparts = _counterparts(walk, hiding)
    known, others = set[int | None](), set(new)
    different = {*apart, *(i for i, j in counterparts.items() if j in others)}
    for i in sorted(different):
        found = _Node(walk, i, scope, is_wrong=is_wrong)
        known |= found.covered
        yield from found.unseen(all_taken=i in decided)
    alike = [(walk.a.nodes[i], walk.b.nodes[j]) for i, j in counterparts.items() if i not in different]
    yield from _only_in_b(walk, alike, [walk.b.nodes[j] for j in new if j not in known])


def _counterparts(walk: Walk, nodes: Iterable[int]) -> dict[int, int]:
    """Return the nodes of B with the same operator and a corresponding result, by node of A."""
    made = ((i, walk.b.maker[v]) for i in nodes for v in walk.pairs.made_from([*walk.a.nodes[i].output]))
    return {i: j for i, j in made if walk.a.nodes[i].op_type == walk.b.nodes[j].op_type}


def _only_in_b(walk: Walk, alike: Sequence[tuple[NodeProto, NodeProto]], others: Sequence[NodeProto]) -> Iterator[Gap]:
    """Yield gaps for nodes of B on whose parts inputs decide, unlike in A.

    alike: nodes of A and their counterparts in B; others: nodes of B without counterpart.
    """
    for x, y in alike:
        asked = [pair for pair in zip(deciding_of(x), deciding_of(y)) if all(pair)]
        if any(asks_alike(walk, *pair) is None for pair in asked) and is_open(walk.b, y) and not is_open(walk.a, x):
            yield Gap(f"only in one of the models inputs decide on the {label_of(y)} that makes `{first_of(y)}`")
    for y in others:
        if is_open(walk.b, y) or y.op_type not in _DECIDED:
            yield Gap(f"only one of the models has the {label_of(y)} that makes `{first_of(y)}`")


def _is_settled(walk: Walk) -> bool:
    """Return whether everything walked agrees."""
    return not (walk.faults or walk.unsettled)


def untaken(walk: Walk) -> dict[str, str]:
    """Return {branch of A that no case takes, in words: its condition}, for computed conditions that may change."""
    a = walk.a
    ifs = [n for n in a.at(a.hiding) if n.op_type == "If" and n.input[0] in a.maker]
    left = [(n, name) for n in ifs for name in bodies(n) if not running(walk, n, name)]
    return {_never_taken(n, name): n.input[0] for n, name in left if is_open(a, n) and not is_never(a, n, name)}


def _never_taken(node: NodeProto, branch: str) -> str:
    return f"the {branch.removesuffix('_branch')} branch on `{node.input[0]}` was never taken"


class _Node:
    """A node of A with parts that may not run, directly or in a function.

    counterpart: corresponding node of B with the same operator, else None.
    """

    def __init__(self, walk: Walk, i: int, scope: str, *, is_wrong: bool) -> None:
        self._walk, self._i, self._scope, self._is_wrong = walk, i, scope, is_wrong
        self._node = node = walk.a.nodes[i]
        self._first = first_of(node)
        self._bodies = held(walk.a, node)
        made = next(walk.pairs.made_from(list(node.output)), "")  # a value of B corresponding to a result
        place, walks = (walk.b.maker[made], walk_bodies(walk, i, walk.b.maker[made])) if made else self._found()
        self.counterpart = place if place is not None and walk.b.nodes[place].op_type == node.op_type else None
        reads_fault = place is None or not (walk.cuts - walk.agreed).isdisjoint(walk.b.reads[place])
        self._inner: dict[str, list[Walk]] = {}  # walks, by body
        for name, inner in walks if not reads_fault else ():
            self._inner.setdefault(name, []).append(inner)
        j = self.counterpart
        self._alike = walk.sameness.alike(i, j) if j is not None and bodies(node) else {}

    def _found(self) -> tuple[int | None, Iterable[tuple[str, Walk]]]:
        """Return (node of B with different names and equal bodies, walks of its bodies).

        The node may have been merged with a further node.
        """
        walk, i = self._walk, self._i
        for j in [*walk.sameness.reading_alike(i)[:_MAX_OTHERS], *self._near()]:
            inner = list(walk_bodies(walk, i, j))
            if {name for name, _ in inner} == self._bodies.keys() and all(_is_settled(w) for _, w in inner):
                return j, inner
        return None, ()

    def _near(self) -> list[int]:
        """Return nodes of B with the same operator at a similar position."""
        mine, theirs = (p.places.get(self._node.op_type, []) for p in (self._walk.a, self._walk.b))
        rank = min(bisect_left(mine, self._i), len(theirs))
        return theirs[max(rank - _MAX_OTHERS, 0) : rank + _MAX_OTHERS]

    @property
    def covered(self) -> set[int | None]:
        """The nodes of B compared with this node: of a decided node, the counterpart only on the same condition."""
        arounds = [w.enclosing for inner in self._inner.values() for w in inner if w.enclosing is not None]
        is_held = is_open(self._walk.a, self._node) or any(a.is_sure and a.names[1] for a in arounds)
        return {self.counterpart if is_held else None}.union(*(around.in_place for around in arounds))

    def unseen(self, *, all_taken: bool) -> Iterator[Gap]:
        """Yield the gaps and faults in the node's parts. `all_taken`: all parts run."""
        if not self._bodies:  # a function with different opsets
            function = self._walk.a.skeleton.functions.of(self._node)
            yield from self._closed(function.node if function is not None else ())
        for name in self._bodies:
            is_run = all_taken or bool(running(self._walk, self._node, name))
            is_possible = is_open(self._walk.a, self._node) or (is_run and not is_never(self._walk.a, self._node, name))
            if is_possible and not self._alike.get(name):
                yield from self._least(name, is_run=is_run)

    def _least(self, name: str, *, is_run: bool) -> list[Gap]:
        """Return the gaps of a body with the counterpart that leaves fewest.

        An untaken branch that agrees on the values it would get, or with its condition set as required, is no fault: no
        input may give the values that differ.
        """
        found: list[list[Gap]] = []
        is_deep = depth(self._walk) >= _MAX_NESTED_PARTS
        for walk in self._tried(name, is_deep=is_deep) or (None,):
            here = [*(self._of_other_turns(walk) if is_run else self._not_run(name, walk)), *self._deeper(name, walk)]
            if all(u.silent for u in here):
                return here
            # The only counterpart tried at a depth proves no fault.
            accuses = self._accuses(name, walk, is_deep=is_deep)
            found.append(here if accuses else [u if u.why else Gap(self._why(name)) for u in here])
        return min(found, key=lambda here: any(u.faults for u in here))

    def _tried(self, name: str, *, is_deep: bool) -> list[Walk]:
        """Return the walks of a body with the first counterpart, and with further ones that agree."""
        inner = self._inner.get(name, [])
        return [*inner[:1], *(() if self.counterpart is None or is_deep else filter(_is_settled, inner[1:]))]

    def _accuses(self, name: str, walk: Walk | None, *, is_deep: bool) -> bool:
        """Return whether a difference is a fault: not of impossible numbers, nor of uncertain counterparts."""
        if walk is None or walk.enclosing is None:
            return True
        return not (is_deep or is_never(self._walk.a, self._node, name) or not walk.enclosing.is_sure)

    def _of_other_turns(self, walk: Walk | None) -> Iterator[Gap]:
        """Yield gaps for faults in the first iteration: a later iteration may differ in results."""
        for fault in walk.faults if walk is not None and self._node.op_type != "If" else ():
            why = f"`{fault.value}` differs in a body that makes `{self._first}`, and no case shows it"
            yield Gap(why, stays=True)

    def _not_run(self, name: str, walk: Walk | None) -> Iterator[Gap]:
        if walk is not None and walk.enclosing is not None and walk.faults:
            others = [w for other, inner in self._inner.items() for w in inner if other != name]
            if not others or not all(w.faults for w in others):
                yield Gap("", walk.enclosing.scope(self._scope), walk, walk.faults)
        elif walk is None or walk.unsettled or unproven_blanks(walk) or not self._turns_alike(name):
            yield Gap(self._why(name))

    def _deeper(self, name: str, walk: Walk | None) -> Iterator[Gap]:
        if walk is not None and walk.enclosing is not None:
            return unseen(walk, walk.enclosing.scope(self._scope), is_wrong=self._is_wrong)
        return self._closed(self._bodies[name].node)

    def _turns_alike(self, name: str) -> bool:
        """Return whether a loop's trip count is equal, and later iterations agree."""
        if self._node.op_type != "Loop" or self.counterpart is None:
            return True
        a, b = self._walk.sameness.a.operands(self._i), self._walk.sameness.b.operands(self.counterpart)
        return a[:2] == b[:2] and all(
            _is_settled(w) for _, w in walk_bodies(self._walk, self._i, self.counterpart, _LATER)
        )

    def _why(self, name: str) -> str:
        if self._node.op_type == "If":
            return _never_taken(self._node, name)
        return f"the body of the loop that makes `{self._first}` was never run"

    def _closed(self, nodes: Iterable[NodeProto]) -> Iterator[Gap]:
        """Yield gaps for parts of a body that could not be compared."""
        functions = self._walk.a.skeleton.functions.holding(is_part)
        for node in inside(nodes):
            if holds(node, is_part, functions) and is_open(self._walk.a, node):
                yield Gap(f"which parts of the {label_of(node)} that makes `{first_of(node)}` ran is unknown")


# -- values that no case distinguishes -------------------------------------------------------------------


def _indistinct(walk: Walk) -> Iterator[tuple[str, str]]:
    """Yield (value, result read by only one model).

    Two Ifs with an untaken branch may agree in all cases. A value that reads the first in A and the second in B agrees
    too, which proves nothing.
    """
    a = walk.a
    parts = {i: bodies(a.nodes[i]) for i in a.hiding}
    half = [i for i, held in parts.items() if not held or not all(running(walk, a.nodes[i], name) for name in held)]
    if not half:
        return
    numbers = walk.sameness.numbers(half)
    for value in (v for v in paired_cuts(walk) if not walk.pairs.is_same(v)):
        other = _read_by_one(walk, value, numbers)
        if any(is_open(a, a.nodes[a.maker[name]]) for name in other):
            yield value, other[0]


def _read_by_one(walk: Walk, value: str, numbers: Mapping[str, int]) -> list[str]:
    """Return the numbered values that a value is computed from in only one of the models."""
    of = walk.pairs.of
    mine, theirs = _read(walk.a, of[value], walk.fed_of_a), _read(walk.b, value, walk.fed)
    x, y = ({numbers[n]: n for n in names if n in numbers} for names in (mine, (of.get(n, n) for n in theirs)))
    return [(x | y)[n] for n in x.keys() ^ y.keys()]


def _read(program: Program, value: str, fed: set[str]) -> set[str]:
    """Return the cutpoints a value is computed from, except through sizes."""
    nodes = (i for i in program.cone([value], fed) if program.nodes[i].op_type not in MEASURING)
    return {r for i in nodes for r in program.reads[i] if r in fed}
