"""The site of a match, used to exclude a single match from a run."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.startup.record import record

WRONG: Final = "it made the result wrong"
UNLOADED: Final = "it kept the result from being loaded"
BY_HAND: Final = "left out: disabled here"


@record(frozen=True)
class Site:
    """Where the rule, or pass without rules, `name` rewrites: the producer of `value` in the scope with path `scope`.

    An empty `scope` means any. A replacement keeps its anchor's output, so a site has the same name in every run.
    `reason`:
    why it is excluded.
    """

    name: str
    value: str
    scope: str = ""
    reason: str = field(default=f"left out: {WRONG}", compare=False)

    @classmethod
    def of(cls, name: str, at: Value | Node | None) -> Site | None:
        """Return the site of `name` at a value, or at a node, identified by its first output."""
        value = next((v for v in at.outputs if v is not None), None) if isinstance(at, Node) else at
        return cls(name, value.name, value.graph.path) if value is not None else None

    @classmethod
    def parse(cls, text: str) -> Site:
        """Parse `RULE@VALUE`, or `RULE@SCOPE / VALUE`."""
        name, _, rest = text.partition("@")
        scope, _, value = rest.rpartition(" / ")
        return cls(name, value, scope, BY_HAND)

    def __str__(self) -> str:
        scope = f"{self.scope} / " if self.scope not in ("", "main") else ""
        return f"{self.name}@{scope}{self.value}"
