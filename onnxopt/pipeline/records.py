"""Plain records of a run: what the report shows. No graph objects, everything serialises to JSON."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from onnxopt.pipeline.site import Site
from onnxopt.record import record
from onnxopt.rewriting.driver import Decline


@record
class RuleReport:
    """`declined`: by reason, how many anchors, and one of them. `nodes` is how many nodes the hits removed."""

    hits: int = 0
    nodes: int = 0
    declined: dict[str, Decline] = field(default_factory=dict)


@record
class PassReport:
    """One pass over all its runs. `nodes` is how many nodes it removed (negative: added), `bytes` how many bytes of
    constants, if somebody measured them. `changed`: did it change the model? What one counts that did not are no
    rewrites."""

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
    """All passes of a run, in order of first execution; those that did not run, with the reason.

    `rounds`: how often a Fixpoint went through its passes. `warnings`: what is odd about the model, failures of checks
    that were suppressed. `left_out`: single matches that the context excluded, and that were there.
    """

    rounds: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    seconds: float = 0.0
    passes: list[PassReport] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    tolerances: dict[str, float] = field(default_factory=dict)  # of passes that changed numbers on purpose
    left_out: list[Site] = field(default_factory=list)

    def of(self, name: str) -> PassReport:
        """The report of the pass called `name`, made on first use."""
        for report in self.passes:
            if report.name == name:
                return report
        self.passes.append(PassReport(name))
        return self.passes[-1]

    def leave_out(self, name: str, why: str) -> None:
        """A pass does not run now; that is told unless it ran before."""
        if name in self.skipped or all(report.name != name for report in self.passes):
            self.skipped[name] = why

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
