"""What a pass is: its info, its options, its kinds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from onnxopt.graph import Graph, Model
from onnxopt.pipeline.context import PassContext
from onnxopt.rewrite import Driver, Rule, RuleRecord


@dataclass(frozen=True)
class PassInfo:
    """`opt_level`: the lowest level that runs the pass. `name` is kebab-case, unique in the registry."""

    name: str
    opt_level: int = 1


def option(default: Any, help: str) -> Any:
    """A field of a pass that users may set; its help is shown by `onnxopt passes`."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Pass:
    """One transformation of a model. Subclasses are frozen dataclasses; their fields are their options."""

    info: ClassVar[PassInfo]
    kind: ClassVar[str] = "model"

    @property
    def name(self) -> str:
        return self.info.name

    def run(self, model: Model, ctx: PassContext) -> None:
        """Change `model` in place. Whether it changed is measured by `model.version`, not reported."""
        raise NotImplementedError

    @classmethod
    def summary(cls) -> str:
        """First line of the manual page, which is the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True)
class ModelPass(Pass):
    """Sees the whole model."""


@dataclass(frozen=True)
class GraphPass(Pass):
    """Runs once for every scope: bodies before the graph around them, functions, main."""

    kind: ClassVar[str] = "graph"

    def run(self, model: Model, ctx: PassContext) -> None:
        for graph in list(model.scopes()):
            if graph.owner is None or graph.owner.graph is not None:  # its owner may be gone by now
                self.run_graph(graph, ctx)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class RewritePass(Pass):
    """A set of rules, driven to their fixed point over all scopes."""

    kind: ClassVar[str] = "rewrite"
    rules: ClassVar[tuple[Rule, ...]] = ()

    def run(self, model: Model, ctx: PassContext) -> None:
        self.apply_rules(model, ctx)

    def apply_rules(self, model: Model, ctx: PassContext) -> dict[str, RuleRecord]:
        driver = Driver(self.rules, ctx.fuel, self)
        driver.run(model)
        ctx.record_rules(driver.records)
        return driver.records
