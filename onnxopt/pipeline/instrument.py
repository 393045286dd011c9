"""Hooks of instruments (TVM Relay's PassInstrument)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

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

if TYPE_CHECKING:
    from onnxopt.graph import Model, Value
    from onnxopt.graph.node import Node
    from onnxopt.pipeline.base import Pass
    from onnxopt.rewriting import Match, Rule


class Instrument:
    """Base class of instruments: pass instances to `PassContext(instruments=[...])`, and override hooks.

    `before` and `after` are called around every pass, composites (with `children`) included. An `after` that judges the
    pass raises PassError, InvariantError or VerificationError: a failure of the pass. Any other exception in a hook
    becomes an InstrumentError with the names of instrument and hook.
    """

    watches_rewrites: ClassVar[bool] = False  # set to True for calls of `rewriting` and `spending`

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


def tell(instruments: Iterable[Instrument], hook: str, *given: Any) -> None:
    """Call a hook of each instrument. Raises InstrumentError."""
    for instrument in instruments:
        ask(f"the instrument {type(instrument).__name__} failed in its hook {hook}", getattr(instrument, hook), *given)


def ask(failure: str, hook: Callable[..., Any], *given: Any) -> Any:
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
