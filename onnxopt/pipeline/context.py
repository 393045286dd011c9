"""What a run of passes shares: level, fuel, and the ledger passes write into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxopt.pipeline.records import RuleReport
from onnxopt.rewrite import Fuel, RuleRecord


@dataclass
class PassContext:
    """`check` verifies the graph's invariants after every pass. `max_rewrites` stops after so many rewrites."""

    opt_level: int = 2
    disabled_pass: frozenset[str] = frozenset()
    max_rewrites: int | None = None
    check: bool = False
    fuel: Fuel = field(init=False)
    rules: dict[str, RuleReport] = field(default_factory=dict)  # of the pass that runs now
    memo: dict[str, Any] = field(default_factory=dict)  # what a pass remembers between its runs

    def __post_init__(self) -> None:
        self.fuel = Fuel(self.max_rewrites)

    def record_rules(self, records: Mapping[str, RuleRecord]) -> None:
        """Add what a driver counted to the current pass. The last round's declines are those that stand."""
        for name, record in records.items():
            report = self.rules.setdefault(name, RuleReport())
            report.hits += record.hits
            report.declined = {
                reason: (d.count, d.example) for reason, d in record.declined.items() if d.count
            } or report.declined

    def count(self, what: str, by: int = 1) -> None:
        """A pass that has no rules reports its hits under a name."""
        self.rules.setdefault(what, RuleReport()).hits += by

    def decline(self, what: str, reason: str, example: str) -> None:
        """A pass that has no rules says why it left something alone."""
        report = self.rules.setdefault(what, RuleReport())
        count, first = report.declined.get(reason, (0, example))
        report.declined[reason] = (count + 1, first)
