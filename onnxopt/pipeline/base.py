"""Definition of a pass: info, options, kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

from onnxopt.errors import PassError, UsageError, any_of
from onnxopt.graph import Graph, Model
from onnxopt.rewriting import Driver, Rule

if TYPE_CHECKING:
    from onnxopt.pipeline.context import PassContext
    from onnxopt.pipeline.records import PipelineReport


_MAX_OPERATORS: Final = 3  # operators listed by name
_LEVELS: Final = (0, 1, 2, 3)
MADE_BY: Final = "onnxopt.made-by"  # metadata key of a function made by a pass from nodes


@dataclass(frozen=True)
class PassInfo:
    """Static description of a pass for the manager (TVM Relay's PassInfo, Paddle Lite's BindTargets).

    `name`: kebab-case, unique in the registry. `opt_level`: lowest level at which the pass runs. `required`: passes to
    run before, unless they ran since the last change of the model. `after`, `before`: ordering constraints for a
    manager. `targets`: intended targets, "any" for all. `ops`: the pass runs only if the model has an operator of these
    (qualified names); empty for always. `preserves`: analyses (functions given to `ctx.analysis`) with results
    unaffected by the pass.
    `tolerance`: deliberate change of numbers, as by a quantizer, as a fraction of each output's range; verification
    allows for it. Raises UsageError for invalid values.
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
            if names == ():
                continue
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
        """Return why the pass does not run for `targets`; empty if it does."""
        if "any" in self.targets or not set(self.targets).isdisjoint(targets):
            return ""
        what = f"the target is {targets[0]}" if len(targets) == 1 else f"the targets are {' and '.join(targets)}"
        return f"is for {any_of(self.targets)}, {what}"

    def obstacle(self, model: Model, targets: Sequence[str]) -> str:
        """Return why `targets` or the model's operators rule out the pass; empty if they do not."""
        if why := self.not_for(targets):
            return why
        if self.ops and model.operators().isdisjoint(self.ops):
            if len(self.ops) > _MAX_OPERATORS:
                return f"the model has none of its {len(self.ops)} operators"
            return f"the model has no {any_of(self.ops)}"
        return ""


def check_level(level: Any, where: str = "") -> None:
    """Raise UsageError unless `level` is an optimization level."""
    if level not in _LEVELS or isinstance(level, bool) or not isinstance(level, int):
        raise UsageError(f"{where}there is no level {level!r}", "levels are 0 to 3")


def option(default: Any, help: str) -> Any:
    """Return a field for a pass option set by users; `onnxopt explain` shows `help`."""
    return dataclasses.field(default=default, metadata={"help": help})


def check_fields(cls: type[Pass]) -> None:
    """Raise TypeError for options in a class without @dataclass, and for a class whose passes have no hash."""
    for name, value in vars(cls).items():
        if isinstance(value, dataclasses.Field):
            raise TypeError(f"pass {cls.info.name}: {name} is an option, but the class no @dataclass(frozen=True)")
    if vars(cls).get("__hash__", ...) is None:  # a pass is a key
        raise TypeError(f"pass {cls.info.name}: a class with @dataclass needs frozen=True, or has no hash")


def fields_of(cls: type[Pass]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a pass's class; empty for a class that is no dataclass."""
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


class Pass:
    """A transformation of a model. A subclass with options is a dataclass; its fields are the options, set once.

    `str(p)` is the text form. Calling a pass runs it, at any level, in the current PassContext.
    """

    info: ClassVar[PassInfo]
    kind: ClassVar[str] = "model"
    rules: ClassVar[tuple[Rule, ...]] = ()

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def children(self) -> tuple[Pass, ...]:
        """The passes of a composite pass; empty for others."""
        return ()

    def walk(self) -> Iterator[Pass]:
        """Yield the pass, then all passes inside a composite."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __call__(self, model: Model) -> PipelineReport:
        """Run on `model`, in place. Raises PassError and the errors of the model's checks."""
        from onnxopt.pipeline.execute import execute

        return execute(self, model)

    def run(self, model: Model, ctx: PassContext) -> None:
        """Change `model` in place. Changes are detected by `model.version`, not reported."""
        raise NotImplementedError(f"{type(self).__name__} has no run(self, model, ctx)")

    def should_run(self, model: Model, ctx: PassContext) -> bool:
        """Whether the model and the context's targets suit the pass. Not called for a pass run directly."""
        return not self.info.obstacle(model, ctx.targets)

    def requires(self, model: Model) -> None:
        """Raise if the pass cannot work on the model."""

    def ensures(self, model: Model) -> None:
        """Raise if the model violates the pass's promise after a run."""

    def promise(self, model: Model) -> Callable[[], None] | None:
        """Return a check to call after `run`, which raises PassError if the contract of the pass's kind is violated."""
        return None

    @classmethod
    def summary(cls) -> str:
        """Return the first sentence of the manual page, the docstring."""
        page = " ".join((cls.__doc__ or "").partition("\n\n")[0].split())
        return page.partition(". ")[0].removesuffix(".")

    def __str__(self) -> str:
        from onnxopt.pipeline.sequence import text

        return text(self)

    def __repr__(self) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields_of(type(self)) if f.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))  # most passes have no options, and would all have the same hash

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field in the constructor; refuse later: a pass is a key, and runs repeatedly, in several threads."""
        if name in vars(self) or name not in (f.name for f in fields_of(type(self))):
            raise dataclasses.FrozenInstanceError(
                f"cannot assign to {name!r} of a pass: what can be set is a field, `{name}: … = option(default, "
                "help)`, in a class with @dataclass(frozen=True); what a run finds out goes to ctx.count"
            )
        super().__setattr__(name, value)

    def with_options(self, **options: Any) -> Self:
        """Return the same pass with other options. Raises TypeError for unknown names."""
        changed: Self = dataclasses.replace(cast(Any, self), **options)
        return changed


class ModelPass(Pass):
    """A pass over the whole model."""


class GraphPass(Pass):
    """A pass run for every scope: bodies before the graph around them, functions, main graph.

    Skipped are scopes marked `onnxopt.skip` in their metadata, and functions made by the same pass through
    `fuse_partition`, in this run or another. A Fixpoint repeats the pass while changes around bodies may matter inside.
    """

    kind: ClassVar[str] = "graph"

    def run(self, model: Model, ctx: PassContext) -> None:
        mark = MADE_BY, self.name
        own = {f for f in model.functions.values() if mark in ((p.key, p.value) for p in f.proto.metadata_props)}
        for graph in list(model.open_scopes()):
            if own and graph.root in own:
                continue
            if graph.owner is None or graph.owner.graph is not None:  # the owner may be removed by now
                ctx.scope = graph
                state = model.state
                self.run_graph(graph, ctx)
                if graph.owners and model.state != state:
                    ctx.settled = False
        ctx.scope = None

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        """Change `graph` in place, a single scope."""
        raise NotImplementedError(f"{type(self).__name__} has no run_graph(self, graph, ctx)")


class RewritePass(Pass):
    """A set of rules, applied until a fixed point over all scopes."""

    kind: ClassVar[str] = "rewrite"

    def run(self, model: Model, ctx: PassContext) -> None:
        rules = [r for r in self.rules if r.name not in ctx.disabled_rule]
        driver = Driver(rules, ctx.fuel, self, ctx.observer, ctx.leaves_out if ctx.excluded else None)
        driver.run(model, ctx.left)
        ctx.looked = model.clock, driver.declined  # later changes by the pass itself count as new for its rules
        ctx.record_rules(rules, driver.records)


class DebugPass(Pass):
    """An inspecting pass; any change of the model or its protos is an error (Paddle Lite's debug passes)."""

    kind: ClassVar[str] = "debug"

    def promise(self, model: Model) -> Callable[[], None]:
        from onnxopt.graph.writer import fingerprint

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
        """Inspect `model` without changes."""
        raise NotImplementedError(f"{type(self).__name__} has no inspect(self, model, ctx)")
