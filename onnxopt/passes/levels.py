"""What -O0 to -O3 run: names of passes, iterated in this order to a fixed point."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt.pipeline import Pass, get_pass

PIPELINE = (
    "lift-constants",
    "canonicalize",
    "elim-identity",
    "constant-folding",
    "conv-bn-folding",
    "conv-add-folding",
    "dead-code",
    "deduplicate-constants",
)


def passes_for(level: int) -> list[type[Pass]]:
    """The passes of a level. O0 runs none, and writes back the bytes it read."""
    if level <= 0:
        return []
    return [p for p in map(get_pass, PIPELINE) if p.info.opt_level <= level]


def passes_named(names: Sequence[str]) -> list[type[Pass]]:
    """The passes of a comma-separated list. Raises UsageError for a name that does not exist."""
    return [get_pass(n) for n in names]
