"""One model of many: what to do, and what came of it. Both are plain data, and can be sent."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import field, fields
from functools import cached_property
from typing import Any
from uuid import uuid4

from onnxopt.optimizer import OptimizeOptions
from onnxopt.record import record
from onnxopt.verification import VerifyOptions

# From the best to the worst that can happen; `worst_code` goes by it.
_SEVERITY = (0, 3, 1, 2, 4)


@record(frozen=True)
class Job:
    """Optimize `source` into `destination` (paths or URLs); the same path twice means in place.

    `check`: write nothing, and say whether the result would be another file. `backup`: a suffix under which what is
    replaced in place is kept, unless such a file is there already. `cache`: a folder with results of earlier runs.
    `plugins`: files or modules that define passes. `reproducer`: a folder for what repeats a failure, without weights
    if `zero_weights`. `stats`: the report says what was in the model, and what is in the result. `token`: tells the
    job from others, also when it is tried again.
    """

    source: str
    destination: str
    options: OptimizeOptions = field(default_factory=OptimizeOptions)
    verify_options: VerifyOptions | None = field(default_factory=VerifyOptions)  # None: do not verify
    strict: bool = False
    allow_unverified: bool = True
    check: bool = False
    backup: str = ""
    cache: str = ""
    plugins: tuple[str, ...] = ()
    reproducer: str = ""
    zero_weights: bool = False
    stats: bool = False
    token: str = field(default_factory=lambda: uuid4().hex[:12])

    @cached_property
    def in_place(self) -> bool:
        return not self.check and os.path.realpath(self.source) == os.path.realpath(self.destination)


@record
class Outcome:
    """What came of a job.

    `status`: optimized, unchanged (the result is the input), current (the destination is the result already), cached
    (taken from the cache), would change (`check`), failed. `code`: what `onnxopt optimize` would exit with.
    `report`: that of `api.Report`, None where there is none. `seconds`: of this run. `notes`: what is not about the
    model, and is said once for all of them.
    """

    source: str
    destination: str
    status: str = "failed"
    code: int = 4
    message: str = ""
    hint: str = ""
    report: dict[str, Any] | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON. The report is the same, not a copy: it has a thousand entries, of each model."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@record(frozen=True)
class Done:
    """What a worker answers. `last`: it ends now; others do what is left."""

    outcome: Outcome
    last: bool


def worst_code(codes: Iterable[int]) -> int:
    """The exit code of all: 4 (a bug) before 2 (input, usage), 1 (a check failed), 3 (a rule was left out), 0."""
    return max(codes, key=lambda c: _SEVERITY.index(c) if c in _SEVERITY else len(_SEVERITY), default=0)
