"""Settings and outcomes: plain records, passed between processes and written as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

COUNTED: Final = "counted"
EQUIVALENT: Final = "equivalent"
DEAD: Final = "does not run"
ACCUSED: Final = ("different", "loads without optimizations only")
UNVERIFIED: Final = ("unverified", "not verified")


@dataclass(frozen=True)
class Settings:
    """For each model, `mutants` that count, or as many as `seconds` allow.

    `factor`: the multiple of rounding noise from which a change counts; the noise is the largest of `noise_runs`.
    `timeout`: of the judge, in seconds.
    """

    mutants: int = 60
    seconds: float = 40.0
    seed: int = 0
    factor: float = 2.0
    noise_runs: int = 3
    timeout: float = 60.0


@dataclass
class Answer:
    """The verdict on a right rewrite. `times`: how many times the noise it is away from the original, where known."""

    model: str
    what: str
    status: str
    message: str
    seconds: float = 0.0
    times: float | None = None


@dataclass
class Mutant:
    """A result broken on purpose: where, how, what of it; and the verdict, if it counts.

    `change` is the largest difference that it makes, as a part of the output's range, `times` of the rounding noise;
    `hidden`: only inputs that verification does not use show it.
    `right`: does the verdict name the broken node, among how many (`named`)? None where it is not found, and for a
    judge that names none.
    """

    model: str
    level: int
    kind: str
    where: str
    op: str
    node: str
    what: str
    outcome: str = COUNTED
    change: float = 0.0
    times: float = 0.0
    hidden: bool = False
    status: str = ""
    message: str = ""
    right: bool | None = None
    named: int = 0

    @property
    def found(self) -> bool:
        return self.status in ACCUSED

    def judged(self, verdict: Any, outputs: set[str]) -> None:
        """Record a verdict; `outputs`: those of the broken node, and of the nodes around it."""
        self.status, self.message = verdict.status, verdict.message
        if self.found and hasattr(verdict, "places"):
            named = [node for place in verdict.places for node in place.b]
            self.named = len(named)
            self.right = any(not outputs.isdisjoint(node.outputs) for node in named)


@dataclass
class Said:
    """The reason why a model, or a part of its trials, is left out."""

    model: str
    why: str


Record = Answer | Mutant | Said
