"""Diagnosis of a Fixpoint without termination: passes still changing the model, and their last rewrites."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from onnxopt.errors import NoFixpointError
from onnxopt.pipeline.instrument import Instrument
from onnxopt.plaintext import counted

if TYPE_CHECKING:
    from onnxopt.graph import Model, Value
    from onnxopt.graph.node import Node
    from onnxopt.pipeline.base import Pass
    from onnxopt.pipeline.context import PassContext
    from onnxopt.rewriting import Match, Rule


class Restless(Instrument):
    """Watches the last two permitted rounds of a Fixpoint in the run of `ctx`, as passes undoing each other may
    alternate."""

    watches_rewrites = True

    def __init__(self, ctx: PassContext) -> None:
        self._ctx = ctx
        self._did: dict[str, tuple[Counter[str], str]] = {}  # by pass: counts, and the last position
        self._before: tuple[int, Counter[str]] = (0, Counter())
        self._place = ""
        ctx.watch(self)

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self._before, self._place = (model.version, self._hits(p)), ""

    def after(self, model: Model, p: Pass) -> None:
        version, hits = self._before
        if not p.children and model.version != version:
            self._did[p.name] = self._hits(p) - hits, self._place

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        if not done:
            self._place = repr(m.anchor)

    def spending(self, what: str, at: Value | Node | None) -> None:
        self._place = "" if at is None else repr(at)

    def _hits(self, p: Pass) -> Counter[str]:
        assert self._ctx.report is not None
        return Counter({what: rule.hits for what, rule in self._ctx.report.of(p.name).rules.items()})

    def error(self, model: Model, rounds: int) -> NoFixpointError:
        """Return the error after `rounds` rounds."""
        told = "; ".join(_told(name, *did) for name, did in self._did.items()) or "only what is known of types changed"
        names = ",".join(self._did)
        hint = "they undo each other's work: disable one of them with --disable"
        if len(self._did) == 1:
            hint = f"a pass that runs again has to leave the model as it is; go on without it by --disable {names}"
        return NoFixpointError(f"{model.name}: still changing after {rounds} rounds; in the last ones, {told}", hint)


def _told(name: str, hits: Counter[str], place: str) -> str:
    counts = ", ".join(f"{what} {counted(n, 'time')}" for what, n in hits.items())
    return f"pass {name}" + (f": {counts}" if counts else " changed it") + (f", the last at {place}" if place else "")
