"""Passes made of passes: one after the other, or again and again until nothing changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxopt.analysis import types
from onnxopt.errors import NoFixpointError
from onnxopt.graph import Model
from onnxopt.pipeline.base import Pass, PassInfo, option
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.execute import is_current, run_pass
from onnxopt.pipeline.registry import register


@register
@dataclass(frozen=True)
class Sequential(Pass):
    """Runs passes in order: those that the context has not disabled and whose level it reaches, or requires."""

    info = PassInfo("sequential", opt_level=0)
    kind: ClassVar[str] = "sequential"
    passes: tuple[Pass, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", tuple(self.passes))

    @property
    def children(self) -> tuple[Pass, ...]:
        return self.passes

    def run(self, model: Model, ctx: PassContext) -> None:
        for i, p in enumerate(self.passes):
            ctx.rest.append(self.passes[i + 1 :])
            run_pass(p, model, ctx)
            ctx.rest.pop()


@register
@dataclass(frozen=True)
class Fixpoint(Pass):
    """Runs passes in order, round after round, until a whole round, that knows all there is to know, changes nothing.

    A pass is left out while the model is as that pass left it. Raises NoFixpointError after `max_rounds`.
    """

    info = PassInfo("fixpoint", opt_level=0)
    kind: ClassVar[str] = "fixpoint"
    passes: tuple[Pass, ...] = ()
    max_rounds: int = option(100, "rounds after which passes that still change the model are an error")

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", tuple(self.passes))

    @property
    def children(self) -> tuple[Pass, ...]:
        return self.passes

    def run(self, model: Model, ctx: PassContext) -> None:
        assert ctx.report is not None
        outer, ctx.in_round = ctx.in_round, True
        for _ in range(self.max_rounds):
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
                ctx.in_round = outer
                return
        raise NoFixpointError(
            f"{model.name}: the passes undo each other's work: still changing after {self.max_rounds} rounds",
            "disable one of them with --disable, and report it",
        )
