"""Records of a run: sites of rewrites, statistics of passes and rules, and the hooks of instruments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import (
    InstrumentError,
    InvariantError,
    ModelError,
    PassError,
    VerificationError,
    WriteError,
    is_no_fault,
    line_of,
    told,
)
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.rewriting.driver import RuleReport

if TYPE_CHECKING:
    from onnxopt.graph import Model, Value
    from onnxopt.pipeline.base import Pass
    from onnxopt.rewriting import Match, Rule


WRONG: Final = "it made the result wrong"
UNLOADED: Final = "it kept the result from being loaded"
BY_HAND: Final = "left out: disabled here"


@dataclass(frozen=True, repr=False)
class Site:
    """Where the rule, or pass without rules, `name` rewrites: the producer of `value` in the scope with path `scope`.

    An empty `scope` means any. A replacement keeps its anchor's output, so a site has the same name in every run.
    `reason`: of the exclusion.
    """

    name: str
    value: str
    scope: str = ""
    reason: str = field(default=f"left out: {WRONG}", compare=False)

    @classmethod
    def of(cls, name: str, at: Value | Node | None) -> Site | None:
        """Return the site of `name` at a value, or at a node, identified by its first output."""
        value = next(iter(at.results), None) if isinstance(at, Node) else at
        return cls(name, value.name, value.graph.path) if value is not None else None

    @classmethod
    def parse(cls, text: str) -> Site:
        """Parse `RULE@VALUE`, or `RULE@SCOPE / VALUE`."""
        name, _, rest = text.partition("@")
        scope, _, value = rest.rpartition(" / ")
        return cls(name, value, scope, BY_HAND)

    def __str__(self) -> str:
        scope = f"{self.scope} / " if self.scope not in ("", "main") else ""
        return f"{self.name}@{scope}{self.value}"


# -- reports: plain data, serializable to JSON --------------------------------------------------------------------


@dataclass(eq=False)
class PassReport:
    """A pass over all its runs. `nodes`: nodes removed (negative: added). `bytes`: bytes of constants removed.

    `changed`: whether the pass changed the model; without changes its counts are no rewrites.
    """

    name: str
    changed: bool = False
    runs: int = 0
    seconds: float = 0.0
    nodes: int = 0
    bytes: int = 0
    rules: dict[str, RuleReport] = field(default_factory=dict)

    @property
    def hits(self) -> int:
        return sum(r.hits for r in self.rules.values())


@dataclass(eq=False)
class PipelineReport:
    """All passes of a run, in order of first execution; passes not run, with the reason.

    `rounds`: rounds of a Fixpoint. `warnings`: oddities of the model, suppressed check failures. `left_out`: excluded
    matches that occurred.
    """

    rounds: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    seconds: float = 0.0
    passes: list[PassReport] = field(default_factory=list, repr=False)
    skipped: dict[str, str] = field(default_factory=dict, repr=False)
    warnings: list[str] = field(default_factory=list)
    tolerances: dict[str, float] = field(default_factory=dict)  # of passes that change numbers on purpose
    left_out: list[Site] = field(default_factory=list)

    def of(self, name: str) -> PassReport:
        """Return the report of the pass `name`, created on first use."""
        for report in self.passes:
            if report.name == name:
                return report
        self.passes.append(PassReport(name))
        return self.passes[-1]

    def leave_out(self, name: str, why: str) -> None:
        """Record that a pass is skipped, unless it ran before."""
        if name in self.skipped or all(report.name != name for report in self.passes):
            self.skipped[name] = why

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


# -- hooks of instruments -----------------------------------------------------------------------------------------


class Instrument:
    """Base class of instruments: pass instances to `PassContext(instruments=[...])`, and override hooks.

    `before` and `after` are called around every pass, composites (with `children`) included. An `after` that judges the
    pass raises PassError, InvariantError or VerificationError: a failure of the pass. Any other exception in a hook
    becomes an InstrumentError with the names of instrument and hook.
    """

    def begin(self, model: Model) -> None:
        """Called when a run begins."""

    def end(self, model: Model) -> None:
        """Called when a run ended or failed."""

    def should_run(self, model: Model, p: Pass) -> bool:
        """Return False to skip `p` in pipelines."""
        return True

    def before(self, model: Model, p: Pass) -> None:
        """Called before `p` runs."""

    def after(self, model: Model, p: Pass) -> None:
        """Called after `p` ran."""

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        """Called before a rule's rewrite (`done` False, the match is intact) and after it."""

    def spending(self, what: str, at: Value | Node | None) -> None:
        """Called before a rewrite of a pass without rules, with fuel taken; `at`: the value or node, if given."""


# Errors raised by instruments on purpose.
_SAID: Final = (PassError, InvariantError, VerificationError, ModelError, WriteError, InstrumentError)


def call_hooks(instruments: Iterable[Instrument], hook: str, *given: Any) -> None:
    """Call a hook of each instrument. Raises InstrumentError."""
    for instrument in instruments:
        call_hook(
            f"the instrument {type(instrument).__name__} failed in its hook {hook}", getattr(instrument, hook), *given
        )


def call_hook(failure: str, hook: Callable[..., Any], *given: Any) -> Any:
    """Return the result of a hook. Raises InstrumentError, whose message starts with `failure`."""
    try:
        return hook(*given)
    except _SAID:
        raise
    except BaseException as e:
        if is_no_fault(e):
            raise
        whose = "ONNXOPT_DEBUG=1 shows the traceback" if line_of(e) else "report it"
        raise InstrumentError(f"{failure}: {told(e)}", f"this is a bug there, and not in a pass; {whose}") from e
