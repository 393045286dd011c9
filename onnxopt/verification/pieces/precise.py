"""Is a difference rounding? Both pieces say so themselves, when they compute in float64 from the same numbers.

What A and B make there, A64 and B64, has next to no rounding in it. Where A64 and B64 differ, the two are not the same
function, but for what B had to round: its constants. So these (not those of A, which are what they are) are moved by
their last bits, and what that does is allowed.

That alone would excuse a B that is right on paper and useless in float32. So B's own float32 may be no further from B64
than a few roundings, or a few times what A's is from A64, on these numbers and on others near them. But how exactly a
sum is taken is up to a runtime's kernel: more is forgiven where it would not be there if its sums, and nothing else,
were taken in float64 and rounded once. E[x²] - E[x]² would be off, still. What overflows or is no number in one of the
two only is never rounding.

And where A's float32 is far from A64, or adds the number that rounds to integers, its roundings are what it means.
What is discrete, floats that are integers, and what is dequantized agree element by element: B has what A64 has, or the
last bits of B's constants decide, which were rounded when those of A were merged.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from onnxopt.element_types import element_kind
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.numbers.rounding import (
    EPSILON,
    NOISE,
    Difference,
    difference,
    is_float,
    masked,
    worst,
)
from onnxopt.verification.numbers.shaken import are_integers, is_exact
from onnxopt.verification.pieces.channels import Channels
from onnxopt.verification.pieces.doubled import as_double, is_sum, narrows, widening, with_sums
from onnxopt.verification.pieces.noise import are_equal, is_discrete
from onnxopt.verification.pieces.paths import is_coarse
from onnxopt.verification.pieces.replay import Replay
from onnxopt.verification.programs.program import Program, type_of
from onnxopt.verification.programs.runner import Failed, Opened, Prepare, Runner
from onnxopt.verification.programs.stream import size_of

_SAMPLES: Final = 4
_FAR: Final = 2.0**-7  # of the range, that A's roundings may change: of more, they are meant;
_FAR_BESIDE: Final = 2.0**-12  # of what it is made of, where next to nothing is left of that
_LOST: Final = 2.0**-8  # of the range, that a kernel may lose in sums
_ROUNDERS: Final = (2.0**22, 2.0**24)  # added to a float32, such a number rounds it to an integer
_BESIDE: Final = 2.0**-4  # by so much the numbers near these differ from them: other roundings
_FEW_JUMPS: Final = 2.0**-6  # of the elements, that A's roundings may decide
_SLOW: Final = ("Conv", "ConvTranspose", "AveragePool", "LpPool", "MaxPool", "LSTM", "GRU", "RNN", "Col2Im")
_WORK: Final = 1 << 29  # products of what is slow in the reference evaluator
_LIGHT: Final = 1 << 22  # numbers,
_NODES: Final = 100  # and nodes of what else is run there

_Digest = tuple[int, int]
_Change = Callable[[Any], Any]


def is_rounding(
    replay: Replay,
    value: str,
    cases: Collection[int],
    cuts: Collection[str],
    cuts_of_a: Collection[str],
    share: float,
    *,
    seed: int,
    memory: int,
) -> bool:
    """Is what B makes of `cuts` in these cases the same as A's `value`, but for roundings? `share`: of its range, what
    few of them do.

    False where there are no kernels for that, or it would take more than its share of `memory`.
    """
    kind = replay.kind(value)
    jumps = is_discrete(kind) and not is_coarse(kind)
    dtype = {"tensor(float)": "float32", "tensor(float16)": "float16"}.get(kind, "float32" if jumps else "")
    if not dtype or replay.dtype:
        return False
    original, of = replay.original, replay.pairs.of
    here = {r for r in cuts_of_a if all(r in known for known in original.values)}
    try:
        a = _Part(original.runner, of[value], here, original.values, dtype, memory // 8)
        known = {r for r in cuts if of.get(r, r) in here}
        reads = replay.program.entries(replay.program.cone([value], known), known)
        given = {r: (replay.mine(r), replay.views.get(r)) for r in reads}
        feeds = [
            {r: mine[i] if view is None else view(mine[i], i) for r, (mine, view) in given.items()}
            for i in range(len(original.values))
        ]
        b = _Part(replay.runner, value, given.keys(), feeds, dtype, memory // 8)
        return _Question(replay, value, a, b, share, seed).answer(cases)
    except (Failed, KeyError):
        return False


def exactly(runner: Runner, wanted: Sequence[str], feeds: Mapping[str, Any], most: int) -> dict[str, Any]:
    """These values in float64, where nothing else than the feeds is known; none where that takes more than so many
    bytes, or there are no kernels."""
    nodes = runner.program.cone(wanted, ())
    if 2 * runner.program.weight(nodes) > most or not runner.program.random.isdisjoint(nodes):
        return {}
    wide = _widened(feeds, "float32")
    types = {name: type_of(value) for name, value in wide.items()}
    for reference in (False, *([True] if _is_light(runner.program, nodes, feeds) else [])):
        try:
            engine = _neutral(runner, reference=reference)
            return engine.open(nodes, types, wanted, prepare=widening("float32", as_double)).run(wide)
        except Failed:
            continue
    return {}


class _Part:
    """What makes a value of the same numbers in one of the two models, in its own precision and in float64.

    `constants`: of each, by what it is, whether it is exact.
    """

    def __init__(
        self,
        runner: Runner,
        value: str,
        fed: Collection[str],
        cases: Sequence[Mapping[str, Any]],
        dtype: str,
        most: int,
    ) -> None:
        """`most`: bytes. Raises Failed."""
        self.runner, self.value, self.dtype = runner, value, dtype
        program = runner.program
        self.nodes = program.cone([value], fed)
        reads = program.entries(self.nodes, fed)
        if not program.random.isdisjoint(self.nodes) or any(r not in fed for r in reads) or not self.nodes:
            raise Failed("it is not made of what is known")
        self.cases = [{r: case[r] for r in reads} for case in cases]
        self.constants: dict[_Digest, bool] = {}
        self.has_rounder = False
        self._largest = max(self.cases, key=lambda case: sum(map(size_of, case.values())))
        if 2 * (sum(map(size_of, self._largest.values())) + program.weight(self.nodes)) > most:
            raise Failed("it is large")
        self._reference = False

    def narrow(self) -> Opened:
        return self.runner.open(self.nodes, self._types(self.cases[0]), [self.value])

    def summed(self) -> Opened:
        """With its sums in float64."""
        return self._open(self.cases[0], with_sums(self.dtype))

    def wide(self, change: _Change | None = None) -> Opened:
        """In float64. `change`: of the constants."""
        return self._open(_widened(self.cases[0], self.dtype), widening(self.dtype, change or self._learn))

    def _open(self, case: Mapping[str, Any], prepare: Prepare) -> Opened:
        """In the reference evaluator where a kernel is missing, if that is not long."""
        types = self._types(case)
        if not self._reference:
            try:
                return _neutral(self.runner).open(self.nodes, types, [self.value], prepare=prepare)
            except Failed:
                if not _is_light(self.runner.program, self.nodes, self._largest):
                    raise
            self._reference = True
        return _neutral(self.runner, reference=True).open(self.nodes, types, [self.value], prepare=prepare)

    def run(self, opened: Opened, case: Mapping[str, Any]) -> Any:
        return opened.run(case)[self.value]

    def run_wide(self, opened: Opened, case: Mapping[str, Any]) -> Any:
        return self.run(opened, _widened(case, self.dtype))

    @property
    def sums(self) -> bool:
        return any(is_sum(self.runner.program.nodes[i]) for i in self.nodes)

    @property
    def narrows(self) -> bool:
        return any(narrows(self.runner.program.nodes[i], self.dtype) for i in self.nodes)

    def _types(self, case: Mapping[str, Any]) -> dict[str, str]:
        return {name: type_of(value) for name, value in case.items()}

    def _learn(self, array: Any) -> Any:
        self.constants[_digest(array)] = is_exact(array)
        sizes = np.abs(array)
        low, high = _ROUNDERS
        self.has_rounder |= self.dtype == "float32" and bool(((sizes >= low) & (sizes <= high)).any())
        return as_double(array)


class _Question:
    """The same value in both. Raises Failed."""

    def __init__(self, replay: Replay, value: str, a: _Part, b: _Part, share: float, seed: int) -> None:
        self.a, self.b, self.share, self.seed = a, b, share, seed
        self.epsilon, self._fine = EPSILON[a.dtype], replay.fine
        self._wide = a.wide(), b.wide()  # first: there may be no kernels
        self.theirs = replay.run([value], b.cases[0].keys())[value]
        view = replay.hold(value, self.theirs, 0.0)[2]
        self._seen = (lambda v, i: v) if view is None else view
        self.mine = [self._seen(v, i) for i, v in enumerate(replay.mine(value))]
        self._are_steps = replay.are_steps(value)
        self._hidden: Any = None  # where a mask stands, which counts for nothing

    def answer(self, cases: Collection[int]) -> bool:
        """Raises Failed."""
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
        # What a mask, the same in both, does with the scores it is added to is not asked: beside it nothing is left.
        self._hidden = masked(x) if found.beside == found.largest and np.isfinite(x).all() else None
        x, y, exact_x, exact_y = map(self._left, (x, y, exact_x, exact_y))
        off = apart(x, exact_x)
        if off.note:
            return False
        beside = max((float(np.abs(v).max(initial=0)) for v in self.a.cases[case].values() if is_float(v)), default=0.0)
        if off.largest > max(_FAR * off.span, _FAR_BESIDE * beside):
            return False
        if not self._channels_agree(case, x, y, exact_x, exact_y):
            return False
        same, own = apart(exact_x, exact_y), apart(exact_y, y)
        if not same.within(self.share) and not same.explained(self._constants(case, exact_y), 1.0):
            return False
        if own.within(self.share) or own.explained(off) or own.explained(near := self._near(case, off)):
            return True
        if own.relative > _LOST or not self.b.sums:
            return False
        own = apart(exact_y, self.b.run(self.b.summed(), self.b.cases[case]))
        return own.within(self.share) or own.explained(near)

    def _channels_agree(self, case: int, x: Any, y: Any, exact_x: Any, exact_y: Any) -> bool:
        """Is no row or channel far off that is small beside the others: in float64 no further than the last bits of B's
        constants do, in its own type than A's?"""
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
        if self._is_merged_exactly:  # there was nothing that B had to round
            return False
        for values in self._moved(case):
            if values.shape == x.shape:
                left = left & ~are_equal(values, x, share)
        return not left.any()

    @property
    def _is_merged_exactly(self) -> bool:
        """Are all constants exact that A has and B does not?"""
        return all(exact for digest, exact in self.a.constants.items() if digest not in self.b.constants)

    def _moved(self, case: int) -> list[Any]:
        """What B makes in float64 when the constants that A does not have are moved by their last bits, as far as noise
        is allowed. Nothing where B, and not A, rounds to narrower floats on the way: there a last bit is a step."""
        found: list[Any] = []
        if self.b.narrows and not self.a.narrows:
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
        """What is left beside a mask."""
        alike = self._hidden is not None and value.shape == self._hidden.shape
        return np.where(self._hidden, value.dtype.type(0), value) if alike else value

    def _constants(self, case: int, exact: Any) -> Difference:
        return worst([apart(exact, values) for values in self._moved(case)])

    def _near(self, case: int, off: Difference) -> Difference:
        """By how much A's float32 is off, there and near there."""
        narrow, wide = self.a.narrow(), self.a.wide()
        found = [off]
        for k in range(_SAMPLES):
            others = {name: _near(v, Draws(self.seed, k)) for name, v in self.a.cases[case].items()}
            found.append(apart(self._left(self.a.run(narrow, others)), self._left(self.a.run_wide(wide, others))))
        return max((d for d in found if not d.note), key=lambda d: d.largest)


def apart(a: Any, b: Any) -> Difference:
    """Of numbers that may be of either precision, as both are in the narrower one: what does not fit there is
    infinite."""
    dtype = min(a.dtype, b.dtype, key=lambda d: d.itemsize) if a.dtype != b.dtype else a.dtype
    with np.errstate(all="ignore"):
        return difference(a.astype(dtype), b.astype(dtype))


def _are_alike(*values: Any) -> bool:
    """Are they tensors of one shape, and of types that can be compared?"""
    first = values[0]
    return all(
        isinstance(v, np.ndarray) and v.shape == first.shape and element_kind(v) == element_kind(first) for v in values
    )


def _neutral(runner: Runner, *, reference: bool = False) -> Runner:
    """Whatever happens to it is not the fault of either model."""
    found = runner.inside(runner.program, reference=reference)
    found.label = "either model in float64"
    return found


def _is_light(program: Program, nodes: Sequence[int], case: Mapping[str, Any]) -> bool:
    """Is it little work for the reference evaluator?"""
    numbers, weights = sum(map(size_of, case.values())) // 4, program.weight(nodes) // 4
    if any(program.nodes[i].op_type in _SLOW for i in nodes):
        return numbers * max(weights, 1) <= _WORK
    return numbers + weights <= _LIGHT and len(nodes) <= _NODES


def _widened(case: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    def wide(value: Any) -> Any:
        if isinstance(value, list):
            return [wide(v) for v in value]
        return value.astype(np.float64) if value.dtype.name == dtype else value

    return {name: wide(value) for name, value in case.items()}


def _near(value: Any, rng: Draws) -> Any:
    """Other numbers, but of the same signs and sizes."""
    if not is_float(value) or is_exact(value):
        return value
    with np.errstate(all="ignore"):
        return (value * (1 + _BESIDE * (rng.uniform(value.shape) - 0.5))).astype(value.dtype)


def _digest(array: Any) -> _Digest:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data), array.size
