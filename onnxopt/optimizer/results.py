"""What comes of an optimization: the report, and the error of a result that is refused."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from onnxopt.errors import ModelError, VerificationError
from onnxopt.pipeline import PipelineReport
from onnxopt.pipeline.site import WRONG, Site
from onnxopt.plaintext import cleaned, counted
from onnxopt.record import plain, record
from onnxopt.verification import DIFFERENT, INCONCLUSIVE, LOADS_PLAIN, UNVERIFIED, WITHIN_NOISE

if TYPE_CHECKING:
    from onnxopt.conversion.int64_left import Int64
    from onnxopt.optimizer.forms import Choice
    from onnxopt.verification import Verification


@record
class RolledBack:
    """What a rule (or a pass without rules, `rule` empty) did to `value`, and was left out; the whole rule or pass
    where `value` is empty. `fault`: what it did to the result."""

    pass_text: str
    rule: str
    scope: str
    match: list[str]
    message: str
    value: str = ""
    fault: str = WRONG

    @property
    def name(self) -> str:
        """As `--disable` takes it."""
        return self.rule or self.pass_text.partition("{")[0]

    @property
    def site(self) -> Site | None:
        """None: all of it."""
        return Site(self.name, self.value, self.scope, f"left out: {self.fault}") if self.value else None


@record
class Report:
    """The report of an optimization. Bytes include the data files of the model. `verification` is None if not
    requested, or without changes (`changed`)."""

    source: str
    destination: str
    pipeline: PipelineReport
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    changed: bool = True  # False: what is computed is what was computed, node by node
    verification: Verification | None = None
    phases: dict[str, float] = field(default_factory=dict)  # seconds by phase
    rolled_back: list[RolledBack] = field(default_factory=list)
    fixed_dims: dict[str, int] = field(default_factory=dict)  # dynamic dims that were given a size
    freed_dims: dict[str, int] = field(default_factory=dict)  # the sizes that became symbols, by these
    int64: Int64 | None = None  # the values that stay so, where they were to become int32
    stats: dict[str, Any] | None = None  # `ModelStats` before and after, where they were asked for
    target: str = "any"
    choices: list[Choice] = field(default_factory=list)  # what was done for the target
    brought_in: int = 0  # small tensors of data files that are in the model now, where runtimes need them
    data: list[str] = field(default_factory=list)  # the data files that the result reads, by their names in its folder

    @property
    def ok(self) -> bool:
        """Does the result compute what the original does? True if nothing was changed, or verification says so; False
        for what was not verified, too."""
        return not self.changed or (self.verification is not None and self.verification.ok)

    def to_dict(self) -> dict[str, Any]:
        return dict(plain(self))

    def __str__(self) -> str:
        """The lines that the command prints."""
        from onnxopt.reporting.plain import left_out, lines

        data = self.to_dict()
        return "\n".join([*lines(data), *left_out(cleaned(data["rolled_back"]))])

    def _repr_html_(self) -> str:
        """For notebooks."""
        from onnxopt.reporting.html.notebook import table

        return table(self.to_dict())

    def __repr__(self) -> str:
        nodes = f"{self.pipeline.nodes_before:,} → {counted(self.pipeline.nodes_after, 'node')}"
        return f"Report({nodes}{f', {self.verification.status}' if self.verification else ''})"


class DifferentResult(VerificationError):
    """The result differs from the original, or is not shown to compute the same where only that will do; `report`
    says where. Nothing was written."""

    def __init__(self, report: Report) -> None:
        verification = report.verification
        assert verification is not None
        what, hint = _REFUSED[verification.status]
        hint = verification.hint or hint
        if verification.status == UNVERIFIED:
            hint = "; ".join(filter(None, [hint, "--allow-unverified, without --strict, writes it all the same"]))
        super().__init__(f"{report.source}: {what}: {verification.message}", hint)
        if not self.hint.startswith(_NOTHING):
            self.hint = f"{_NOTHING}; {self.hint}"
        self.report = report


class ConversionFault(ModelError):
    """The conversion to another opset alone makes a model that computes something else. `own`: the model's opset."""

    def __init__(self, message: str, hint: str, own: int) -> None:
        super().__init__(message, hint)
        self.own = own


_NOTHING = "nothing was written"
_REFUSED = {
    DIFFERENT: ("the result differs from the original", "`onnxopt bisect` finds the rewrite; report it"),
    LOADS_PLAIN: ("the result loads without optimizations only", "find the pass with --disable NAME, and report it"),
    WITHIN_NOISE: (
        "the result is within rounding noise only, which --strict refuses",
        "--rtol says how much an output may differ, -O1 changes no bit",
    ),
    INCONCLUSIVE: ("verification is inconclusive, which --strict refuses", "give real data with --input"),
    UNVERIFIED: ("the result is not verified, which --strict and builds refuse", ""),
}
