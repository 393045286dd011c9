"""What a pass is: its info, its options, its kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from onnxopt.errors import PassError, UsageError, any_of
from onnxopt.graph import Graph, Model
from onnxopt.record import record
from onnxopt.rewriting import Driver, Rule, RuleRecord

if TYPE_CHECKING:
    from onnxopt.pipeline.context import PassContext
    from onnxopt.pipeline.records import PipelineReport


_FEW: Final = 3  # operators that are listed
_LEVELS: Final = (0, 1, 2, 3)
MADE_BY: Final = "onnxopt.made-by"  # metadata of a function that a pass made of nodes


@record(frozen=True)
class PassInfo:
    """What the manager must know of a pass before it runs one (TVM Relay's PassInfo, Paddle Lite's BindTargets).

    `name`: kebab-case, unique in the registry. `opt_level`: the lowest level that runs it. `required`: names of
    passes that must have run since the model last changed. `after`, `before`: where it goes among others that a
    manager orders. `targets`: what it is good for, "any" for everything. `ops`: it runs only if the model has one
    of these operators (qualified names); empty for always. `preserves`: analyses (the functions that `ctx.analysis`
    takes) whose results stay true, whatever the pass changes. `tolerance`: it changes numbers on purpose, as a
    quantizer does, each output by up to so much of its range; the result is held against that. Raises UsageError for
    what is none of these.
    """

    name: str
    opt_level: int = 1
    required: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    targets: tuple[str, ...] = ("any",)
    ops: tuple[str, ...] = ()
    preserves: tuple[Callable[..., Any], ...] = ()
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UsageError(f"the name of a pass is text, not {self.name!r}", 'PassInfo("my-pass", opt_level=1)')
        for field in ("required", "after", "before", "targets", "ops"):
            names = getattr(self, field)
            if isinstance(names, str):
                raise UsageError(f"pass {self.name}: {field} is {names!r}, not a tuple: write ({names!r},)")
            object.__setattr__(self, field, tuple(names or ()))
            if not all(isinstance(name, str) for name in getattr(self, field)):
                raise UsageError(f"pass {self.name}: {field} is {names!r}, not a tuple of names", f'{field}=("…",)')
        if not self.targets:
            raise UsageError(f"pass {self.name}: targets names none", '("any",) is for everything')
        check_level(self.opt_level, f"pass {self.name}: ")
        if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, int | float) or not self.tolerance >= 0:
            raise UsageError(f"pass {self.name}: tolerance is {self.tolerance!r}, not a share of an output's range")

    def not_for(self, targets: Sequence[str]) -> str:
        """Why the pass does not run where a result is for `targets`; empty if it does."""
        if "any" in self.targets or not set(self.targets).isdisjoint(targets):
            return ""
        what = f"the target is {targets[0]}" if len(targets) == 1 else f"the targets are {' and '.join(targets)}"
        return f"is for {any_of(self.targets)}, {what}"

    def suits(self, model: Model, targets: Sequence[str]) -> bool:
        """Is the pass for one of `targets`, and does the model have an operator that it works on?"""
        if self.ops and model.operators().isdisjoint(self.ops):
            return False
        return "any" in self.targets or not self.not_for(targets)

    def obstacle(self, model: Model, targets: Sequence[str]) -> str:
        """Why `targets` or the model's operators speak against the pass; empty if it suits them."""
        if why := self.not_for(targets):
            return why
        if self.ops and model.operators().isdisjoint(self.ops):
            if len(self.ops) > _FEW:
                return f"the model has none of its {len(self.ops)} operators"
            return f"the model has no {any_of(self.ops)}"
        return ""


def check_level(level: Any, where: str = "") -> None:
    """Raise UsageError unless `level` is one of the optimization levels."""
    if level not in _LEVELS or isinstance(level, bool) or not isinstance(level, int):
        raise UsageError(f"{where}there is no level {level!r}", "levels are 0 to 3")


def option(default: Any, help: str) -> Any:
    """A field of a pass that users may set; its help is shown by `onnxopt explain`."""
    return dataclasses.field(default=default, metadata={"help": help})


def check_fields(cls: type[Pass]) -> None:
    """Raise TypeError for an option of a pass that is no field yet."""
    for name, value in vars(cls).items():
        if isinstance(value, dataclasses.Field):
            raise TypeError(f"pass {cls.info.name}: {name} is an option, but the class no @dataclass(frozen=True)")


@record(frozen=True)
class Pass:
    """One transformation of a model. A subclass that has options is a frozen dataclass; its fields are the options.

    `str(p)` is its text form. Calling it runs it, whatever its level, in the current PassContext.
    """

    info: ClassVar[PassInfo]
    kind: ClassVar[str] = "model"

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a pass is used as a key, and runs several times, in several threads."""
        raise dataclasses.FrozenInstanceError(
            f"cannot assign to {name!r} of a pass: what can be set is a field, `{name}: … = option(default, help)`, "
            "in a class with @dataclass(frozen=True); what a run finds out goes to ctx.count"
        )

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def children(self) -> tuple[Pass, ...]:
        """The passes it is made of: none for most."""
        return ()

    def __call__(self, model: Model) -> PipelineReport:
        """Run on `model`, in place. Raises PassError and what the model's own checks raise."""
        from onnxopt.pipeline.execute import execute

        return execute(self, model)

    def run(self, model: Model, ctx: PassContext) -> None:
        """Change `model` in place. Whether it changed is measured by `model.version`, not reported."""
        raise NotImplementedError(f"{type(self).__name__} has no run(self, model, ctx)")

    def should_run(self, model: Model, ctx: PassContext) -> bool:
        """Does the model have anything for this pass, and is it for one of the context's targets? Not asked of a pass
        called directly."""
        return self.info.suits(model, ctx.targets)

    def requires(self, model: Model) -> None:
        """Raise if the model is not one that this pass can work on."""

    def ensures(self, model: Model) -> None:
        """Raise if the model, which this pass has run on, is not what it promised."""

    def promise(self, model: Model) -> Callable[[], None] | None:
        """What is to be called after `run`, and raises PassError if that did what the kind of the pass never does."""
        return None

    @classmethod
    def summary(cls) -> str:
        """First sentence of the manual page, which is the docstring."""
        page = " ".join((cls.__doc__ or "").partition("\n\n")[0].split())
        return page.partition(". ")[0].removesuffix(".")

    def __str__(self) -> str:
        from onnxopt.pipeline.text import text

        return text(self)

    def __hash__(self) -> int:
        return hash(type(self))  # most have no options, and would all be the same key


class ModelPass(Pass):
    """Sees the whole model."""


class GraphPass(Pass):
    """Runs once for every scope: bodies before the graph around them, functions, main. Not for those marked
    `onnxopt.skip` in their metadata, nor for functions that it made by `fuse_partition`, in this run or another. A
    Fixpoint runs it again while what it changed around bodies may be news to these.
    """

    kind: ClassVar[str] = "graph"

    def run(self, model: Model, ctx: PassContext) -> None:
        own = {f for f in model.functions.values() if self._made(f)}
        for graph in list(model.open_scopes()):
            if own and graph.root in own:
                continue
            if graph.owner is None or graph.owner.graph is not None:  # its owner may be gone by now
                ctx.scope = graph
                state = model.state
                self.run_graph(graph, ctx)
                if graph.owners and model.state != state:
                    ctx.settled = False
        ctx.scope = None

    def _made(self, function: Graph) -> bool:
        return any(p.key == MADE_BY and p.value == self.name for p in function.proto.metadata_props)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        """Change `graph` in place, of one scope at a time."""
        raise NotImplementedError(f"{type(self).__name__} has no run_graph(self, graph, ctx)")


class RewritePass(Pass):
    """A set of rules, driven to their fixed point over all scopes."""

    kind: ClassVar[str] = "rewrite"
    rules: ClassVar[tuple[Rule, ...]] = ()

    def run(self, model: Model, ctx: PassContext) -> None:
        self.apply_rules(model, ctx)

    def apply_rules(self, model: Model, ctx: PassContext) -> dict[str, RuleRecord]:
        rules = [r for r in self.rules if r.name not in ctx.disabled_rule]
        driver = Driver(rules, ctx.fuel, self, ctx.observer, ctx.leaves_out if ctx.excluded else None)
        driver.run(model, ctx.left)
        ctx.looked = model.clock, driver.declined  # what the pass itself changes behind that is news to its rules
        ctx.record_rules(rules, driver.records)
        return driver.records


class DebugPass(Pass):
    """Looks and tells; a change to the model, of its protos too, is an error (Paddle Lite's debug passes)."""

    kind: ClassVar[str] = "debug"

    def promise(self, model: Model) -> Callable[[], None]:
        from onnxopt.graph.fingerprint import fingerprint

        before = model.version, fingerprint(model)

        def check() -> None:
            if (model.version, fingerprint(model)) != before:
                raise PassError(
                    f"{model.name}: the debug pass {self.name} changed the model",
                    "make it a ModelPass or GraphPass if it is meant to",
                )

        return check

    def run(self, model: Model, ctx: PassContext) -> None:
        self.inspect(model, ctx)

    def inspect(self, model: Model, ctx: PassContext) -> None:
        """Look at `model`, and change nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no inspect(self, model, ctx)")
