"""How a command says what came of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.record import record

if TYPE_CHECKING:
    from onnxopt.batch.budget import Budget


@record(frozen=True)
class Telling:
    """`format` text or json; `junit`: a file for JUnit's XML; `report`: one for the JSON; `budgets` to keep;
    `quiet`: errors only; `data_on_stdout`: stdout is the model's; `verbose`: rules, and reasons for declining;
    `stats`: what changed, operator by operator."""

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
        """Is there a page of GitHub's to write on?"""
        return bool(os.environ.get("GITHUB_STEP_SUMMARY"))

    @property
    def to_machines(self) -> bool:
        """Do programs read it, for which a warning is none? What is not verified is an error then."""
        environment = os.environ.get("GITHUB_STEP_SUMMARY") or os.environ.get("GITHUB_ACTIONS") == "true"
        return bool(self.format != "text" or self.junit or environment)

    @property
    def wanted(self) -> bool:
        """Is there more to say than a single run says by itself?"""
        return bool(self.to_machines or self.budgets)
