"""What a run of passes shares: the settings users give, and the ledger passes write into."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from onnxopt.graph import Value
from onnxopt.graph.model import Left
from onnxopt.graph.node import Node
from onnxopt.pipeline.analyses import S, T, analysis
from onnxopt.pipeline.config import ConfigKey, check_config, configured, declare_config, declared
from onnxopt.pipeline.instrument import ask, tell
from onnxopt.pipeline.records import PipelineReport, RuleReport
from onnxopt.pipeline.registry import disabled_requirement
from onnxopt.pipeline.settings import check_settings
from onnxopt.pipeline.site import Site
from onnxopt.record import record
from onnxopt.rewriting import Fuel, RuleRecord
from onnxopt.rewriting.driver import Decline

if TYPE_CHECKING:
    from onnxopt.graph import Graph, Model
    from onnxopt.pipeline.base import Pass, PassInfo
    from onnxopt.pipeline.instrument import Instrument
    from onnxopt.rewriting import Match, Rule

# What native code may take where it runs on what a model says, in a process of its own.
MEMORY = declare_config("worker.memory", int, 0, "bytes that a worker may take; 0: half of the machine")
WORK = declare_config("worker.seconds", float, 10.0, "seconds that the workers of a run may take")

Trace = Callable[["Model", "PassInfo", bool], None]
Observer = Callable[["Rule", "Match", bool], None]


@record(eq=False)
class PassContext:
    """Settings for the passes that run inside its `with` block (TVM Relay's PassContext).

    In a Sequential a pass runs when it is not disabled, and is required or its `opt_level` is not above the
    context's; `disabled_rule` takes single rules out of their passes. `config` sets declared keys, options of passes
    among them (`constant-folding.max-bytes`). `target` is what the result is for: a name, or several, the preferred
    first (`"arm,npu"`, or a sequence). A pass runs if it is for one of them; `ctx.targets` has them one by one, without
    the version that a runtime has.
    `trace(model, info, is_before)` is called around every pass. `max_rewrites` stops after so many rewrites.
    `excluded`: single matches that are left out. `allow_domains`: the domains whose operators may enter a model that
    does not import them; None: all.

    Blocks nest, the innermost counts, and each thread and asyncio task has its own. Each run gets a copy of its own, so
    a context may be shared. Raises UsageError for names and keys that nothing has, and values of another type.
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
        self._sites: dict[str, list[Site]] = {}  # of `excluded`, by value
        for site in self.excluded:
            self._sites.setdefault(site.value, []).append(site)
        # The state of one run.
        self.fuel = Fuel(self.max_rewrites)
        self.report: PipelineReport | None = None
        self.running = ""  # the pass that runs now
        self.rules: dict[str, RuleReport] = {}  # of that pass
        self.memo: dict[str, Any] = {}  # what a pass remembers between its runs
        self.counted: dict[Pass, dict[str, int]] = {}  # by those that changed nothing, when they last ran
        self.scope: Graph | None = None  # where a pass is, for errors
        self.left: Left | None = None  # how the pass that runs left the model before
        self.looked: tuple[int, Mapping[Node, Sequence[str]]] | None = None  # when it was done looking: see Left
        self.settled = True  # would the pass that runs find nothing in what it leaves?
        self.history: list[str] = []  # passes run so far
        self.rest: list[tuple[Pass, ...]] = []  # what each composite around the current pass will run after it
        self.requiring: list[str] = []  # passes whose requirements are being met
        self.in_round = False
        self.watching = [i for i in self.instruments if i.watches_rewrites]
        self.observer: Observer | None = functools.partial(tell, self.watching, "rewriting") if self.watching else None

    def watch(self, instrument: Instrument) -> None:
        """Have one more instrument look on, from now until the end of the run."""
        self.instruments = (*self.instruments, instrument)
        if instrument.watches_rewrites:
            self.watching.append(instrument)
            self.observer = functools.partial(tell, self.watching, "rewriting")

    # -- the block ---------------------------------------------------------------------------------------

    @staticmethod
    def current() -> PassContext:
        """The innermost context around the caller; the default one outside any."""
        stack = _STACK.get()
        return stack[-1] if stack else PassContext()

    def __enter__(self) -> PassContext:
        _STACK.set((*_STACK.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _STACK.set(_STACK.get()[:-1])

    def fork(self) -> PassContext:
        """The same settings with a run of its own."""
        return dataclasses.replace(self)

    # -- asked by the manager ----------------------------------------------------------------------------

    def obstacle(self, p: Pass, model: Model) -> str:
        """Why `p` does not run as part of a pipeline; empty if it does."""
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
            if not ask(f"the instrument {name} failed in its hook should_run", instrument.should_run, model, p):
                return f"{name} says no"
        return ""

    def configured(self, p: Pass) -> Pass:
        """`p` with the options that the context's config sets and `p` itself leaves at their defaults."""
        return configured(p, self.config) if self.config else p

    # -- asked by passes ---------------------------------------------------------------------------------

    def __getitem__(self, key: ConfigKey | str) -> Any:
        """The value of a declared config key, or of the one that is called so."""
        key = declared(key) if isinstance(key, str) else key
        return self.config.get(key.name, key.default)

    def analysis(self, compute: Callable[[S], T], subject: S) -> T:
        """`compute(subject)` of a model or graph, or what it gave another pass if nothing changed since.

        A pass that changes the model names in `PassInfo(preserves=...)` the functions whose results stay true.
        """
        return analysis(compute, subject)

    def spend(self, what: str, by: int = 1, *, at: Value | Node | None = None) -> bool:
        """Take fuel for one rewrite of a pass without rules and count it; False when there is none: do nothing.

        `at`: the value, or the node, that is rewritten. It is what bisection names, and what can be left out.
        """
        if at is not None and self.excluded and (reason := self.leaves_out(at)):
            self.decline(what, reason, repr(_node(at) or at))
            return False
        if not self.fuel.take():
            return False
        self.count(what, by)
        tell(self.watching, "spending", what, at)
        return True

    def leaves_out(self, at: Value | Node, rule: str = "") -> str:
        """Why the pass that runs, or its `rule`, is to leave a value or node alone; empty if it need not."""
        values = [v for v in at.outputs if v is not None] if isinstance(at, Node) else [at]
        for value in values:
            for site in self._sites.get(value.name, ()):
                if site.name in (rule, self.running) and site.scope in ("", value.graph.path):
                    if self.report is not None and site not in self.report.left_out:
                        self.report.left_out.append(site)
                    return site.reason
        return ""

    def count(self, what: str, by: int = 1) -> None:
        """A pass that has no rules reports its hits under a name."""
        if what not in self.rules:
            self.rules[what] = RuleReport()
        self.rules[what].hits += by

    def only_looked(self, p: Pass, hits: Mapping[str, int]) -> None:
        """`p`, before which `hits` were, changed nothing: what it counted replaces what it counted the last time."""
        new = {what: rule.hits - hits.get(what, 0) for what, rule in self.rules.items() if rule.hits}
        for what, n in self.counted.get(p, {}).items():
            self.rules[what].hits -= n
        self.counted[p] = new

    def decline(self, what: str, reason: str, example: str) -> None:
        """A pass that has no rules says why it left something alone."""
        report = self.rules.setdefault(what, RuleReport())
        report.declined.setdefault(reason, Decline(example)).count += 1

    def record_rules(self, rules: Iterable[Rule], records: Mapping[str, RuleRecord]) -> None:
        """Add what a driver counted of these rules to the current pass. The last round's declines are those that
        stand."""
        for rule in rules:
            if rule.name not in self.rules:
                self.rules[rule.name] = RuleReport()
        for name, done in records.items():
            report = self.rules[name]
            report.hits += done.hits
            report.nodes += done.nodes
            if done.declined:
                report.declined = done.declined


def _node(at: Value | Node) -> Node | None:
    return at.producer if isinstance(at, Value) else at


_STACK: ContextVar[tuple[PassContext, ...]] = ContextVar("onnxopt_pass_context", default=())
