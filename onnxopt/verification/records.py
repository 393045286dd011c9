"""Plain records of a verification: compared outputs, pieces, verdict."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from onnxopt.verification import AGREES, DIFFERENT, EQUAL, LOADS_PLAIN, PROVEN, REFUSED, UNLOADED

_GROSS: Final = 30.0  # times the rounding noise of a piece


@dataclass(eq=False)
class OutputRecord:
    """Comparison of an output in a case."""

    name: str
    dtype: str
    shape: list[int]
    max_abs: float = 0.0  # largest difference
    max_rel: float = 0.0  # divided by the largest magnitude in the original; of discrete values, the share that differs
    ok: bool = True
    note: str = ""
    uneven: bool = False  # negligible for the whole, but large within its row or channel


@dataclass(eq=False)
class MeasuredRecord(OutputRecord):
    """Comparison of an output, with figures. None: undefined for the type, or shapes differ."""

    cosine: float | None = None  # similarity of all elements
    ulp: int | None = None  # largest distance, in representable numbers
    nan: list[int] = field(default_factory=lambda: [0, 0])  # count in each of the two
    inf: list[int] = field(default_factory=lambda: [0, 0])  # count in each of the two
    rtol: float | None = None  # tolerance
    atol: float | None = None  # tolerance
    against: str = ""  # the compared pair, if not A and B


@dataclass(eq=False)
class CaseRecord:
    """A set of inputs, its compared outputs, and its status: equal, different, skipped (by A) or not verified."""

    name: str
    dims: dict[str, int]  # sizes of the dynamic dims
    outputs: list[OutputRecord] = field(default_factory=list)
    status: str = EQUAL
    note: str = ""  # reason for the status

    def copied(self) -> CaseRecord:
        """Return a copy with outputs of its own."""
        return replace(self, outputs=[*map(replace, self.outputs)])


class Evidence(NamedTuple):
    """Summary of an output for judging the cases, a few bytes in size, as outputs are not kept."""

    said: str  # why the output proves nothing, or ""
    is_uniform: bool = False  # a single number everywhere
    digest: tuple[int, ...] | None = None  # of shape and elements; None with NaN


LEFT_OUT: Final = "not run: those before it took all of --timeout"  # note of a case


@dataclass(eq=False)
class Side:
    """A node in a place."""

    node: str  # name
    op: str  # operator
    inputs: list[str]
    outputs: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Place:
    """A fault: nodes between agreeing values (`entries`) and a differing value (`value`)."""

    case: str
    value: str
    record: OutputRecord  # difference of `value`
    entries: list[str] = field(default_factory=list)
    a: list[Side] = field(default_factory=list)  # nodes of the original
    b: list[Side] = field(default_factory=list)  # nodes of the result
    scope: str = "main"  # graph path, written as by `Graph.path`
    rewrites: list[str] = field(default_factory=list)  # lines of the journal: rewrites that made the nodes
    noise: float | None = None  # change by rounding alone, relative to the range
    beyond: bool = False  # the narrower type cannot hold the original's values

    @property
    def is_gross(self) -> bool:
        """Whether the difference is too large for rounding, even if outputs hide the fault."""
        return self.noise is None or self.record.max_rel > _GROSS * self.noise


AND: Final = ", and "  # between an uncovered part and the evidence against the part


@dataclass(eq=False)
class Pieces:
    """Result of comparing in pieces."""

    cases: list[str] = field(default_factory=list)  # names
    cuts: int = 0  # agreeing shared values (cutpoints)
    shared: int = 0  # values present in both models
    same: int = 0  # cutpoints computed by equal nodes
    noisy: int = 0  # cutpoints that agree only within the noise of last bits
    blank: int = 0  # cutpoints zero or NaN everywhere
    largest: int = 0  # piece, in nodes
    worst: str = ""  # value with the largest difference of a piece
    worst_rel: float = 0.0  # relative to its range
    complete: bool = False  # every output is a cutpoint, or computed from cutpoints
    untaken: dict[str, str] = field(default_factory=dict)  # {branch that no case takes, in words: its condition}
    branches: list[str] = field(default_factory=list)  # conditions with a single branch taken, and equal branches
    unseen: list[str] = field(default_factory=list)  # coverage gaps, in words
    shown: list[str] = field(default_factory=list)  # gaps that differ in a probe
    silent: list[str] = field(default_factory=list)  # gaps that agree in probes
    dead: list[str] = field(default_factory=list)  # outputs computed differently from blank values
    seconds: float = 0.0
    note: str = ""  # why no pieces exist, or remain open

    @property
    def says_something(self) -> bool:
        """Whether at least nine in ten cutpoints are not blank."""
        return 10 * self.blank <= self.cuts

    def joined(self, other: Pieces, *, proves: bool = True) -> Pieces:
        """Return the pieces of two sets of cases: the worse figures, and gaps open in both.

        proves: coverage of `other` counts.
        """
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
            untaken={why: name for why, name in self.untaken.items() if why in seen.untaken},
            unseen=[*unseen, *shown],
            shown=shown,
            silent=[part for part in silent if part not in {*map(_part, unseen), *dead}],
            dead=dead,
            seconds=self.seconds + other.seconds,
            note=self.note or other.note,
        )

    def _open_with(self, other: Pieces, mine: Collection[str], theirs: Collection[str]) -> list[str]:
        """Return the statements about parts covered by neither. Incomplete pieces cover nothing."""
        known = [{_part(said) for said in (*p.unseen, *p.dead, *p.silent)} for p in (self, other) if p.complete]
        return [said for said in dict.fromkeys([*mine, *theirs]) if all(_part(said) in open_ for open_ in known)]


def _part(said: str) -> str:
    """Return the part named in a statement about a coverage gap."""
    return said.partition(AND)[0]


@dataclass(eq=False)
class Verification:
    """The verdict on a result.

    `status` is a verdict word, `message` its explanation in one line, `hint` an advice. `exact`: all outputs are equal
    bit for bit. `cases`: the compared outputs, by case. `worst`: the output with the largest difference, `worst_rel`,
    relative to its range. `pieces`: the comparison in pieces, None if not needed. `places`: the faults. `noise`: by
    output, the change of the original by last bits of inputs and weights, relative to the range. `reasons`: why the
    cases prove little, if inconclusive; the message names the first of them.
    """

    status: str
    message: str
    hint: str = ""
    exact: bool = False
    engine: str = "onnxruntime"
    cases: list[CaseRecord] = field(default_factory=list, repr=False)
    worst: str = ""
    worst_rel: float = 0.0
    seconds: float = 0.0
    pieces: Pieces | None = field(default=None, repr=False)
    places: list[Place] = field(default_factory=list, repr=False)
    noise: dict[str, float] = field(default_factory=dict, repr=False)
    reasons: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the result is proven: equal, verified, or verified in pieces."""
        return self.status in PROVEN

    @property
    def compared(self) -> list[CaseRecord]:
        """The cases with outputs."""
        return [c for c in self.cases if c.outputs]

    @property
    def outputs(self) -> list[OutputRecord]:
        """The outputs of all cases."""
        return [o for c in self.cases for o in c.outputs]

    @property
    def agrees(self) -> bool:
        """Whether the result may replace the original."""
        return self.status in AGREES

    @property
    def is_refused(self) -> bool:
        """Whether the result is known to be wrong."""
        return self.status in REFUSED

    @property
    def is_unloaded(self) -> bool:
        """Whether the only known fault is that the runtime does not load the result."""
        is_said = self.message.partition(":")[0].endswith(UNLOADED)
        return self.status == LOADS_PLAIN or (self.status == DIFFERENT and not self.cases and is_said)

    @property
    def fault(self) -> str:
        """The reason for a refusal, in words."""
        return "differs from the original" if self.status == DIFFERENT else self.status

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


@dataclass(eq=False)
class Comparison(Verification):
    """The verdict of `onnxopt verify`."""

    a: str = ""
    b: str = ""
    provider: str = "CPUExecutionProvider"
