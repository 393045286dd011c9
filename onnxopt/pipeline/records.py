"""Records of a run for reports: plain data, serializable to JSON."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from onnxopt.pipeline.site import Site
from onnxopt.rewriting.driver import Decline
from onnxopt.startup.record import record


@record
class RuleReport:
    """`declined`: number of anchors and an example, by reason. `nodes`: nodes removed by the hits."""

    hits: int = 0
    nodes: int = 0
    declined: dict[str, Decline] = field(default_factory=dict)


@record
class PassReport:
    """A pass over all its runs. `nodes`: nodes removed (negative: added). `bytes`: bytes of constants removed, if
    measured.

    `changed`: whether the pass changed the model; without changes its counts are no rewrites.
    """

    name: str
    changed: bool = False
    runs: int = 0
    seconds: float = 0.0
    nodes: int = 0
    bytes: int = 0
    rules: dict[str, RuleReport] = field(default_factory=dict)

    @property
    def hits(self) -> int:
        return sum(r.hits for r in self.rules.values())


@record
class PipelineReport:
    """All passes of a run, in order of first execution; passes not run, with the reason.

    `rounds`: rounds of a Fixpoint. `warnings`: oddities of the model, suppressed check failures. `left_out`: excluded
    matches that occurred.
    """

    rounds: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    seconds: float = 0.0
    passes: list[PassReport] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    tolerances: dict[str, float] = field(default_factory=dict)  # of passes that change numbers on purpose
    left_out: list[Site] = field(default_factory=list)

    def of(self, name: str) -> PassReport:
        """Return the report of the pass `name`, created on first use."""
        for report in self.passes:
            if report.name == name:
                return report
        self.passes.append(PassReport(name))
        return self.passes[-1]

    def leave_out(self, name: str, why: str) -> None:
        """Record that a pass is skipped, unless it ran before."""
        if name in self.skipped or all(report.name != name for report in self.passes):
            self.skipped[name] = why

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
