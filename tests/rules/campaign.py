"""`python -m tests.rules [RULE…]`: many instances of each rule, and a table of outcomes."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tests.rules.apart import Apart, Died, note
from tests.rules.instances import Instance, makes_constants, options, rules, seeds, subject, unreached, walk
from tests.rules.judging import Outcome, examine
from tests.rules.regions import WITH_ELEMENTS

SHOWN: Final = 3  # faults of one rule
BETWEEN: Final = 2  # instances on the way to a draw, which cost less than another draw
Attempt: TypeAlias = "tuple[str, Instance | None, Outcome]"  # of which draw, or which step of the walk to it


@dataclass
class Row:
    """Outcomes of the instances of a rule."""

    rule: str
    drawn: int = 0
    fired: int = 0
    seconds: float = 0.0
    by_cases: str = ""  # why all instances begin with a case: why no draw of the pattern is one
    limits: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, str, str]] = field(default_factory=list)  # of which number, of what kind, in words
    examples: dict[str, tuple[str, str]] = field(default_factory=dict)  # of limits

    def __str__(self) -> str:
        said = " ".join(f"{k}={n}" for k, n in sorted(self.limits.items()))
        kinds = Counter(kind for _, kind, _ in self.faults)
        bad = " ".join(f"{k}={n}" for k, n in sorted(kinds.items()))
        return f"{self.rule:32} {self.drawn:6} {self.fired:6} {self.seconds:8.1f}  {bad or '-':24} {said}"


HEAD: Final = f"{'rule':32} {'drawn':>6} {'fired':>6} {'seconds':>8}  {'faults':24} near limits"


def attempt(rule: str, number: int, empty: bool = True, between: int = 0) -> list[Attempt]:
    """Draw and examine an instance, and up to `between` instances on the walk to it.

    `empty`: also on inputs without elements.
    """
    note("original")  # who dies while it draws, dies of what a runtime does with an original
    found = walk(rule, number)
    note("pass")
    steps = range(max(1, len(found) - 1 - between), len(found) - 1)
    passed = [(f"{number}.{i}", *_examined(found[i], number, empty)) for i in steps]
    last = _examined(found[-1], number, empty) if found else (None, Outcome())
    return [*passed, (str(number), *last)]


def _examined(instance: Instance, number: int, empty: bool) -> tuple[Instance, Outcome]:
    """Returns the outcome of an instance, and with folded or unfolded constants the outcome of the other form."""
    outcome = judged(instance, number, empty)
    if not outcome.fault and makes_constants(instance.model):  # which fold, or are known as they are
        other = dataclasses.replace(instance, folded=not instance.folded)
        found = judged(other, number, empty)
        if found.fault:
            return other, found
    return instance, outcome


def judged(instance: Instance, seed: int, empty: bool = True) -> Outcome:
    """Returns the judge's outcome of an instance."""
    return examine(instance.model, *subject(instance.rule), note=note, **how(instance, seed, empty))


def how(instance: Instance, seed: int, empty: bool = True) -> dict[str, Any]:
    return {
        "seed": seed,
        "ranges": instance.ranges,
        "folded": instance.folded,
        "before": instance.before,
        "options": options(instance.rule),
        "empty": empty and instance.rule not in WITH_ELEMENTS,
    }


def attempts(
    apart: Apart, rule: str, fired: int, seconds: float, first: int = 0, between: int = 0
) -> Iterator[Attempt]:
    """Yields the outcomes of draws, each with up to `between` steps of its walk, until enough fired or time is over."""
    end, count, number = time.monotonic() + seconds, 0, first
    while count < fired and number - first < 4 * fired and time.monotonic() < end:
        for place, instance, outcome in _apart(apart, rule, number, True, between):
            count += outcome.fired > 0 and not outcome.left_out
            yield place, instance, outcome
        number += 1


def _apart(apart: Apart, rule: str, number: int, empty: bool, between: int) -> list[Attempt]:
    try:
        return apart.call(_attempt, rule, number, empty, between)
    except Died as e:
        if between:
            return _apart(apart, rule, number, empty, 0)
        if e.stage != "original":
            return [(str(number), None, Outcome(1, f"crash: {e}", "crash"))]
        return _apart(apart, rule, number, False, 0) if empty else [(str(number), None, Outcome(left_out=str(e)))]


def _attempt(rule: str, number: int, empty: bool, between: int) -> list[Attempt]:
    """Returns the outcomes, with models only for those of interest."""
    found = attempt(rule, number, empty, between)
    return [(place, instance if o.fault or o.limits else None, o) for place, instance, o in found]


def campaign(apart: Apart, rule: str, fired: int, seconds: float, first: int = 0) -> Row:
    apart.call(seeds, rule)  # which takes its time once
    row, began = Row(rule, by_cases=apart.call(unreached, rule) if rule in rules() else ""), time.monotonic()
    for number, _, outcome in attempts(apart, rule, fired, seconds, first, BETWEEN):
        row.drawn += 1
        if outcome.left_out:
            row.left_out[outcome.left_out[:60]] += 1
        else:
            row.fired += outcome.fired > 0
        for kind, text in outcome.limits.items():
            row.limits[kind] += 1
            row.examples.setdefault(kind, (number, text))
        if outcome.fault:
            row.faults.append((number, outcome.kind, outcome.fault))
    row.seconds = time.monotonic() - began
    return row
