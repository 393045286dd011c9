"""The context of a run of passes: user settings, state and statistics of the run, cached analyses."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.model import Left
from onnxopt.graph.node import Node
from onnxopt.pipeline.records import Instrument, PipelineReport, Site, call_hook, call_hooks
from onnxopt.pipeline.registry import disabled_requirement
from onnxopt.pipeline.settings import ConfigKey, check_config, check_settings, declare_config, declared, options_by_key
from onnxopt.rewriting import Fuel, RuleReport
from onnxopt.rewriting.driver import Decline

if TYPE_CHECKING:
    from onnxopt.pipeline.base import Pass, PassInfo
    from onnxopt.rewriting import Match, Rule


S = TypeVar("S", Model, Graph)
T = TypeVar("T")


def analysis(compute: Callable[[S], T], subject: S) -> T:
    """Return `compute(subject)`, cached while the model is unchanged."""
    model = subject.model if isinstance(subject, Graph) else subject
    key = compute, subject
    known = model.computed.get(key)
    if known is not None and known[0] == model.state:
        result: T = known[1]
        return result
    found = compute(subject)
    model.computed[key] = model.state, found
    return found


def carry_over(model: Model, preserved: tuple[Callable[..., Any], ...], before: tuple[int, int]) -> None:
    """Update the cache after a pass that began at state `before`: results of `preserved` analyses stay, others go."""
    now = model.state
    if now == before or not model.computed:
        return
    model.computed = {
        key: (now, result)
        for key, (state, result) in model.computed.items()
        if state == now or (state == before and key[0] in preserved)
    }


# Limits of subprocesses that run native code on untrusted models.
MEMORY = declare_config("worker.memory", int, 0, "bytes that a worker may take; 0: half of the machine")
WORK = declare_config("worker.seconds", float, 10.0, "seconds that the workers of a run may take")

Trace = Callable[["Model", "PassInfo", bool], None]
Observer = Callable[["Rule", "Match", bool], None]


@dataclass(eq=False, repr=False)
class PassContext:
    """Settings for the passes run inside its `with` block (TVM Relay's PassContext).

    In a Sequential a pass runs unless disabled, if it is required or its `opt_level` is at most the context's;
    `disabled_rule` removes single rules from their passes. `config` sets declared keys, pass options among them
    (`constant-folding.max-bytes`). `target` is the intended use of the result: a name, or several, preferred first
    (`"arm,npu"`, or a sequence). A pass runs if it is for any of them; `ctx.targets` lists them without a runtime's
    version.

    `trace(model, info, is_before)` is called around every pass. `max_rewrites` limits the number of rewrites.
    `excluded`: single matches to leave out. `allow_domains`: domains whose operators passes may add to a model without
    an import of the domain; None: all.

    Blocks nest, and the innermost counts; each thread and asyncio task has its own. Each run uses a copy, so a context
    may be shared. Raises UsageError for unknown names and keys, and for values of another type.
    """

    opt_level: int = 2
    required_pass: Collection[str] = ()
    disabled_pass: Collection[str] = ()
    disabled_rule: Collection[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    target: str | Sequence[str] = "any"
    instruments: Sequence[Instrument] = ()
    trace: Trace | None = None
    max_rewrites: int | None = None
    excluded: Collection[Site] = ()
    allow_domains: Collection[str] | None = None

    def __post_init__(self) -> None:
        self.targets: tuple[str, ...]
        check_settings(self)
        self.config = check_config(self.config)
        self.excluded = frozenset(self.excluded)
        self._sites: dict[str, list[Site]] = {}  # `excluded` by value
        for site in self.excluded:
            self._sites.setdefault(site.value, []).append(site)
        # State of a run.
        self.fuel = Fuel(self.max_rewrites)
        self.report: PipelineReport | None = None
        self.running = ""  # the running pass
        self.constants = 0  # bytes of all constants, after the last pass that changed the model
        self.rules: dict[str, RuleReport] = {}  # statistics of the running pass
        self.memo: dict[str, Any] = {}  # data kept by a pass between its runs
        self.counted: dict[Pass, dict[str, int]] = {}  # counts of passes without changes in their last run
        self.scope: Graph | None = None  # present scope, for errors
        self.left: Left | None = None  # state in which the running pass last left the model
        self.looked: tuple[int, Mapping[Node, Sequence[str]]] | None = None  # when the pass finished looking: see Left
        self.settled = True  # whether the running pass would find nothing in its own result
        self.history: list[str] = []  # passes run so far
        self.rest: list[tuple[Pass, ...]] = []  # for each enclosing composite the passes still to run
        self.requiring: list[str] = []  # passes whose requirements are being run
        self.in_round = False

    def watch(self, instrument: Instrument) -> None:
        """Add an instrument until the end of the run."""
        self.instruments = (*self.instruments, instrument)

    @property
    def observer(self) -> Observer | None:
        """Calls the hook `rewriting` of the instruments that override it; None if none does."""
        plain = Instrument.rewriting
        watching = [i for i in self.instruments if getattr(i.rewriting, "__func__", None) is not plain]
        return functools.partial(call_hooks, watching, "rewriting") if watching else None

    # -- the block ---------------------------------------------------------------------------------------

    @staticmethod
    def current() -> PassContext:
        """Return the innermost context of the caller, or a default context."""
        stack = _STACK.get()
        return stack[-1] if stack else PassContext()

    def __enter__(self) -> PassContext:
        _STACK.set((*_STACK.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _STACK.set(_STACK.get()[:-1])

    def fork(self) -> PassContext:
        """Return the same settings for another run."""
        return dataclasses.replace(self)

    # -- asked by the manager ----------------------------------------------------------------------------

    def obstacle(self, p: Pass, model: Model) -> str:
        """Return why `p` does not run as part of a pipeline, or an empty string."""
        info = p.info
        if info.name in self.disabled_pass:
            return "disabled"
        if info.opt_level > self.opt_level and info.name not in self.required_pass:
            return f"runs from -O{info.opt_level} on"
        if not p.should_run(model, self):
            return info.obstacle(model, self.targets) or "finds nothing for it in the model"
        if info.required and self.disabled_pass and (missing := disabled_requirement(info, self.disabled_pass)):
            return f"requires {missing}, which is disabled"
        for instrument in self.instruments:
            name = type(instrument).__name__
            if not call_hook(f"the instrument {name} failed in its hook should_run", instrument.should_run, model, p):
                return f"{name} says no"
        return ""

    def configured(self, p: Pass) -> Pass:
        """Return `p` with options from the context's config where `p` has the default."""
        options = [(key, f) for key, f in options_by_key(type(p)).items() if key in self.config] if self.config else []
        changes = {f.name: self.config[key] for key, f in options if getattr(p, f.name) == f.default}
        return p.with_options(**changes) if changes else p

    # -- asked by passes ---------------------------------------------------------------------------------

    def __getitem__(self, key: ConfigKey | str) -> Any:
        """Return the value of a config key, given as declared key or name."""
        key = declared(key) if isinstance(key, str) else key
        return self.config.get(key.name, key.default)

    def analysis(self, compute: Callable[[S], T], subject: S) -> T:
        """Return `compute(subject)` of a model or graph, cached while the model is unchanged.

        A pass with changes lists unaffected functions in `PassInfo(preserves=...)`.
        """
        return analysis(compute, subject)

    def spend(self, what: str, by: int = 1, *, at: Value | Node | None = None, unless: str = "") -> bool:
        """Take fuel for a rewrite of a pass without rules, and count it. Returns False without fuel: do nothing then.

        `at`: the value or node to rewrite, reported by bisection and usable for exclusion. `unless`: the reason to
        decline the rewrite, or empty.
        """
        if at is not None and (reason := unless or (self.excluded and self.leaves_out(at))):
            self.decline(what, reason, repr(at.producer or at if isinstance(at, Value) else at))
            return False
        if not self.fuel.take():
            return False
        self.count(what, by)
        call_hooks(self.instruments, "spending", what, at)
        return True

    def leaves_out(self, at: Value | Node, rule: str = "") -> str:
        """Return why the running pass, or its `rule`, must leave out a value or node; empty if not excluded."""
        values = at.results if isinstance(at, Node) else [at]
        for value in values:
            for site in self._sites.get(value.name, ()):
                if site.name in (rule, self.running) and site.scope in ("", value.graph.path):
                    if self.report is not None and site not in self.report.left_out:
                        self.report.left_out.append(site)
                    return site.reason
        return ""

    def count(self, what: str, by: int = 1) -> None:
        """Count hits of a pass without rules under the name `what`."""
        if what not in self.rules:
            self.rules[what] = RuleReport()
        self.rules[what].hits += by

    def only_looked(self, p: Pass, hits: Mapping[str, int]) -> None:
        """Replace the counts of the last run of `p`, which changed nothing; `hits`: counts before this run."""
        new = {what: rule.hits - hits.get(what, 0) for what, rule in self.rules.items() if rule.hits}
        for what, n in self.counted.get(p, {}).items():
            self.rules[what].hits -= n
        self.counted[p] = new

    def decline(self, what: str, reason: str, example: str) -> None:
        """Record why a pass without rules declined."""
        report = self.rules.setdefault(what, RuleReport())
        report.declined.setdefault(reason, Decline(example)).count += 1

    def record_rules(self, rules: Iterable[Rule], records: Mapping[str, RuleReport]) -> None:
        """Add a driver's statistics of these rules to the running pass; declines are those of the last round."""
        for rule in rules:
            if rule.name not in self.rules:
                self.rules[rule.name] = RuleReport()
        for name, done in records.items():
            report = self.rules[name]
            report.hits += done.hits
            report.nodes += done.nodes
            if done.declined:
                report.declined = done.declined


_STACK: ContextVar[tuple[PassContext, ...]] = ContextVar("onnxopt_pass_context", default=())
