"""Results of an optimization: the report, and the error of a refused result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from onnxopt.errors import ModelError, VerificationError
from onnxopt.pipeline import PipelineReport
from onnxopt.pipeline.records import WRONG, Site
from onnxopt.plaintext import cleaned, counted
from onnxopt.startup.record import plain, record
from onnxopt.verification import DIFFERENT, INCONCLUSIVE, LOADS_PLAIN, UNVERIFIED, WITHIN_NOISE

if TYPE_CHECKING:
    from onnxopt.conversion.int64_left import Int64
    from onnxopt.optimizer.forms import Choice
    from onnxopt.optimizer.options import OptimizeOptions
    from onnxopt.verification import Verification


@record
class RolledBack:
    """A rewrite left out. Without `value`, the whole rule or pass."""

    pass_text: str
    rule: str  # empty for a pass without rules
    scope: str
    match: list[str]
    message: str
    value: str = ""  # made by the rewritten node
    fault: str = WRONG  # effect on the result

    @property
    def name(self) -> str:
        """The name for `--disable`."""
        return self.rule or self.pass_text.partition("{")[0]

    @property
    def site(self) -> Site | None:
        """The excluded match; None for the whole rule or pass."""
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
    changed: bool = True  # False: all computations are unchanged, node by node
    verification: Verification | None = None
    phases: dict[str, float] = field(default_factory=dict)  # by phase
    rolled_back: list[RolledBack] = field(default_factory=list)
    fixed_dims: dict[str, int] = field(default_factory=dict)  # {dynamic dim: fixed size}
    freed_dims: dict[str, int] = field(default_factory=dict)  # {symbol: size replaced}
    int64: Int64 | None = None  # values that stay int64, although requested as int32
    stats: dict[str, Any] | None = None  # `ModelStats` before and after, if requested
    target: str = "any"
    choices: list[Choice] = field(default_factory=list)  # made for the target
    brought_in: int = 0  # small external tensors now inside the model, as runtimes require
    data: list[str] = field(default_factory=list)  # data files read by the result, by name in its folder

    @property
    def ok(self) -> bool:
        """Whether the result computes the original's function: unchanged, or proven by verification."""
        return not self.changed or (self.verification is not None and self.verification.ok)

    def remarks(self, options: OptimizeOptions, plugins: Sequence[str] = ()) -> list[str]:
        """Return warnings and hints about a run with `options` and the loaded `plugins`."""
        if not (self.rolled_back or options.disable or plugins):
            return []
        from onnxopt.optimizer.remarks import remarks

        return remarks(self, options, plugins)

    def to_dict(self) -> dict[str, Any]:
        return dict(plain(self))

    def __str__(self) -> str:
        """Return the lines printed by the command."""
        from onnxopt.reporting.plain import left_out, lines

        data = self.to_dict()
        return "\n".join([*lines(data), *left_out(cleaned(data["rolled_back"]))])

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        from onnxopt.reporting.html.figures import table

        return table(self.to_dict())

    def __repr__(self) -> str:
        nodes = f"{self.pipeline.nodes_before:,} → {counted(self.pipeline.nodes_after, 'node')}"
        return f"Report({nodes}{f', {self.verification.status}' if self.verification else ''})"


class DifferentResult(VerificationError):
    """The result differs from the original, or is not proven although required. Nothing was written.

    `report` gives the details.
    """

    def __init__(self, report: Report) -> None:
        verification = report.verification
        assert verification is not None
        what, hint = _REFUSED[verification.status]
        hint = verification.hint or hint
        if verification.status == UNVERIFIED:
            hint = "; ".join(filter(None, [hint, "--allow-unverified, without --strict, writes it all the same"]))
        super().__init__(f"{report.source}: {what}: {verification.message}", hint)
        if not self.hint.startswith(_NOT_WRITTEN):
            self.hint = f"{_NOT_WRITTEN}; {self.hint}"
        self.report = report


class ConversionFault(ModelError):
    """The opset conversion alone makes a model with a different function."""

    def __init__(self, message: str, hint: str, own: int) -> None:
        super().__init__(message, hint)
        self.own = own  # the model's opset


_NOT_WRITTEN = "nothing was written"
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
