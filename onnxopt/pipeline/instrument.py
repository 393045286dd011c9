"""What an instrument may hook into (TVM Relay's PassInstrument)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from onnxopt.graph import Model, Value
    from onnxopt.graph.node import Node
    from onnxopt.pipeline.base import Pass
    from onnxopt.rewriting import Match, Rule


class Instrument:
    """Give instances to `PassContext(instruments=[...])` and override what is of interest.

    `before` and `after` are called around every pass, those made of passes too (they have `children`). What an
    override raises in `after` counts as a failure of the pass.
    """

    watches_rewrites: ClassVar[bool] = False  # set it to have `rewriting` and `spending` called

    def begin(self, model: Model) -> None:
        """A run begins."""

    def end(self, model: Model) -> None:
        """A run ended, or failed."""

    def should_run(self, model: Model, p: Pass) -> bool:
        """False keeps `p` from running as part of a pipeline."""
        return True

    def before(self, model: Model, p: Pass) -> None:
        """`p` is about to run."""

    def after(self, model: Model, p: Pass) -> None:
        """`p` has run."""

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        """A rule is about to rewrite (not `done`: the match is still whole), or has."""

    def spending(self, what: str, at: Value | Node | None) -> None:
        """A pass without rules is about to rewrite, and has taken the fuel; at a value or node, if it says which."""
