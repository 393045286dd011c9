"""One match of a rule, by name: what a run can leave out without giving up the rule."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.record import record

WRONG: Final = "it made the result wrong"
UNLOADED: Final = "it kept the result from being loaded"
BY_HAND: Final = "left out: disabled here"


@record(frozen=True)
class Site:
    """Where the rule, or the pass without rules, called `name` rewrites: at the node that makes `value`, in the scope
    whose path is `scope` (empty: in any).

    A replacement takes over its anchor's output, so a site has the same name in every run. `reason`: why it is left
    out.
    """

    name: str
    value: str
    scope: str = ""
    reason: str = field(default=f"left out: {WRONG}", compare=False)

    @classmethod
    def of(cls, name: str, at: Value | Node | None) -> Site | None:
        """The site of what `name` does at a node, which is known by the first value it makes, or at a value."""
        value = next((v for v in at.outputs if v is not None), None) if isinstance(at, Node) else at
        return cls(name, value.name, value.graph.path) if value is not None else None

    @classmethod
    def parse(cls, text: str) -> Site:
        """`RULE@VALUE`, or `RULE@SCOPE / VALUE`."""
        name, _, rest = text.partition("@")
        scope, _, value = rest.rpartition(" / ")
        return cls(name, value, scope, BY_HAND)

    def __str__(self) -> str:
        scope = f"{self.scope} / " if self.scope not in ("", "main") else ""
        return f"{self.name}@{scope}{self.value}"
