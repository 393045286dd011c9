"""What makes a result wrong at one place, and what may help."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from onnxopt.api import OptimizeOptions, RolledBack

if TYPE_CHECKING:
    from onnxopt.bisect import Finding

_TRIES: Final = 4  # remedies that are tried one after the other


@dataclass
class Remedy:
    """Something to leave out, and how to learn all about it."""

    record: RolledBack
    options: OptimizeOptions  # of the run that it was found in
    find: Callable[[], Finding]

    @property
    def whole(self) -> Remedy:
        return dataclasses.replace(self, record=dataclasses.replace(self.record, value=""))


@dataclass
class Fault:
    """What makes the result wrong at one place: `values`, by scope, are the original's there. What may help, the
    likeliest first; how many steps were taken, and what is left out now."""

    values: set[tuple[str, str]] = field(default_factory=set)
    remedies: list[Remedy] = field(default_factory=list)
    steps: int = 0
    left_out: list[Remedy] = field(default_factory=list)

    def suspect(self, found: Sequence[Remedy]) -> None:
        """These too, before what was not tried yet."""
        tried, rest = self.remedies[: self.steps], self.remedies[self.steps :]
        known = [r.record for r in tried]
        self.remedies = tried
        for r in (*found, *rest):
            if not any((r.record.name, r.record.site) == (k.name, k.site) for k in known):
                known.append(r.record)
                self.remedies.append(r)

    def next(self) -> bool:
        """Leave out one remedy after the other, then all of them, then all that their rules do; False after that."""
        singles = self.remedies[:_TRIES]
        whole = list({r.record.name: r.whole for r in self.remedies}.values())
        steps = [*([r] for r in singles), *([self.remedies] if len(singles) > 1 else []), whole]
        more = bool(self.remedies) and self.steps < len(steps)
        self.left_out = list(steps[self.steps]) if more else []
        self.steps += more
        return more
