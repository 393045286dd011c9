"""Plain records of a verification: what was compared, the verdict."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, field, replace
from typing import Any, Final

from onnxopt.record import record
from onnxopt.verification.options import AGREES, DIFFERENT, EQUAL, LOADS_PLAIN, PROVEN, REFUSED, UNLOADED

_GROSS: Final = 30.0  # times what rounding does in a piece


@record
class OutputRecord:
    """One output in one case. `max_rel` is the largest difference over the largest magnitude of the original. `uneven`:
    it is next to nothing beside that, and much beside what is near it (a row, a channel)."""

    name: str
    dtype: str
    shape: list[int]
    max_abs: float = 0.0
    max_rel: float = 0.0
    ok: bool = True
    note: str = ""
    uneven: bool = False


@record
class MeasuredRecord(OutputRecord):
    """An output with the figures that people ask for. None: not defined for its type, or its shapes differ.

    `cosine` of all elements; `ulp`, the most representable numbers between two elements; `nan` and `inf`, how many in
    each of the two; `rtol` and `atol`, what is allowed. `against`: which two, if not A and B.
    """

    cosine: float | None = None
    ulp: int | None = None
    nan: list[int] = field(default_factory=lambda: [0, 0])
    inf: list[int] = field(default_factory=lambda: [0, 0])
    rtol: float | None = None
    atol: float | None = None
    against: str = ""


@record
class CaseRecord:
    """One set of inputs: which sizes the dynamic dims had, and how each output compared."""

    name: str
    dims: dict[str, int]
    outputs: list[OutputRecord] = field(default_factory=list)


LEFT_OUT: Final = "not run: those before it took all of --timeout"  # a note of a case


@record
class JudgedCase(CaseRecord):
    """A case with a verdict of its own: equal, different, skipped (A refuses such inputs) or not verified; and why."""

    status: str = EQUAL
    note: str = ""


@record
class Side:
    """One node: its name, operator, what it reads and makes."""

    node: str
    op: str
    inputs: list[str]
    outputs: list[str] = field(default_factory=list)


@record
class Place:
    """Where result and original part: `a` and `b`, the nodes of each between the values `entries`, which agree, and
    `value`, which does not. `record`: how, and what rounding alone does there (`noise`, of the range). `beyond`: the
    narrower type does not hold the original's own numbers there."""

    case: str
    value: str
    record: OutputRecord
    entries: list[str] = field(default_factory=list)
    a: list[Side] = field(default_factory=list)
    b: list[Side] = field(default_factory=list)
    scope: str = "main"  # graph path, bodies as the project's Graph.path writes them
    rewrites: list[str] = field(default_factory=list)  # lines: what the journal says made them
    noise: float | None = None
    beyond: bool = False

    @property
    def is_gross(self) -> bool:
        """Is it no rounding any more, whatever the outputs may hide?"""
        return self.noise is None or self.record.max_rel > _GROSS * self.noise


AND: Final = ", and "  # between what was not seen and what speaks against it


@record
class Pieces:
    """What comparing in pieces found, in `cases`.

    `cuts` of the `shared` values agree: `same` of them because the same nodes make them, `noisy` no better than what
    the last bits do in their piece; `blank` are those that are zero or NaN everywhere. `largest` is the largest piece,
    in nodes; `worst_rel` the largest difference of a piece, of the range of `worst`. `dead`: outputs made of such that
    the two make otherwise. `note`: why there are none, or what stays open.
    """

    cases: list[str] = field(default_factory=list)
    cuts: int = 0
    shared: int = 0
    same: int = 0
    noisy: int = 0
    blank: int = 0
    largest: int = 0
    worst: str = ""
    worst_rel: float = 0.0
    complete: bool = False  # is every output a cut, or made of cuts?
    branches: list[str] = field(default_factory=list)  # conditions of which no case took both, and whose branches agree
    unseen: list[str] = field(default_factory=list)  # parts that no case ran and nothing else shows, in words
    shown: list[str] = field(default_factory=list)  # of these, what differs on other numbers, and no case settles
    silent: list[str] = field(default_factory=list)  # parts that are not seen, and on drawn numbers do not differ
    dead: list[str] = field(default_factory=list)
    seconds: float = 0.0
    note: str = ""

    @property
    def says_something(self) -> bool:
        """Are most cuts more than zeros?"""
        return 10 * self.blank <= self.cuts

    def joined(self, other: Pieces, *, proves: bool = True) -> Pieces:
        """Of both sets of cases: what is worse. What one of them sees is seen, if the other `proves` anything: what
        only was not drawn in one of them is not."""
        worse = max(self, other, key=lambda p: p.worst_rel)
        seen = other if proves else self
        shown = [*dict.fromkeys([*self.shown, *seen.shown])]
        unseen = [why for why in self._open_with(seen, self.unseen, seen.unseen) if why not in shown]
        dead = self._open_with(seen, self.dead, seen.dead)
        silent = self._open_with(seen, self.silent, seen.silent)
        return replace(
            worse,
            cases=self.cases + other.cases,
            cuts=min(self.cuts, other.cuts),
            same=min(self.same, other.same),
            noisy=max(self.noisy, other.noisy),
            blank=min(self.blank, other.blank),
            largest=max(self.largest, other.largest),
            complete=self.complete and other.complete,
            branches=[name for name in self.branches if name in seen.branches],
            unseen=[*unseen, *shown],
            shown=shown,
            silent=[part for part in silent if part not in {*map(_part, unseen), *dead}],
            dead=dead,
            seconds=self.seconds + other.seconds,
            note=self.note or other.note,
        )

    def _open_with(self, other: Pieces, mine: Collection[str], theirs: Collection[str]) -> list[str]:
        """Of the parts that either says this of, those that neither sees. Pieces that were not settled see nothing."""
        known = [{_part(said) for said in (*p.unseen, *p.dead, *p.silent)} for p in (self, other) if p.complete]
        return [said for said in dict.fromkeys([*mine, *theirs]) if all(_part(said) in open_ for open_ in known)]


def _part(said: str) -> str:
    """What it is that something is said of."""
    return said.partition(AND)[0]


@record
class Verification:
    """The verdict: `status` is one of those above, `message` one line.

    `exact`: bit for bit. `pieces` where they were looked at; `places`, those that differ. `noise`: what a change of the
    last bits of its inputs and weights does to an output of the original, of its range.
    """

    status: str
    message: str
    hint: str = ""
    exact: bool = False
    engine: str = "onnxruntime"
    cases: list[CaseRecord] = field(default_factory=list)
    worst: str = ""
    worst_rel: float = 0.0
    seconds: float = 0.0
    pieces: Pieces | None = None
    places: list[Place] = field(default_factory=list)
    noise: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Does the result compute the same, and is that shown? What is equal, verified, or verified in pieces."""
        return self.status in PROVEN

    @property
    def agrees(self) -> bool:
        """May the result take the place of the original?"""
        return self.status in AGREES

    @property
    def is_refused(self) -> bool:
        """May it not, as something is known to be wrong with it?"""
        return self.status in REFUSED

    @property
    def is_unloaded(self) -> bool:
        """Is it the result of which nothing else is known to be wrong but that it is not loaded?"""
        return self.status == LOADS_PLAIN or (
            self.status == DIFFERENT and not self.cases and self.message.partition(":")[0].endswith(UNLOADED)
        )

    @property
    def fault(self) -> str:
        """What the result does that is refused."""
        return "differs from the original" if self.status == DIFFERENT else self.status

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


@record
class Comparison(Verification):
    """The verdict of `onnxopt verify`, whose cases are `JudgedCase`s."""

    a: str = ""
    b: str = ""
    provider: str = "CPUExecutionProvider"

    @property
    def judged(self) -> list[JudgedCase]:
        return [c for c in self.cases if isinstance(c, JudgedCase)]
