"""Search for inputs accepted by a model, as a file does not declare accepted sizes and integers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from onnxopt.verification.inputs.cases import Recipe, Trial
from onnxopt.verification.inputs.datasets import Data, bound_dims
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.values import AXES, KNOWN, MODES, Case, InputMaker, Unsupported, says_lengths
from onnxopt.verification.inputs.wide import WIDE
from onnxopt.verification.run import is_about_types, is_starved, reason
from onnxopt.worker.serving import Refused

_SECONDS: Final = 10.0
_MAX_BYTES: Final = 1 << 30
_MAX_RETRIED_BYTES: Final = 1 << 26  # bytes; a failure with as many is not repeated with more
_ENOUGH: Final = 8  # failed attempts independent of sizes
_TRIED: Final = 24  # attempts without success, or `_ENOUGH` with the same message
_SHORT: Final = 0.5  # seconds of search afterwards
_MAX_EVALUATED_BYTES: Final = 1 << 20  # bytes, in place of `_MAX_RETRIED_BYTES`, for an evaluator in Python


class Search:
    """Budget for all cases of an original: `seconds` of failed attempts, and inputs of at most `most` bytes.

    An attempt counts by the smaller of wall time and CPU time, so neither load on the machine nor many threads shorten
    the search. After many attempts without success, the budget shrinks.
    """

    def __init__(self, seconds: float = _SECONDS, most: int = _MAX_BYTES) -> None:
        self.seconds = seconds
        self.most = most
        self.spent = 0.0
        self.hopeless = 0
        self.taken = False
        self._tried = self._alike = 0
        self._said = ""
        self.why = f" after {seconds:g} s"
        self.step = _MAX_RETRIED_BYTES  # bytes of inputs in excess of the smallest failed attempt

    def slow_down(self) -> None:
        """Reduce the budget for a slow engine, which rejects most models rejected by a runtime."""
        self.seconds, self.step = min(self.seconds, 2 * _SHORT), _MAX_EVALUATED_BYTES

    @property
    def ended(self) -> bool:
        """Whether the budget is used up."""
        return self.spent > self.seconds

    @staticmethod
    def begin() -> tuple[float, float]:
        """Return the start of an attempt, for `spend`."""
        return time.monotonic(), time.process_time()

    def spend(self, began: tuple[float, float]) -> None:
        """Count a failed attempt."""
        self.spent += min(time.monotonic() - began[0], time.process_time() - began[1])

    def fail(self, said: str) -> None:
        """Record the message of a failed attempt."""
        self._tried += 1
        self._alike = self._alike + 1 if said == self._said else 1
        self._said = said
        if not (self.taken or self.ended) and (self._tried == _TRIED or self._alike == _ENOUGH):
            self.seconds = min(self.seconds, _SHORT)
            self.why = f" after {self.seconds:g} s"

    def end(self, why: str) -> None:
        """End the search. `why`: suffix of the message."""
        self.spent, self.why = self.seconds + 1, why


def feed(
    run: Callable[[dict[str, Any]], Any],
    plan: Plan,
    recipe: Recipe,
    data: Data,
    choices: Iterable[dict[str, int]],
    seed: int = 0,
    label: str = "A",
    search: Search | None = None,
) -> tuple[Case, Any]:
    """Return (first accepted case of a recipe, result of `run`).

    choices: sizes of dynamic dims, tried in turn, except those fixed by `data`, whose values are used unchanged. Raises
    Refused.
    """
    search = search or Search()
    why = ""
    large = 0  # least bytes of a rejected size
    least = 0  # least bytes tried
    maker = InputMaker(plan, data.inputs, seed)
    bound = bound_dims(plan, data.inputs)
    modes = WIDE if recipe.wide else MODES if any("int" in i.kind for i in plan.inputs) else MODES[:1]
    if not recipe.wide and any(map(says_lengths, plan.inputs)):
        modes = (*modes, *AXES)
    if recipe.amplified(plan):
        modes = (*WIDE, *modes)
    if any(i.kind == "string" and i.use.words for i in plan.inputs):
        modes = (*modes, KNOWN)
    tried: list[tuple[dict[str, int], Sequence[str]]] = []
    for choice, some in _in_order(choices, modes, plan, recipe):
        dims = choice | bound
        if (dims, some) in tried:
            continue
        tried.append((dims, some))
        size = maker.bytes(dims)
        if size > search.most:
            large = min(large or size, size)
            continue
        least = min(least or size, size)
        if why and size > least + search.step:
            continue
        for mode, daring in itertools.product(some, (True, False) if recipe.is_daring(plan) else (False,)):
            if why and search.ended:
                raise Refused(f"{label} does not take it: {why}; no others were tried{search.why}")
            began = search.begin()
            try:
                case = maker.fill(recipe, dims, mode, daring=daring)
            except Unsupported as e:
                raise Refused(str(e)) from e
            case.feeds |= {name: value for name, value in data.inputs.items() if name not in case.feeds}
            try:
                made = run(case.feeds)
                search.taken = True
                return case, made
            except Exception as e:
                why = reason(e)
                search.fail(why)
                if is_starved(e):  # further sizes are larger, and further cases as large
                    search.end("")
                search.hopeless += is_about_types(e)
                if search.hopeless == _ENOUGH:
                    search.end(", as sizes do not matter to it")
                refuses = isinstance(choice, Trial) and not isinstance(e, Refused)
            search.spend(began)
            if refuses:
                break
    if not why and large:
        raise Refused(f"{label} asks for inputs of {_gib(large)}, and {_gib(search.most)} are made (--verify-memory)")
    raise Refused(f"{label} does not take it: {why}" if why else f"{label} has no size for it")


def _in_order(
    choices: Iterable[dict[str, int]], modes: Sequence[str], plan: Plan, recipe: Recipe
) -> Iterator[tuple[dict[str, int], Sequence[str]]]:
    """Yield (sizes, modes of integers) to try.

    If an integer decides which part of the model runs, all sizes are tried with its comparands first: further integers
    may select a part that accepts anything, or does nothing.
    """
    decide = any(i.compared and all(d == 1 for d in i.shape) for i in plan.inputs)
    if not (decide and recipe.drawn and modes[: len(MODES)] == MODES):
        yield from ((choice, modes) for choice in choices)
        return
    first, again = itertools.tee(choices)
    yield from ((choice, modes[:1]) for choice in first)
    yield from ((choice, modes[1:]) for choice in again)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
