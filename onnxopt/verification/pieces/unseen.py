"""Parts that no case ran: branches that none took, loops that made no turn, at every depth.

Where both models make the same of what they read there is nothing to see. Else bodies are compared on what they would
be given, whether they are run or not; and what can not be compared, or gives nothing, is said.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.decisions import may_hide
from onnxopt.verification.order import inside
from onnxopt.verification.pieces.dead_ends import dead_ends, sameness_of
from onnxopt.verification.pieces.inside import held, walk_bodies
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.pieces.program import bodies
from onnxopt.verification.pieces.sameness import Sameness

if TYPE_CHECKING:
    from onnx import NodeProto

    from onnxopt.verification.pieces.outcome import Fault
    from onnxopt.verification.pieces.program import Program
    from onnxopt.verification.pieces.walk import Walk


_NEAR: Final = 4  # nodes before and behind that one which lost its name may have become


@dataclass
class Unseen:
    """`why` a part was not seen; or how it differs from the other: `faults` in a `walk` of it."""

    why: str
    scope: str = ""
    walk: Walk | None = None
    faults: list[Fault] = field(default_factory=list)


def may_differ(pairs: Pairs) -> bool:
    """Is there anything that may not run, and is not the same in both? As far as files tell: one name, one value."""
    sameness = Sameness(pairs, {*pairs.of, *pairs.b.given})
    if any(not _is_same(pairs, sameness, i) for i in _hiding(pairs.a)):
        return True
    made = (o for i in _only_inside(pairs.a) for o in pairs.a.nodes[i].output)
    return any(not sameness.is_made_alike(value) for value in pairs.made_from(list(made)))


def unseen(
    walk: Walk, is_open: Callable[[str], bool], taken: Collection[str] = (), scope: str = "main"
) -> Iterator[Unseen]:
    """What of A, in the main graph or the body that was walked, no case ran and nothing else shows. `is_open`: may data
    decide upon the parts of the node that makes this value? `taken`: conditions of which other cases took both."""
    sameness = sameness_of(walk)
    for i in (i for i in _hiding(walk.a) if not _is_same(walk.pairs, sameness, i, walk.agreed)):
        node = walk.a.nodes[i]
        all_taken = node.op_type == "If" and node.input[0] in taken
        if not all_taken or _is_deep(walk.a, node):
            yield from _Node(walk, sameness, i, is_open, scope).unseen(all_taken=all_taken)


def _hiding(program: Program) -> list[int]:
    functions = program.skeleton.hiding
    return [i for i, n in enumerate(program.nodes) if may_hide(n, functions)]


def _is_deep(program: Program, node: NodeProto) -> bool:
    functions = program.skeleton.hiding
    return any(may_hide(n, functions) for body in bodies(node).values() for n in body.node)


def _only_inside(program: Program) -> set[int]:
    """The nodes that make what only such parts read, and no output."""
    hiding, found = set(_hiding(program)), set[int]()
    stack = [program.maker[o] for o in program.outputs if o in program.maker]
    while stack:
        i = stack.pop()
        if i not in found:
            found.add(i)
            reads = program.nodes[i].input if i in hiding else program.reads[i]
            stack += [program.maker[r] for r in reads if r in program.maker]
    return set(program.cone(program.outputs, ())) - found


def _is_same(pairs: Pairs, sameness: Sameness, i: int, cuts: Collection[str] | None = None) -> bool:
    """Does B make the same of what it reads; if that is said, of `cuts`?"""
    value = next((pairs.by_original[o] for o in pairs.a.nodes[i].output if o in pairs.by_original), "")
    if value and pairs.is_same(value):
        reads = pairs.b.reads[pairs.b.maker[value]]
        if cuts is None or all(r in cuts or pairs.b.is_constant(r) for r in reads):
            return True
    return sameness.is_still_made(i)


class _Node:
    """One that holds parts, or calls what does."""

    def __init__(self, walk: Walk, sameness: Sameness, i: int, is_open: Callable[[str], bool], scope: str) -> None:
        self._walk = walk
        self._node = node = walk.a.nodes[i]
        self._first = next((o for o in node.output if o), "")
        self._is_open = is_open
        self._bodies = held(walk.a, node)
        j = self._stands_for(i)
        is_fed_alike = j is not None and (walk.cuts - walk.agreed).isdisjoint(walk.b.reads[j])
        self._inner = dict(walk_bodies(walk, i, j)) if j is not None and is_fed_alike else {}
        self._alike = sameness.alike(i, j) if j is not None and bodies(node) else {}
        self._scope = f"{scope} / {called(node if j is None else walk.b.nodes[j])}"

    def _stands_for(self, i: int) -> int | None:
        """The node of B that is this one of A, which may have become one with another."""
        walk, op = self._walk, self._node.op_type
        value = next((walk.pairs.by_original[o] for o in self._node.output if o in walk.pairs.by_original), "")
        if value:
            return walk.b.maker[value] if walk.b.nodes[walk.b.maker[value]].op_type == op else None
        for j in self._near(i):
            inner = [w.outcome for _, w in walk_bodies(walk, i, j)]
            if len(inner) == len(self._bodies) and not any(o.faults or o.unsettled for o in inner):
                return j
        return None

    def _near(self, i: int) -> list[int]:
        """The nodes of B that are the same operator, and not far from where node i stands among A's."""
        mine, theirs = (p.places.get(self._node.op_type, []) for p in (self._walk.a, self._walk.b))
        rank = min(bisect_left(mine, i), len(theirs))
        return theirs[max(rank - _NEAR, 0) : rank + _NEAR]

    def unseen(self, *, all_taken: bool) -> Iterator[Unseen]:
        for name in self._bodies:
            if self._alike.get(name):
                continue
            runs = all_taken or self._runs(name)
            found = [*(self._not_seen(name) if runs else self._not_run(name)), *self._deeper(name)]
            if found and (runs or self._is_open(self._first)):
                yield from found

    def _not_seen(self, name: str) -> Iterator[Unseen]:
        """A later turn may read what no case does."""
        if self._node.op_type != "If" and name in self._inner:
            for fault in self._inner[name].outcome.faults:
                yield Unseen(f"`{fault.value}` differs in a body that makes `{self._first}`, and no case shows it")

    def _deeper(self, name: str) -> Iterator[Unseen]:
        if name in self._inner:
            return unseen(self._inner[name], self._is_open, scope=f"{self._scope} / {name}")
        return self._closed(name)

    def _not_run(self, name: str) -> Iterator[Unseen]:
        walk = self._inner.get(name)
        if walk is not None and walk.outcome.faults:
            if not all(w.outcome.faults for w in self._inner.values()) or len(self._inner) == 1:
                yield Unseen("", f"{self._scope} / {name}", walk, walk.outcome.faults)
        elif walk is None or walk.outcome.unsettled or dead_ends(walk):
            yield Unseen(self._why(name))

    def _why(self, name: str) -> str:
        if self._node.op_type == "If":
            return f"the {name.removesuffix('_branch')} branch on `{self._node.input[0]}` was never taken"
        return f"the body of the loop that makes `{self._first}` was never run"

    def _closed(self, name: str) -> Iterator[Unseen]:
        """What a body holds that could not be looked into."""
        functions = self._walk.a.skeleton.hiding
        for node in (n for n in inside(self._bodies[name].node) if may_hide(n, functions)):
            first = next((o for o in node.output if o), "")
            if self._is_open(first):
                yield Unseen(f"what of the {called(node)} that makes `{first}` was run is not known")

    def _runs(self, name: str) -> bool:
        """In any case? What is given is A's own, so that in a body it is what its first turn has."""
        kind, reads = self._node.op_type, [*self._node.input, "", ""]
        every = range(len(self._walk.original.values))
        if kind == "If":
            return any(_is(self._value(reads[0], k), name == "then_branch") for k in every)
        if kind != "Loop":
            return True
        return any(all(not r or _is(self._value(r, k), True) for r in reads[:2]) for k in every)

    def _value(self, name: str, case: int) -> Any:
        """None where it is not known any more."""
        a = self._walk.a
        return a.constant(name) if a.is_constant(name) else self._walk.original.values[case].get(name)


def _is(value: Any, wanted: bool) -> bool:
    return value is not None and bool(np.all(np.asarray(value) > 0)) is wanted


def called(node: NodeProto) -> str:
    """As paths of scopes write it."""
    return f'{node.op_type} "{node.name}"' if node.name else str(node.op_type)
