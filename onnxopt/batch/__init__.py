"""Optimization of many models: jobs and outcomes (plain picklable data), processes, machines, cached results."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any
from uuid import uuid4

from onnxopt.optimizer import OptimizeOptions
from onnxopt.verification import VerifyOptions

# Exit codes from best to worst, for `worst_code`.
_SEVERITY = (0, 3, 1, 2, 4)


@dataclass(frozen=True)
class Job:
    """Optimize `source` into `destination` (paths or URLs). Equal paths: in place."""

    source: str
    destination: str
    options: OptimizeOptions = field(default_factory=OptimizeOptions)
    verify_options: VerifyOptions | None = field(default_factory=VerifyOptions)  # None: do not verify
    strict: bool = False
    allow_unverified: bool = True
    check: bool = False  # write nothing; report whether the result would differ from the file
    backup: str = ""  # suffix under which a file replaced in place is kept, unless the name is taken
    cache: str = ""  # folder of cached results
    plugins: tuple[str, ...] = ()  # files or modules that define passes
    reproducer: str = ""  # folder for the reproducer of a failure
    zero_weights: bool = False  # without weights in the reproducer
    stats: bool = False  # include statistics of the model before and after in the report
    token: str = field(default_factory=lambda: uuid4().hex[:12])  # unique identifier, kept on a retry

    @cached_property
    def in_place(self) -> bool:
        """Whether the result replaces the source."""
        return not self.check and os.path.realpath(self.source) == os.path.realpath(self.destination)


@dataclass
class Outcome:
    """Outcome of a job."""

    source: str
    destination: str
    # Optimized, unchanged (result equals input), current (already at the destination), cached, would change (`check`),
    # failed.
    status: str = "failed"
    code: int = 4  # exit code of `onnxopt optimize`
    message: str = ""
    hint: str = ""
    report: dict[str, Any] | None = None  # `api.Report.to_dict()`
    seconds: float = 0.0  # of this run
    notes: list[str] = field(default_factory=list)  # remarks independent of the model, shown once

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome for JSON. The report is not copied, as it has a thousand entries per model."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Done:
    """A worker's answer."""

    outcome: Outcome
    last: bool  # the worker ends now


def worst_code(codes: Iterable[int]) -> int:
    """Return the worst exit code: 4 (bug), 2 (input, usage), 1 (check failed), 3 (rule left out), 0."""
    return max(codes, key=lambda c: _SEVERITY.index(c) if c in _SEVERITY else len(_SEVERITY), default=0)
