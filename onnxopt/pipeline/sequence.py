"""Composite passes: in sequence, or repeated until a fixed point."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from onnxopt.analysis import types
from onnxopt.graph import Model
from onnxopt.pipeline.base import Pass, PassInfo, option
from onnxopt.pipeline.boundary import as_passes
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.execute import is_current, run_pass
from onnxopt.pipeline.registry import note_name, register
from onnxopt.startup.record import record


def _its_own(default: Any) -> Any:
    """Return a field that describes the composite itself, and is no option."""
    return dataclasses.field(default=default, kw_only=True, repr=False, metadata={"own": True})


@record(frozen=True)
class Composite(Pass):
    """A pass made of passes. A `name` makes it known to contexts, reports and, if registered, pipeline text.

    `opt_level` and `required` as in PassInfo.
    """

    info = PassInfo("composite", opt_level=0)
    passes: tuple[Pass, ...] = ()
    name: str = _its_own("")
    opt_level: int = _its_own(0)
    required: tuple[str, ...] = _its_own(())

    def __post_init__(self) -> None:
        kind = type(self).info
        own = PassInfo(
            self.name or kind.name,
            self.opt_level or kind.opt_level,
            self.required or kind.required,
            *(getattr(kind, f) for f in ("after", "before", "targets", "ops")),
        )
        if own != kind:
            object.__setattr__(self, "info", own)
            note_name(own.name)
        object.__setattr__(self, "name", own.name)
        object.__setattr__(self, "opt_level", own.opt_level)
        object.__setattr__(self, "required", own.required)
        object.__setattr__(self, "passes", as_passes(self.passes, type(self).__name__))

    @property
    def children(self) -> tuple[Pass, ...]:
        return self.passes


@register
class Sequential(Composite):
    """Runs passes in order: those that the context has not disabled and whose level it reaches, or requires."""

    info = PassInfo("sequential", opt_level=0)
    kind: ClassVar[str] = "sequential"

    def run(self, model: Model, ctx: PassContext) -> None:
        for i, p in enumerate(self.passes):
            ctx.rest.append(self.passes[i + 1 :])
            run_pass(p, model, ctx)
            ctx.rest.pop()


@register
@record(frozen=True)
class Fixpoint(Composite):
    """Runs passes in order, round after round, until a round with all known facts changes nothing.

    A pass is skipped while the model is unchanged since its last run. Raises NoFixpointError after `max_rounds`.
    """

    info = PassInfo("fixpoint", opt_level=0)
    kind: ClassVar[str] = "fixpoint"
    max_rounds: int = option(100, "rounds after which passes that still change the model are an error")

    def run(self, model: Model, ctx: PassContext) -> None:
        assert ctx.report is not None
        outer, ctx.in_round = ctx.in_round, True
        rounds = max(self.max_rounds, 1)
        for n in range(rounds):
            if n == max(rounds - 2, 0):
                from onnxopt.pipeline.nontermination import Restless

                restless = Restless(ctx)
            types.refresh_allowed(model)
            types.settle(model)
            before = model.state
            for i, p in enumerate(self.passes):
                if not is_current(p, model, ctx):
                    ctx.rest.append((*self.passes[i + 1 :], self))
                    run_pass(p, model, ctx)
                    ctx.rest.pop()
            ctx.report.rounds += 1
            if model.state == before or ctx.fuel.left == 0:
                ctx.in_round, ctx.settled = outer, True
                return
        raise restless.error(model, rounds)
