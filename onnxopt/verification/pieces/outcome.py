"""Results of a walk: by candidate, by fault, and in total."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxopt.verification.numbers.rounding import Difference
from onnxopt.verification.pieces.views import View


@dataclass
class First:
    """Result of a candidate, run with all candidates, except doubtful candidates, assumed to be cutpoints."""

    ok: bool  # whether the candidate agrees
    # Values read by its piece, with the view through which B was fed (None: A's layout).
    entries: dict[str, View | None]
    found: Difference = Difference()
    moves: bool = False  # the piece only moves numbers, or is a node equal in both: agrees for any operands


@dataclass
class Fault:
    """A value of B that differs although all entries of its piece agree."""

    value: str
    found: Difference
    case: int  # index
    entries: list[str]  # cutpoints read by the piece
    a: list[int]  # indices of A's nodes
    b: list[int]  # indices of B's nodes
    shape: tuple[int, ...] = ()  # of A's value in the case
    beyond: bool = False  # the narrower type cannot hold A's numbers


@dataclass
class Outcome:
    """Result of a walk."""

    candidates: int = 0  # number of shared values
    cuts: int = 0  # candidates that agree
    same: int = 0  # cutpoints computed by equal nodes
    noisy: int = 0  # cutpoints that agree only within noise of last bits
    blank: int = 0  # cutpoints zero or NaN everywhere
    largest_piece: int = 1
    worst: Difference = Difference()  # largest difference of a compared cutpoint
    worst_value: str = ""
    faults: list[Fault] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)  # outputs that are no cutpoints
