"""What an instrument may hook into (TVM Relay's PassInstrument)."""

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
    """Give instances to `PassContext(instruments=[...])` and override what is of interest.

    `before` and `after` are called around every pass, those made of passes too (they have `children`). An override of
    `after` that judges the pass raises PassError, InvariantError or VerificationError: a failure of the pass. Anything
    else that a hook raises becomes an InstrumentError, which names the instrument and the hook.
    """

    watches_rewrites: ClassVar[bool] = False  # set it to have `rewriting` and `spending` called

    def begin(self, model: Model) -> None:
        """A run begins."""

    def end(self, model: Model) -> None:
        """A run ended, or failed."""

    def should_run(self, model: Model, p: Pass) -> bool:
        """False keeps `p` from running as part of a pipeline."""
        return True

    def before(self, model: Model, p: Pass) -> None:
        """`p` is about to run."""

    def after(self, model: Model, p: Pass) -> None:
        """`p` has run."""

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        """A rule is about to rewrite (not `done`: the match is still whole), or has."""

    def spending(self, what: str, at: Value | Node | None) -> None:
        """A pass without rules is about to rewrite, and has taken the fuel; at a value or node, if it says which."""


# What an instrument raises on purpose: of a pass, of a file.
_SAID: Final = (PassError, InvariantError, VerificationError, ModelError, WriteError, InstrumentError)


def tell(instruments: Iterable[Instrument], hook: str, *given: Any) -> None:
    """Call a hook of each of these. Raises InstrumentError."""
    for instrument in instruments:
        ask(f"the instrument {type(instrument).__name__} failed in its hook {hook}", getattr(instrument, hook), *given)


def ask(failure: str, hook: Callable[..., Any], *given: Any) -> Any:
    """What a hook says. Raises InstrumentError, which begins with `failure`."""
    try:
        return hook(*given)
    except _SAID:
        raise
    except BaseException as e:
        if is_no_fault(e):
            raise
        whose = "ONNXOPT_DEBUG=1 shows the traceback" if line_of(e) else "report it"
        raise InstrumentError(f"{failure}: {told(e)}", f"this is a bug there, and not in a pass; {whose}") from e
