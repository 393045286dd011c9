"""What a walk found: of each candidate, of those to blame, and of the whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxopt.verification.numbers.rounding import Difference
from onnxopt.verification.pieces.views import View


@dataclass
class First:
    """What came of a candidate when others were taken for cuts, all of them or but those in doubt: `entries`, what its
    piece read, and how B was fed it (None: as A has it). `moves`: the piece computes nothing, or its only node is the
    same in both, and so it would agree whatever it reads."""

    ok: bool
    entries: dict[str, View | None]
    found: Difference = Difference()
    moves: bool = False


@dataclass
class Fault:
    """A value of B that does not agree although all that its piece reads, `entries`, does. `a` and `b`: nodes.
    `shape`: of A's value in the case. `beyond`: the narrower type does not hold A's own numbers, whoever makes them."""

    value: str
    found: Difference
    case: int
    entries: list[str]
    a: list[int]
    b: list[int]
    shape: tuple[int, ...] = ()
    beyond: bool = False


@dataclass
class Outcome:
    """`cuts` of `candidates` agree: `same`, because their nodes are the same; `noisy`, no better than what the last
    bits do in their piece; `blank`, zero or NaN everywhere. `worst`, of the cuts that were compared. `unsettled`:
    outputs that are no cuts."""

    candidates: int = 0
    cuts: int = 0
    same: int = 0
    noisy: int = 0
    blank: int = 0
    largest_piece: int = 1
    worst: Difference = Difference()
    worst_value: str = ""
    faults: list[Fault] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)
