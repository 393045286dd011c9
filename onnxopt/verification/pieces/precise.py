"""Test whether a difference is rounding: both pieces also compute in float64 from the same numbers.

A64 and B64, the results in float64, contain almost no rounding. If A64 and B64 differ, A and B are different functions,
except for B's merged constants, which had to be rounded: the last bits of constants that A does not have are perturbed.
A B equal in exact arithmetic may still be useless in float32, so its float32 result must be close to B64, too.

If A's float32 result is far from A64, or A adds the constant that rounds to integers, rounding is intended, and the
test fails. docs/judge.md lists the conditions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from onnx import NodeProto

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.model.operators import WINDOWS, having
from onnxopt.verification.pieces.noise import Channels, are_equal, is_discrete
from onnxopt.verification.pieces.paths import is_coarse
from onnxopt.verification.pieces.replay import Replay
from onnxopt.verification.programs.program import Program, types_of
from onnxopt.verification.programs.runner import Opened, Prepare, Runner
from onnxopt.verification.programs.stream import size_of
from onnxopt.verification.programs.transforms import as_double, is_sum, narrows, widening, with_sums
from onnxopt.verification.rounding import (
    EPSILON,
    NOISE,
    Difference,
    Draws,
    are_integers,
    difference,
    is_exact,
    is_float,
    masked,
    unexplained,
    worst,
)
from onnxopt.verification.run import Failed

_SAMPLES: Final = 4
_MAX_ROUNDING_SHARE: Final = 2.0**-7  # relative to the range: larger effects of A's rounding are intended
_FAR_BESIDE: Final = 2.0**-12  # relative to the operands, after cancellation
_LOST: Final = 2.0**-8  # relative to the range: loss of a kernel in sums
_ROUNDERS: Final = (2.0**22, 2.0**24)  # range of constants that round a float32 to an integer when added
_BESIDE: Final = 2.0**-4  # relative distance of numbers nearby, with independent rounding
_FEW_JUMPS: Final = 2.0**-6  # share of elements that A's rounding may decide
_SLOW: Final = (WINDOWS - having("global") - {"Conv"}) | having("recurrent") | {"Col2Im"}
_WORK: Final = 1 << 29  # multiplications by slow operators in the reference evaluator
_LIGHT: Final = 1 << 24  # elements in the reference evaluator
_NODES: Final = 1000  # nodes in the reference evaluator

_Digest = tuple[int, int]
_Change = Callable[[Any], Any]


def is_rounding(
    replay: Replay,
    value: str,
    differences: Sequence[Difference],
    noise: Sequence[Difference],
    cuts: Collection[str],
    share: float,
) -> bool:
    """Return whether rounding explains the differences of B's value, computed from `cuts`, from A's.

    By few roundings (`share` of the range), noise (by case; () if unknown), or float64, unless kernels are missing or
    memory is short.
    """
    if not (cases := unexplained(differences, noise, share)):
        return True
    original, of, dtype = replay.original, replay.pairs.of, _computed_in(replay.kind(value))
    if not dtype or replay.dtype:
        return False
    here = original.everywhere(of.get(r, r) for r in cuts)
    known = {r for r in cuts if of.get(r, r) in here}
    reads = replay.program.entries(replay.program.cone([value], known), known)
    try:
        a = _Part(original.runner, [of[value]], here, original.values, dtype, replay.memory // 8)
        feeds = [{r: replay.fed_as(r, i) for r in reads} for i in range(len(original.values))]
        b = _Part(replay.runner, [value], set(reads), feeds, dtype, replay.memory // 8)
        return _Question(replay, value, a, b, share).answer(cases)
    except (Failed, KeyError):
        return False


def _computed_in(kind: str) -> str:
    """Return the type of floats behind values of a type, if known."""
    jumps = is_discrete(kind) and not is_coarse(kind)
    return {"tensor(float)": "float32", "tensor(float16)": "float16"}.get(kind, "float32" if jumps else "")


def exactly(runner: Runner, wanted: Sequence[str], feeds: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return values computed in float64 from the feeds; {} if kernels are missing. most: bytes of feeds and weights."""
    try:
        part = _Part(runner, wanted, feeds.keys(), [feeds], "float32", most)
        return part.wide(as_double).run(_widened(feeds, "float32"))
    except Failed:
        return {}


class _Part:
    """The piece of a model that makes the wanted values, in its own precision and in float64."""

    def __init__(
        self,
        runner: Runner,
        wanted: Sequence[str],
        fed: Collection[str],
        cases: Sequence[Mapping[str, Any]],
        dtype: str,
        most: int,
    ) -> None:
        """Find the nodes and cases. `most`: bytes. Raises Failed."""
        self.runner, self.wanted, self.dtype = runner, wanted, dtype
        self._neutral = replace(runner, label="either model in float64")  # a crash is no fault of either model
        program = runner.program
        self.nodes = program.cone(wanted, fed)
        reads = program.entries(self.nodes, fed)
        if not program.random.isdisjoint(self.nodes) or any(r not in fed for r in reads) or not self.nodes:
            raise Failed("it is not made of what is known")
        self.cases = [{r: case[r] for r in reads} for case in cases]
        self.constants: dict[_Digest, bool] = {}  # by digest: whether the constant is exact
        self.has_rounder = False
        self._largest = max(self.cases, key=lambda case: sum(map(size_of, case.values())))
        if 2 * (sum(map(size_of, self._largest.values())) + program.weight(self.nodes)) > most:
            raise Failed("it is large")

    def narrow(self) -> Opened:
        """Return the piece in its own precision."""
        return self.runner.open(self.nodes, types_of(self.cases[0]), self.wanted)

    def summed(self) -> Opened:
        """Return the piece with sums in float64."""
        return self._open(self.cases[0], with_sums(self.dtype))

    def wide(self, change: _Change | None = None) -> Opened:
        """Return the piece in float64. `change`: converts constants."""
        return self._open(_widened(self.cases[0], self.dtype), widening(self.dtype, change or self._learn))

    def _open(self, case: Mapping[str, Any], prepare: Prepare) -> Opened:
        """Return the piece, in the reference evaluator if a kernel is missing and work is little."""
        try:
            return self._neutral.open(self.nodes, types_of(case), self.wanted, prepare=prepare)
        except Failed:
            if self._neutral.reference or not _is_light(self.runner.program, self.nodes, self._largest):
                raise
        self._neutral = replace(self._neutral, reference=True)
        return self._open(case, prepare)

    def run(self, opened: Opened, case: Mapping[str, Any]) -> Any:
        """Return the first wanted value in a case."""
        return opened.run(case)[self.wanted[0]]

    def run_wide(self, opened: Opened, case: Mapping[str, Any]) -> Any:
        """Return the first wanted value in a case, by a piece in float64."""
        return self.run(opened, _widened(case, self.dtype))

    def having(self, is_one: Callable[[NodeProto], bool]) -> bool:
        """Return whether a node satisfies `is_one`."""
        return any(map(is_one, self.runner.program.at(self.nodes)))

    def _learn(self, array: Any) -> Any:
        self.constants[_digest(array)] = is_exact(array)
        sizes = np.abs(array)
        low, high = _ROUNDERS
        self.has_rounder |= self.dtype == "float32" and bool(((sizes >= low) & (sizes <= high)).any())
        return as_double(array)


class _Question:
    """Comparison of a value in A and B. Raises Failed."""

    def __init__(self, replay: Replay, value: str, a: _Part, b: _Part, share: float) -> None:
        self.a, self.b, self.share, self.seed = a, b, share, replay.seed
        self.epsilon, self._fine = EPSILON[a.dtype], replay.fine
        self._wide = a.wide(), b.wide()  # first, as kernels may be missing
        self.theirs = replay.run([value], b.cases[0].keys())[value]
        view = replay.hold(value, self.theirs, 0.0)[2]
        self._seen = (lambda v, i: v) if view is None else view
        self.mine = [self._seen(v, i) for i, v in enumerate(replay.mine(value))]
        self._are_steps = replay.are_steps(value)
        self._hidden: Any = None  # places of a mask, ignored

    def answer(self, cases: Collection[int]) -> bool:
        """Return whether all cases agree. Raises Failed."""
        a, b = self.a, self.b
        if a.has_rounder and not b.has_rounder:
            return False
        for i in cases:
            self._hidden = None
            exact_x, exact_y = (p.run_wide(opened, p.cases[i]) for p, opened in zip((a, b), self._wide))
            every = self.mine[i], self.theirs[i], self._seen(exact_x, i), exact_y
            jumps = not is_float(every[0]) or self._are_steps or all(map(are_integers, every[:2]))
            agree = self._elements if jumps else self._numbers
            if not _are_alike(*every) or not agree(i, *every):
                return False
        return True

    def _numbers(self, case: int, x: Any, y: Any, exact_x: Any, exact_y: Any) -> bool:
        found = apart(x, y)
        if found.note:
            return False
        # A mask equal in both hides the scores added to it.
        self._hidden = masked(x) if found.beside == found.largest and np.isfinite(x).all() else None
        x, y, exact_x, exact_y = map(self._left, (x, y, exact_x, exact_y))
        off = apart(x, exact_x)
        if off.note or self._is_far(case, off):
            return False
        if not self._channels_agree(case, x, y, exact_x, exact_y):
            return False
        same = apart(exact_x, exact_y)
        if not same.within(self.share):
            constants = worst([apart(exact_y, values) for values in self._moved(case)])
            if not same.explained(constants, 1.0):
                return False
        return self._is_own(case, y, exact_y, off)

    def _is_far(self, case: int, off: Difference) -> bool:
        """Return whether a difference from float64 is far beyond rounding, of the result and of the operands."""
        operands = (float(np.abs(v).max(initial=0)) for v in self.a.cases[case].values() if is_float(v))
        return off.largest > max(_MAX_ROUNDING_SHARE * off.span, _FAR_BESIDE * max(operands, default=0.0))

    def _is_own(self, case: int, y: Any, exact_y: Any, off: Difference) -> bool:
        """Return whether B's own rounding explains its difference from float64. `off`: the difference in A."""
        own = apart(exact_y, y)
        if own.within(self.share) or own.explained(off) or own.explained(near := self._near(case, off)):
            return True
        if own.relative > _LOST or not self.b.having(is_sum):
            return False
        own = apart(exact_y, self.b.run(self.b.summed(), self.b.cases[case]))
        return own.within(self.share) or own.explained(near)

    def _channels_agree(self, case: int, x: Any, y: Any, exact_x: Any, exact_y: Any) -> bool:
        """Return whether small rows and channels agree.

        In float64 within last bits of B's constants, in B's own type within A's rounding.
        """
        pairs = (exact_x, exact_y), (exact_y, y)
        function, own = (Channels(*pair, self.share, fine=self._fine) for pair in pairs)
        own.see(exact_x, x)
        if function.any:
            for values in self._moved(case):
                function.see(exact_y, values)
        return not function.any and not own.any

    def _elements(self, case: int, x: Any, y: Any, exact_x: Any, exact_y: Any) -> bool:
        share = self.share if self._are_steps else 0.0
        if np.count_nonzero(~are_equal(exact_x, x, share)) > 1 + _FEW_JUMPS * x.size:
            return False
        left = ~are_equal(x, y, share) & ~are_equal(exact_x, y, share)
        if not left.any():
            return True
        if self._is_merged_exactly:  # B rounded no constant
            return False
        for values in self._moved(case):
            if values.shape == x.shape:
                left = left & ~are_equal(values, x, share)
        return not left.any()

    @property
    def _is_merged_exactly(self) -> bool:
        """Whether all constants of A absent in B are exact."""
        return all(exact for digest, exact in self.a.constants.items() if digest not in self.b.constants)

    def _moved(self, case: int) -> list[Any]:
        """Return samples of B in float64 with last bits of constants absent in A perturbed, as far as noise is allowed.

        Empty if B, unlike A, rounds to narrower floats, where a last bit is a step.
        """
        found: list[Any] = []
        is_narrow = partial(narrows, dtype=self.a.dtype)
        if self.b.having(is_narrow) and not self.a.having(is_narrow):
            return found
        known, merged = self.a.constants, self._is_merged_exactly
        for k in range(_SAMPLES):
            rng = Draws(self.seed, k)

            def change(array: Any, rng: Draws = rng) -> Any:
                wide = as_double(array)
                if _digest(array) in known or (merged and is_exact(array)):
                    return wide
                return wide + wide * np.where(rng.flags(array.shape), 1.0, -1.0) * NOISE * self.epsilon

            found.append(self._left(self.b.run_wide(self.b.wide(change), self.b.cases[case])))
        return found

    def _left(self, value: Any) -> Any:
        """Return a value with places of a mask set to 0."""
        alike = self._hidden is not None and value.shape == self._hidden.shape
        return np.where(self._hidden, value.dtype.type(0), value) if alike else value

    def _near(self, case: int, off: Difference) -> Difference:
        """Return the largest difference of A's float32 from float64, on these numbers, exact by chance, or nearby.

        Signs stay equal, and magnitudes similar.
        """
        narrow, wide, found = self.a.narrow(), self.a.wide(), [off]
        for k in range(_SAMPLES):
            others = {name: _near(v, Draws(self.seed, k)) for name, v in self.a.cases[case].items()}
            found.append(apart(self._left(self.a.run(narrow, others)), self._left(self.a.run_wide(wide, others))))
        return max((d for d in found if not d.note), key=lambda d: d.largest)


def _near(value: Any, rng: Draws) -> Any:
    if not is_float(value) or is_exact(value):
        return value
    with np.errstate(all="ignore"):
        return (value * (1 + _BESIDE * (rng.uniform(value.shape) - 0.5))).astype(value.dtype)


def apart(a: Any, b: Any) -> Difference:
    """Return the difference of values in the narrower of their types; overflow gives infinity."""
    dtype = min(a.dtype, b.dtype, key=lambda d: d.itemsize) if a.dtype != b.dtype else a.dtype
    with np.errstate(all="ignore"):
        return difference(a.astype(dtype), b.astype(dtype))


def _are_alike(*values: Any) -> bool:
    """Return whether all are tensors of equal shape and kind."""
    first = values[0]
    return all(
        isinstance(v, np.ndarray) and v.shape == first.shape and element_kind(v) == element_kind(first) for v in values
    )


def _is_light(program: Program, nodes: Sequence[int], case: Mapping[str, Any]) -> bool:
    """Return whether the reference evaluator has little work."""
    numbers, weights = sum(map(size_of, case.values())) // 4, program.weight(nodes) // 4
    if not program.kinds(nodes).isdisjoint(_SLOW):
        return numbers * max(weights, 1) <= _WORK
    return numbers + weights <= _LIGHT and len(nodes) <= _NODES


def _widened(case: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    def wide(value: Any) -> Any:
        if isinstance(value, list):
            return [wide(v) for v in value]
        return value.astype(np.float64) if value.dtype.name == dtype else value

    return {name: wide(value) for name, value in case.items()}


def _digest(array: Any) -> _Digest:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data), array.size
