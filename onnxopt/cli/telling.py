"""Output of a command's outcome."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.startup.record import record

if TYPE_CHECKING:
    from onnxopt.batch.budget import Budget


@record(frozen=True)
class Telling:
    """Settings of the output.

    `format`: text or json. `junit`, `report`: files. `budgets`: limits. `quiet`: errors only. `data_on_stdout`: stdout
    is used for the model. `verbose`: rules, and reasons for declining. `stats`: changes by operator.
    """

    format: str = "text"
    junit: Path | None = None
    report: Path | None = None
    budgets: tuple[Budget, ...] = ()
    quiet: bool = False
    data_on_stdout: bool = False
    verbose: int = 0
    stats: bool = False

    @property
    def has_summary(self) -> bool:
        """Returns whether GitHub's step summary is available."""
        return bool(os.environ.get("GITHUB_STEP_SUMMARY"))

    @property
    def to_machines(self) -> bool:
        """Returns whether programs read the output; an unverified result is then an error."""
        environment = os.environ.get("GITHUB_STEP_SUMMARY") or os.environ.get("GITHUB_ACTIONS") == "true"
        return bool(self.format != "text" or self.junit or environment)

    @property
    def wanted(self) -> bool:
        """Returns whether the output has more than the lines of a single run."""
        return bool(self.to_machines or self.budgets)
