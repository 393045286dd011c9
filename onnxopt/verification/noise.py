"""Rounding noise of whole outputs, measured by perturbing the last bits of inputs and weights.

If the noise is small, outputs are also computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Final

from onnxopt.verification import VerifyOptions
from onnxopt.verification.pieces.precise import apart, exactly
from onnxopt.verification.programs.program import type_of
from onnxopt.verification.programs.runner import Runner, Values
from onnxopt.verification.rounding import Difference, Draws, difference, is_float, last_bit, worst

_SEEDS: Final = 2  # perturbed sets of weights, and sets of inputs for each


class Noise:
    """The largest change of a model's outputs, by case, relative to the range.

    A case ends when all outputs reach `enough`; all end when output `told` does in the first case.
    """

    def __init__(
        self, runner: Runner, outputs: Sequence[str], enough: Mapping[str, float], told: str, options: VerifyOptions
    ) -> None:
        self._runner, self._options = runner, options
        self._outputs, self._enough, self._told = outputs, enough, told
        self._made = [o for o in outputs if o in runner.program.maker]
        self._nodes = runner.program.cone(outputs, ())

    def of(
        self, feeds: Sequence[Values], made: Sequence[Values] | None, known: Sequence[Mapping[str, float]]
    ) -> list[dict[str, float]]:
        """Return {output: relative change} by case.

        feeds: by case; made: outputs by case (None: computed here); known: earlier results by case.
        """
        found = [{name: Difference(seen.get(name, 0.0), 1.0) for name in self._outputs} for seen in known]
        if not self._is_told(found):
            self._measure(feeds, made, found)
        return [{name: d.relative for name, d in largest.items()} for largest in found]

    def _measure(
        self, feeds: Sequence[Values], made: Sequence[Values] | None, found: list[dict[str, Difference]]
    ) -> None:
        runner, dtype = self._runner, self._options.dtype
        types = {name: type_of(value) for name, value in feeds[0].items()}
        as_it_is = made.__getitem__ if made is not None else self._running(feeds, types)

        for k in range(_SEEDS):
            rng = Draws(self._options.seed, k)
            open_ = [i for i, largest in enumerate(found) if not self._is_enough(largest, self._made)]
            if not open_:
                break
            opened = runner.open(self._nodes, types, self._made, partial(last_bit, rng=rng, dtype=dtype))
            for i in open_:
                for _ in range(_SEEDS):
                    changed = opened.run({name: last_bit(v, rng, dtype) for name, v in feeds[i].items()})
                    for name, value in changed.items():
                        found[i][name] = worst([found[i][name], difference(as_it_is(i)[name], value)])
                    if self._is_enough(found[i], self._made):
                        break
                    if self._is_told(found):
                        return
        for i in (i for i, largest in enumerate(found) if not self._is_enough(largest, self._made) and not dtype):
            exact = exactly(runner, self._made, feeds[i], self._options.memory // 8)
            for name in (n for n in self._made if n in exact and is_float(as_it_is(i)[n])):
                found[i][name] = worst([found[i][name], apart(as_it_is(i)[name], exact[name])])

    def _running(self, feeds: Sequence[Values], types: Mapping[str, str]) -> Callable[[int], Values]:
        opened = self._runner.open(self._nodes, types, self._made)
        return cache(lambda i: opened.run(feeds[i]))

    def _is_told(self, found: Sequence[Mapping[str, Difference]]) -> bool:
        return bool(self._told) and self._is_enough(found[0], [self._told])

    def _is_enough(self, found: Mapping[str, Difference], outputs: Iterable[str]) -> bool:
        return all(found[name].relative >= self._enough.get(name, float("inf")) for name in outputs)
