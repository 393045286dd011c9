"""Verification in pieces: B is run between values that it shares with A, on A's own values, and held against A there.

A value that nodes of both make under one name is a candidate. What B makes of A's values agrees with A's, up to what
rounding does in one piece: the candidate is a *cut*, and what follows starts from A's value there. By induction over
the cuts B computes what A computes; nothing is amplified through the depth of the network, and what decides (TopK, a
comparison, a quantizer) is fed the very same numbers in both. A value that does not agree (a scale moved into weights)
is no cut, and the piece grows beyond it.

Where a node of both is the same and reads cuts only, what it makes agrees without a run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from onnxopt.verification.pieces.program import Program
from onnxopt.verification.pieces.runner import Failed, Runner
from onnxopt.verification.pieces.stream import NODES, Stream, segments
from onnxopt.verification.pieces.views import View, views
from onnxopt.verification.plan import RANDOM
from onnxopt.verification.rounding import (
    EPSILON,
    SEEDS,
    Difference,
    allowed,
    difference,
    last_bit,
    roundings,
    worst,
)

_OPEN: Final = 20 * NODES  # nodes of B behind values that do not agree, before somebody is blamed
_FAULTS: Final = 8  # looked for
_PIECE: Final = 2000  # nodes of a piece that are counted


@dataclass
class First:
    """What came of a candidate when every other was taken for a cut: `entries`, what its piece read. `moves`: the
    piece computes nothing, or its only node is the same in both, and so it would agree whatever it reads."""

    ok: bool
    entries: frozenset[str]
    found: Difference = Difference()
    moves: bool = False


@dataclass
class Fault:
    """A value of B that does not agree although all that its piece reads, `entries`, does. `a` and `b`: nodes."""

    value: str
    found: Difference
    case: int
    entries: list[str]
    a: list[int]
    b: list[int]


@dataclass
class Outcome:
    """`cuts` of `candidates` agree: `same`, because their nodes are the same; `noisy`, no better than what the last
    bits do in their piece. `worst`, of the cuts that were compared. `unsettled`: outputs that are no cuts."""

    candidates: int = 0
    cuts: int = 0
    same: int = 0
    noisy: list[str] = field(default_factory=list)
    blank: int = 0
    largest_piece: int = 1
    worst: Difference = Difference()
    worst_value: str = ""
    faults: list[Fault] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)


class Walk:
    """Holds B against A on `cases`, which map the names of what both are given to values."""

    def __init__(
        self,
        a: Runner,
        b: Runner,
        cases: Sequence[Mapping[str, Any]],
        given: Mapping[str, str],
        *,
        memory: int = 2 << 30,
        seed: int = 0,
    ) -> None:
        """`given`: the types of what is fed, as onnxruntime writes them. `memory`: bytes for weights and values."""
        self.a, self.b = a, b
        self.memory = memory
        self.seed = seed
        self.stream = Stream(a, cases, given)
        self.values, self.types = self.stream.values, self.stream.types
        self.cuts: set[str] = set(given)
        self.fed: set[str] = set(given)  # those that pieces start from
        self.views: dict[str, View] = {}
        self.first: dict[str, First] = {}
        self.latest: dict[str, list[Difference]] = {}  # by value, from cuts alone: of each case
        self.pending: list[str] = []
        self.outcome = Outcome()
        self._equal: dict[str, bool] = {}
        self._heard: set[str] = set()

    def run(self) -> Outcome:
        """Raises Failed where A fails."""
        a, b = self.a.program, self.b.program
        for nodes in segments(a, self.memory // 4):
            made = [o for i in nodes for o in a.nodes[i].output if o]
            self.stream.run(self.stream.open(nodes, made))
            new = [v for v in made if v in b.maker]
            self.outcome.candidates += len(new)
            last = nodes[-1] + 1 == len(a.nodes)
            self._settle(new, last)
            if not last:
                self._forget(nodes[-1])
        self._outputs()
        return self.outcome

    def _forget(self, last: int) -> None:
        """Let go of values that neither is going to read, should they take more than their share of memory."""
        if self.stream.size() < self.memory // 2:
            return
        a, b = self.a.program, self.b.program
        needed = {r for reads in a.reads[last + 1 :] for r in reads} | set(self.pending) | set(a.outputs)
        needed.update(b.entries(b.cone((v for v in b.maker if v not in self.cuts), self.fed), self.fed))
        self.stream.keep(needed)

    # -- cuts --------------------------------------------------------------------------------------------

    def _settle(self, new: Sequence[str], last: bool) -> None:
        """Find out which candidates are cuts; where that ends, who is to blame, and go on behind."""
        b = self.b.program
        self.pending = sorted({*self.pending, *new}, key=b.maker.__getitem__)
        for value in new:
            i = b.maker[value]
            if self._is_same(value, i):
                self.first[value] = First(True, frozenset(r for r in b.reads[i] if not b.is_constant(r)), moves=True)
        self.outcome.same += self._resolve()
        self._assume_all()
        self._tighten()
        while blocked := self._blocked(last):
            if not self._hear(blocked) and not self._blame(blocked):
                break
            self._resolve()
            self._tighten()

    def _resolve(self) -> int:
        """Make cuts of what is pending, agreed, and read nothing but cuts; how many."""
        before = len(self.pending)
        rest = []
        for value in self.pending:
            seen = self.first.get(value)
            if seen is not None and seen.ok and seen.entries <= self.cuts:
                self._cut(value, seen.found)
            else:
                rest.append(value)
        self.pending = rest
        return before - len(rest)

    def _is_entry(self, value: str) -> bool:
        """Can pieces start from it?"""
        return feedable(self.types[value]) and value not in self.a.program.fixed and value not in self.b.program.fixed

    def _cut(self, value: str, found: Difference) -> None:
        self.cuts.add(value)
        run = value in self.latest or (value in self.first and not self.first[value].moves)
        self.outcome.blank += run and all(_is_blank(known[value]) for known in self.values)
        if self._is_entry(value):
            self.fed.add(value)
        self.outcome.cuts += 1
        if found.relative > self.outcome.worst.relative:
            self.outcome.worst, self.outcome.worst_value = found, value

    def _assume_all(self) -> None:
        """Run all pieces as if every candidate were a cut: most are, and then each piece is as small as it can be."""
        new = [v for v in self.pending if v not in self.first]
        fed = self.fed | {v for v in self.pending if self._is_entry(v)}
        found = self._observe(new, fed) if new else None
        if found is None:  # something in B has another shape: from cuts alone, which says what
            return
        b, paths = self.b.program, self._paths(new, fed)
        for value in new:
            entries = b.entries(b.cone([value], fed), fed)
            ok, differences = self._hold(value, found[value], paths[value])
            self.first[value] = First(ok, frozenset(entries), worst(differences), not paths[value][0])
        self._resolve()

    def _tighten(self) -> None:
        """Run what is pending from cuts alone, as long as that makes new ones."""
        progress = 1
        while self.pending and progress:
            found = self._observe_each(self.pending, self.fed)
            paths = self._paths(self.pending, self.fed)
            agreed = []
            for value in self.pending:
                ok, self.latest[value] = self._hold(value, found[value], paths[value])
                if ok:
                    agreed.append(value)
            for value in agreed:
                piece = self.b.program.cone([value], self.fed, _PIECE)
                self.outcome.largest_piece = max(self.outcome.largest_piece, len(piece))
            for value in agreed:
                self._cut(value, worst(self.latest[value]))
            self.pending = [v for v in self.pending if v not in self.cuts]
            progress = len(agreed) + self._resolve()

    def _hold(self, value: str, found: list[Any] | Failed, path: tuple[float, float]) -> tuple[bool, list[Difference]]:
        """Do B's values agree with A's in every case, as they are or through a view; and how they differ."""
        if isinstance(found, Failed):
            return False, [Difference(note=f"B fails: {found}")]
        mine = [known[value] for known in self.values]
        share = allowed(path[1], path[0])
        differences = [difference(x, y) for x, y in zip(mine, found, strict=True)]
        if all(d.within(share) for d in differences):
            return True, differences
        for view in views(mine, found) if value not in self.a.program.outputs else ():
            held = [difference(view(x, i), y) for i, (x, y) in enumerate(zip(mine, found))]
            if all(d.within(share) for d in held):
                self.views[value] = view
                return True, held
        return False, differences

    # -- who is to blame ---------------------------------------------------------------------------------

    def _blocked(self, last: bool) -> list[str]:
        """What is pending and in the way of what is still to be decided: an output, or read by what agrees but for it.

        A piece that only moves numbers agrees whatever it reads, and says what its own readers do. Before the last
        segment nobody is in the way yet, unless too much has come together behind it.
        """
        pending = set(self.pending)
        found = {v for v in self.a.program.outputs if v in pending} if last else set()
        for value in reversed(self.pending):
            seen = self.first.get(value)
            if seen is not None and seen.ok and (not seen.moves or value in found):
                found.update(v for v in seen.entries if v in pending)
        if not found:
            return []
        b = self.b.program
        open_ = self.a.program.outputs if last else [v for v in b.maker if v not in self.values[0]]
        nodes = b.cone((v for v in open_ if v not in self.fed), self.fed)
        if not last and sum(i <= b.maker[self.pending[-1]] for i in nodes) < _OPEN:
            return []
        open_nodes = set(nodes)
        return [v for v in self.pending if v in found and b.maker[v] in open_nodes]

    def _hear(self, blocked: Sequence[str]) -> bool:
        """Are any differences what the last bits of A do in the same piece? Those are cuts, too."""
        new = [v for v in blocked if v not in self._heard and not any(d.note for d in self.latest.get(v, ()))]
        self._heard.update(new)
        noise = self.noise(new)
        found = [
            v
            for v in new
            if v in noise and v in self.latest and all(d.explained(n) for d, n in zip(self.latest[v], noise[v]))
        ]
        for value in found:
            self._cut(value, worst(self.latest[value]))
            self.outcome.noisy.append(value)
        self.pending = [v for v in self.pending if v not in self.cuts]
        return bool(found)

    def noise(self, wanted: Sequence[str]) -> dict[str, list[Difference]]:
        """How A's values change, in each case, with the last bits of what their pieces read, not with what is drawn."""
        a = self.a.program
        here = {v for v in self.fed if all(v in known for known in self.values)}
        wanted = [v for v in wanted if not any(a.nodes[i].op_type in RANDOM for i in a.cone([v], here))]
        nodes = a.cone(wanted, here)
        if not nodes or any(r not in here for r in a.entries(nodes, here)):
            return {}
        fed = {r: self.types[r] for i in nodes for r in a.reads[i] if r in here}
        largest: dict[str, list[Difference]] = {v: [Difference() for _ in self.values] for v in wanted}
        for k in range(SEEDS):
            rng = np.random.default_rng([self.seed, k])
            try:
                if not k % 2:  # weights change every other time: it takes a new session
                    opened = self.a.open(nodes, fed, wanted, functools.partial(last_bit, rng=rng))
                for i, known in enumerate(self.values):
                    results = opened.run({r: last_bit(known[r], rng) for r in fed})
                    for v in wanted:
                        largest[v][i] = worst([largest[v][i], difference(known[v], results[v])])
            except Failed:  # the model does not take what is a bit larger: of that noise nothing is known
                continue
        return largest

    def _blame(self, blocked: Sequence[str]) -> bool:
        """Put the first that is in the way down as a fault, and go on behind it with A's value."""
        if len(self.outcome.faults) >= _FAULTS:
            return False
        value = blocked[0]
        a, b = self.a.program, self.b.program
        differences = self.latest.get(value) or [Difference(note="it was not computed")]
        found = worst(differences)
        nodes = b.cone([value], self.fed)
        fault = Fault(
            value, found, differences.index(found) if len(differences) == len(self.values) else 0, [], [], nodes
        )
        fault.entries = b.entries(nodes, self.fed)
        fault.a = a.cone([value], self.fed)
        self.outcome.faults.append(fault)
        self.cuts.add(value)
        self.fed.add(value)
        self.pending.remove(value)
        return True

    def _outputs(self) -> None:
        a, b = self.a.program, self.b.program
        for name in a.outputs:
            if name in self.cuts:
                continue
            if name not in b.maker and name in b.constants and all(name in known for known in self.values):
                found = worst([difference(known[name], b.constant(name)) for known in self.values])
            elif name not in a.maker and name in a.constants and name in b.constants:
                found = difference(a.constant(name), b.constant(name))
            else:
                found = Difference(note="it is made otherwise")
            if not found.within(allowed(EPSILON["float32"], 1)):
                self.outcome.unsettled.append(name)

    # -- B -----------------------------------------------------------------------------------------------

    def _observe(self, wanted: Sequence[str], fed: set[str]) -> dict[str, list[Any]] | None:
        """What B makes of A's values of `fed`, by case; None where it fails."""
        try:
            return self._run(wanted, fed)
        except Failed:
            return None

    def _observe_each(self, wanted: Sequence[str], fed: set[str]) -> dict[str, list[Any] | Failed]:
        """The same; an exception for what cannot be had."""
        try:
            return dict(self._run(wanted, fed))
        except Failed as e:
            if len(wanted) == 1:
                return {wanted[0]: e}
        half = len(wanted) // 2
        return self._observe_each(wanted[:half], fed) | self._observe_each(wanted[half:], fed)

    def _run(self, wanted: Sequence[str], fed: set[str]) -> dict[str, list[Any]]:
        b = self.b.program
        nodes = b.cone(wanted, fed)
        types = {r: self.types[r] for i in nodes for r in b.reads[i] if r in fed}
        opened = self.b.open(nodes, types, wanted)
        found: dict[str, list[Any]] = {v: [] for v in wanted}
        for i, known in enumerate(self.values):
            feeds = {r: self.views[r](known[r], i) if r in self.views else known[r] for r in types}
            for name, value in opened.run(feeds).items():
                found[name].append(value)
        return found

    def _paths(self, wanted: Iterable[str], fed: set[str]) -> dict[str, tuple[float, float]]:
        """(roundings on the longest path from what is fed, ε of the coarsest type on the way) by value."""
        b = self.b.program
        found: dict[str, tuple[float, float]] = {}
        names = list(wanted)
        for i in b.cone(names, fed):
            before = [self._start(r) if r in fed or r not in found else found[r] for r in b.reads[i]]
            depth = max((d for d, _ in before), default=0.0) + roundings(b.nodes[i], b.constants)
            for output in b.nodes[i].output:
                own = EPSILON.get(_DTYPE.get(self.types.get(output, ""), ""), 0.0)
                found[output] = depth, max([own, *(e for _, e in before)])
        return {v: found.get(v, (0.0, 0.0)) for v in names}

    def _start(self, name: str) -> tuple[float, float]:
        b = self.b.program
        if name in b.constants and name not in self.types:
            return 0.0, _EPSILON_OF_CODE.get(b.constants[name].data_type, 0.0)
        return 0.0, EPSILON.get(_DTYPE.get(self.types.get(name, ""), ""), 0.0)

    # -- the same node -----------------------------------------------------------------------------------

    def _is_same(self, value: str, i: int) -> bool:
        """Do both make it by the same node, of values of the same names and equal constants?"""
        a, b = self.a.program, self.b.program
        j = a.maker[value]
        x, y = a.nodes[j], b.nodes[i]
        if x.op_type != y.op_type or x.domain != y.domain or x.input[:] != y.input[:] or x.output[:] != y.output[:]:
            return False
        if a.reads[j] != b.reads[i] or _attributes(x) != _attributes(y):
            return False
        return all(self._is_equal(name) for name in b.reads[i])

    def _is_equal(self, name: str) -> bool:
        """Is it a value of both, or the same constant in both?"""
        a, b = self.a.program, self.b.program
        constant = a.is_constant(name)
        if constant != b.is_constant(name):
            return False
        if not constant:
            return (name in a.maker) == (name in b.maker)
        if name not in self._equal:
            self._equal[name] = name in a.constants and name in b.constants and _same_tensor(a, b, name)
        return self._equal[name]


_DTYPE: Final = {
    "tensor(double)": "float64", "tensor(float)": "float32", "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16", "tensor(float8e4m3fn)": "float8_e4m3fn", "tensor(float8e5m2)": "float8_e5m2",
    "tensor(float8e4m3fnuz)": "float8_e4m3fnuz", "tensor(float8e5m2fnuz)": "float8_e5m2fnuz",
}  # fmt: skip
_EPSILON_OF_CODE: Final = {1: 2.0**-23, 10: 2.0**-10, 11: 2.0**-52, 16: 2.0**-7}  # of TensorProto.data_type


def feedable(kind: str) -> bool:
    """Can a value of this type be an input of a piece?"""
    return kind.startswith(("tensor(", "seq(tensor("))


def _is_blank(value: Any) -> bool:
    """Does it say nothing: zero or NaN everywhere?"""
    return (
        isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.nan_to_num(value, posinf=1, neginf=1).any()
    )


def _attributes(node: Any) -> list[bytes]:
    return sorted(a.SerializeToString(deterministic=True) for a in node.attribute)


def _same_tensor(a: Program, b: Program, name: str) -> bool:
    x, y = a.constants[name], b.constants[name]
    if x.data_type != y.data_type or x.dims[:] != y.dims[:]:
        return False
    if a.skeleton.stored.get(name) is not None and a.skeleton.stored.get(name) == b.skeleton.stored.get(name):
        return True
    if x.data_type == x.STRING:
        return bool(x == y)
    return bool(np.array_equal(_bytes(a, name), _bytes(b, name)))


def _bytes(program: Program, name: str) -> Any:
    where = program.skeleton.stored.get(name)
    if where is not None:
        return where.bytes()
    return np.ascontiguousarray(program.constant(name)).reshape(-1).view(np.uint8)
