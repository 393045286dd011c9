"""`python -m tests.rules [RULE…]`: many instances of each rule, and a table of what they showed."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.rules.apart import Apart, Died, note
from tests.rules.instances import Instance, draw, is_reached, makes_constants, options, rules, seeds, subject
from tests.rules.judging import Outcome, examine
from tests.rules.regions import WITH_ELEMENTS

SHOWN: Final = 3  # faults of one rule


@dataclass
class Row:
    """What one rule's instances showed."""

    rule: str
    drawn: int = 0
    fired: int = 0
    seconds: float = 0.0
    by_cases: bool = False  # none of a few draws of the pattern fires: all begin with a case
    limits: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[int, str, str]] = field(default_factory=list)  # of which number, of what kind, in words
    examples: dict[str, tuple[int, str]] = field(default_factory=dict)  # of limits

    def __str__(self) -> str:
        said = " ".join(f"{k}={n}" for k, n in sorted(self.limits.items()))
        kinds = Counter(kind for _, kind, _ in self.faults)
        bad = " ".join(f"{k}={n}" for k, n in sorted(kinds.items()))
        return f"{self.rule:32} {self.drawn:6} {self.fired:6} {self.seconds:8.1f}  {bad or '-':24} {said}"


HEAD: Final = f"{'rule':32} {'drawn':>6} {'fired':>6} {'seconds':>8}  {'faults':24} near limits"


def attempt(rule: str, number: int, empty: bool = True) -> tuple[Instance | None, Outcome]:
    """Draw an instance, and examine it; `empty`: also on inputs without elements."""
    note("original")  # who dies while it draws, dies of what a runtime does with an original
    instance = draw(rule, number)
    note("pass")
    if instance is None:
        return None, Outcome()
    outcome = judged(instance, number, empty)
    if not outcome.fault and makes_constants(instance.model):  # which fold, or are known as they are
        other = dataclasses.replace(instance, folded=not instance.folded)
        found = judged(other, number, empty)
        if found.fault:
            return other, found
    return instance, outcome


def judged(instance: Instance, seed: int, empty: bool = True) -> Outcome:
    """What the judge says of it."""
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
    apart: Apart, rule: str, fired: int, seconds: float, first: int = 0
) -> Iterator[tuple[int, Instance | None, Outcome]]:
    """(number, instance, outcome) of each draw, until so many have fired, or the time is over."""
    end, count, number = time.monotonic() + seconds, 0, first
    while count < fired and number - first < 4 * fired and time.monotonic() < end:
        instance, outcome = _apart(apart, rule, number)
        count += outcome.fired > 0 and not outcome.left_out
        yield number, instance, outcome
        number += 1


def _apart(apart: Apart, rule: str, number: int, empty: bool = True) -> tuple[Instance | None, Outcome]:
    try:
        return apart.call(_attempt, rule, number, empty)
    except Died as e:
        if e.stage != "original":
            return None, Outcome(1, f"crash: {e}", "crash")
        return _apart(apart, rule, number, False) if empty else (None, Outcome(left_out=str(e)))


def _attempt(rule: str, number: int, empty: bool) -> tuple[Instance | None, Outcome]:
    instance, outcome = attempt(rule, number, empty)
    return (instance if outcome.fault or outcome.limits else None), outcome


def campaign(apart: Apart, rule: str, fired: int, seconds: float, first: int = 0) -> Row:
    apart.call(seeds, rule)  # which takes its time once
    row, began = Row(rule, by_cases=rule in rules() and not apart.call(is_reached, rule)), time.monotonic()
    for number, _, outcome in attempts(apart, rule, fired, seconds, first):
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
