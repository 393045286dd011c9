"""What makes a result wrong at one place, and what may help."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from onnxopt.api import OptimizeOptions, RolledBack
from onnxopt.pipeline.site import Site

_TRIES: Final = 2  # remedies that are tried: among more, bisection finds the right one sooner


@dataclass
class Remedy:
    """Something to leave out: rewrite so and so of a run with `options`; None where it is not that fine."""

    record: RolledBack
    options: OptimizeOptions
    rewrite: int | None

    @property
    def key(self) -> tuple[str, Site | None]:
        """The same for what leaves out the same."""
        return self.record.name, self.record.site

    @property
    def whole(self) -> Remedy:
        """All that the rule does."""
        return dataclasses.replace(self, record=dataclasses.replace(self.record, value=""))


@dataclass
class Fault:
    """Something that makes the result wrong: `values`, by scope, are the original's at its place. What may help, the
    likeliest first; how many of these were tried, and what is left out now."""

    values: set[tuple[str, str]] = field(default_factory=set)
    remedies: list[Remedy] = field(default_factory=list)
    tried: int = 0
    left_out: list[Remedy] = field(default_factory=list)

    def suspect(self, found: Sequence[Remedy]) -> None:
        """These too, before what was not tried yet."""
        known = {r.key: r for r in self.remedies[: self.tried]}
        for r in (*found, *self.remedies[self.tried :]):
            known.setdefault(r.key, r)
        self.remedies = list(known.values())

    def next(self) -> bool:
        """Leave out the next remedy, and no other; False where there is none, or bisection finds it sooner."""
        more = self.tried < min(len(self.remedies), _TRIES)
        self.left_out = [self.remedies[self.tried]] if more else []
        self.tried += more
        return more
