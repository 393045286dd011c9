"""Execution of B on A's values: from cutpoints to observed values, compared with A's."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from onnx import NodeProto

from onnxopt.verification.compare import as_int32, as_wide, forgiven, is_beyond, is_too_small, lost, narrowed
from onnxopt.verification.pieces.noise import Channels, Jumps, Layout, Unexplained, View, is_discrete, views
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.pieces.paths import is_coarse
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.runner import Opened, Runner, Values, is_stepped
from onnxopt.verification.programs.stream import Stream
from onnxopt.verification.rounding import INFINITE, NO_NUMBER, Difference, are_integers, difference, worst
from onnxopt.verification.run import Failed
from onnxopt.verification.runtime import missing
from onnxopt.worker.serving import Refused

# -- zero-trip Loops --------------------------------------------------------------------------------------
# A runtime uses the shape inferred for the body's result when loading, which differs between a piece and a model.
# onnxruntime gives [0] for an unknown rank, and 0 for an unknown dim; the standard says nothing.

_ANY_COUNT: Final = (0,)


def are_as_empty(a: Any, b: Any, makers: Iterable[tuple[Program, str]]) -> bool:
    """Return whether two values are equal outputs of zero-trip loops: empty, of equal type, and of compatible shapes.

    makers: (program, name) of each value.
    """
    if any(not isinstance(v, np.ndarray) or v.size for v in (a, b)) or a.dtype != b.dtype:
        return False
    stacks = (program.maker.get(value) in program.having(_is_loop) for program, value in makers)
    return a.shape[:1] == b.shape[:1] == _ANY_COUNT and _fit(a.shape, b.shape) and any(stacks)


def _fit(x: Sequence[int], y: Sequence[int]) -> bool:
    """Return whether shapes of empty values are equal where both are known."""
    return _ANY_COUNT in (x, y) or (len(x) == len(y) and all(m == n or 0 in (m, n) for m, n in zip(x, y)))


def _is_loop(node: NodeProto) -> bool:
    return bool(node.op_type == "Loop")


# -- execution --------------------------------------------------------------------------------------------

OVERFLOWS: Final = "overflows the narrower type"
TOO_SMALL: Final = "is too small for the narrower type"
_OVER: Final = {INFINITE: OVERFLOWS, NO_NUMBER: "is no number in the narrower type"}
Found = dict[str, list[Any] | Failed]


@dataclass(eq=False, repr=False)
class Replay:
    """Pieces of B on A's values."""

    runner: Runner
    original: Stream  # A's values
    pairs: Pairs
    held: Mapping[str, str] = field(default_factory=dict)  # types of values B holds in the narrower `dtype`
    dtype: str = ""
    fine: bool = False  # compare each channel of float32 too
    digits: bool = False  # report values with few digits in the narrower type, otherwise compared as rounded
    memory: int = 2 << 30  # bytes for weights and values of both
    seed: int = 0
    views: dict[str, View] = field(default_factory=dict)  # layout in B of values with a different shape or axis order
    # A's results from rounded inputs, if B was fed rounded numbers.
    _against: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The program of B."""
        return self.runner.program

    def drawn(self, original: Stream, case: int) -> Replay:
        """Return a replay on drawn numbers in place of a case's."""
        count = len(original.values)
        views = {name: View(view.axes, (view.shapes[case],) * count) for name, view in self.views.items()}
        return replace(self, original=original, views=views, fine=False, digits=False, _against={})

    def mine(self, value: str) -> list[Any]:
        """Return A's values by case, under B's name."""
        name = self.pairs.of.get(value, value)
        return [known[name] for known in self.original.values]

    def fed_as(self, value: str, case: int) -> Any:
        """Return A's value in a case, in B's layout."""
        found, view = self.original.values[case][self.pairs.of.get(value, value)], self.views.get(value)
        return found if view is None else view(found, case)

    def against(self, value: str) -> list[Any]:
        """Return the expected values by case: A's, or A's results from rounded inputs."""
        return self._against.get(value) or self.mine(value)

    def kind(self, value: str) -> str:
        """Return a value's type in A, as written by onnxruntime."""
        return self.original.types.get(self.pairs.of.get(value, value), "")

    def is_narrow(self, value: str) -> bool:
        """Return whether B holds a value in the narrower type, and A in float32."""
        return value in self.held and self.kind(value) == "tensor(float)"

    def unfit(self, value: str) -> tuple[str, int] | None:
        """Return (note, first case) with numbers of A that the narrower type of B's value cannot hold, else None.

        Numbers are too large, or all are too small for full precision.
        """
        if not self.is_narrow(value):  # or is widened by a Cast
            i = self.program.maker.get(value)
            node = self.program.nodes[i] if i is not None else None
            if node is None or node.op_type != "Cast" or node.input[0] not in self.held:
                return None
        kinds, mine = ((OVERFLOWS, is_beyond), (TOO_SMALL, is_too_small)), self.mine(value)
        return next(((note, i) for note, is_one in kinds for i, x in enumerate(mine) if is_one(x, self.dtype)), None)

    def unheld(self, values: Sequence[str], latest: Mapping[str, list[Difference]]) -> list[str]:
        """Return the values too large for the narrower type; if none, the values too small. `latest`: by case."""
        unfit = {v: found[0] for v in values if (found := self.unfit(v))}
        over = [v for v, note in unfit.items() if note == OVERFLOWS and worst(latest[v]).note]
        return over or [v for v, note in unfit.items() if note == TOO_SMALL]

    def see(self, value: str, view: View | None) -> None:
        """Set the view through which B is fed a value."""
        if view is None:
            self.views.pop(value, None)
        else:
            self.views[value] = view

    def run(
        self, wanted: Sequence[str], fed: Collection[str], kept: list[Opened] | None = None
    ) -> dict[str, list[Any]]:
        """Return B's values computed from A's values of `fed`, by case. Raises Failed; Refused for missing kernels.

        kept: the piece as loaded by an earlier run; empty at first.
        """
        nodes, kept = self.program.cone(wanted, fed), [] if kept is None else kept
        types = {r: self.kind(r) for r in self.program.read(nodes) if r in fed}
        narrow = {r for r in types if self.is_narrow(r)}
        int32 = self.pairs.int32.intersection(types)
        held = {r: self.held[r] for r in narrow} | dict.fromkeys(int32, "tensor(int32)")

        def feeds(case: int) -> Values:
            values = {r: self.fed_as(r, case) for r in types}
            values |= {r: narrowed(values[r], self.dtype) for r in narrow}
            return values | {r: as_int32(r, values[r]) for r in int32}

        try:
            if not kept:
                kept.append(self.runner.open(nodes, types | held, wanted))
            found = _results(kept[0], map(feeds, range(len(self.original.values))))
        except Failed as e:
            # The file was not loaded as a whole, so nobody reported the missing kernel.
            if self.held and (why := missing(str(e))):
                raise Refused(why) from e
            raise
        if self.held:
            self._against.update(self._rounded(wanted, fed) if narrow else {v: self.mine(v) for v in wanted})
        return found

    def forget(self, pending: Collection[str]) -> None:
        """Release expected values except of `pending`."""
        self._against = {v: self._against[v] for v in pending if v in self._against}

    def _rounded(self, wanted: Sequence[str], fed: Collection[str]) -> dict[str, list[Any]]:
        """Return A's results from the rounded numbers fed to B, so that decisions are equal."""
        of, original = self.pairs.of, self.original
        cuts, asked = {of.get(r, r): r for r in fed}, [of[v] for v in wanted]
        nodes = original.runner.program.cone(asked, cuts)
        types = {r: original.types[r] for r in original.runner.program.read(nodes) if r in cuts}

        def value(known: Values, name: str) -> Any:
            is_narrow = self.is_narrow(cuts[name])
            return np.asarray(narrowed(known[name], self.dtype), np.float32) if is_narrow else known[name]

        try:
            feeds = ({r: value(known, r) for r in types} for known in original.values)
            found = _results(original.runner.open(nodes, types, asked), feeds)
        except (Failed, KeyError):  # inputs rejected, or released
            return {v: self.mine(v) for v in wanted}
        return {v: found[of[v]] for v in wanted}

    def run_each(self, wanted: Sequence[str], fed: Collection[str], failed: dict[str, Failed] | None = None) -> Found:
        """Return B's values, or Failed for each value that cannot be computed.

        wanted: in B's order; failed: values known to fail. Values behind a value that fails are not run.
        """
        failed = {} if failed is None else failed
        open_, known = [v for v in wanted if v not in failed], {v: failed[v] for v in wanted if v in failed}
        try:
            return {**known, **(self.run(open_, fed) if open_ else {})}
        except Failed as e:
            if len(open_) == 1:
                behind = self.program.behind(set(open_) - set(fed), fed, len(self.program.nodes) - 1)
                # A traceback would keep sessions and weights alive.
                failed |= dict.fromkeys((*open_, *behind), Failed(*e.args))
                return {v: failed[v] for v in wanted}
        half = len(wanted) // 2
        return self.run_each(wanted[:half], fed, failed) | self.run_each(wanted[half:], fed, failed)

    def unexplained(self, value: str, fed: Collection[str], share: float, *, uneven: bool = False) -> Unexplained:
        """Return the elements that differ of a discrete, integer-valued or stepped value, by case; else channels.

        uneven: return channels; otherwise only elements. Empty if unknown, as operands were released.
        """
        steps = self.are_steps(value)
        jumps = steps or is_discrete(self.kind(value))
        if not jumps and not uneven and not all(map(are_integers, self.mine(value))):
            return []
        try:
            theirs = self.run([value], fed)[value]
        except (Failed, KeyError):
            return []
        jumps = jumps or all(map(are_integers, (*self.mine(value), *theirs)))
        see = self._layouts(value, theirs, 0.0 if jumps else share)
        if jumps:
            return [Jumps(x, y, share if steps else 0.0, v) for x, y, v in zip(self.against(value), theirs, see)]
        every = zip(*self._as_narrow(value, theirs), see)
        return [Channels(x, y, share, v, fine=self.fine) for x, y, v in every] if uneven else []

    def _layouts(self, value: str, theirs: list[Any], share: float) -> list[Layout | None]:
        """Return the maps of A's layout of a value to B's, by case; None for the same."""
        view = self.hold(value, theirs, share)[2]
        return [functools.partial(view, case=i) if view is not None else None for i in range(len(theirs))]

    def are_steps(self, value: str) -> bool:
        """Return whether A computes a value from quantized numbers by moves and scales."""
        return is_stepped(self.original.runner.program, self.pairs.of.get(value, value))

    def hold(self, value: str, found: list[Any] | Failed, share: float) -> tuple[bool, list[Difference], View | None]:
        """Return (whether B's values agree in all cases, differences by case, view or None).

        share: tolerance relative to the range.
        """
        if isinstance(found, Failed):
            return False, [Difference(note=f"B fails: {found}")] * len(self.original.values), None
        mine, found = self._as_narrow(value, found)
        differences = self._differences(value, mine, found, share)
        if _agree(differences, share):
            return True, differences, None
        if self.is_narrow(value):
            differences = [d._replace(note=_OVER.get(d.note, d.note)) for d in differences]
        if self.pairs.of.get(value) == value:  # a value of equal name has equal shape
            return False, differences, None
        fits = value not in self.views and not any(d.note for d in differences)
        held, view = self._viewed(value, mine, found, share, fits=fits)
        return (False, differences, None) if view is None else (_agree(held, share), held, view)

    def _viewed(
        self, value: str, mine: list[Any], found: list[Any], share: float, *, fits: bool
    ) -> tuple[list[Difference], View | None]:
        """Return (differences by case, view of A's values) for the first view that agrees, else the closest.

        fits: A's own layout can be compared, and no view is known, so views that disagree do not count.
        """
        closest: tuple[list[Difference], View | None] = [], None
        least = math.inf
        for view in views(mine, found):
            held = list[Difference]()
            for i, (x, y) in enumerate(zip(mine, found)):
                held.append(self._difference(value, view(x, i), y, share))
                if not held[-1].within(share) and (fits or sum(d.relative for d in held) > least):
                    break
            else:
                far = sum(d.relative for d in held)
                if closest[1] is None or far < least:
                    closest, least = (held, view), far
                if _agree(held, share):
                    return held, view
        return closest

    def _differences(self, value: str, mine: list[Any], found: list[Any], share: float) -> list[Difference]:
        """Return the differences by case, in A's layout, and losses of the narrower type."""
        differences = [self._difference(value, x, y, share) for x, y in zip(mine, found, strict=True)]
        notes = self._losses(value, found)
        return [Difference(note=note) if note and not d.note else d for d, note in zip(differences, notes)]

    def _losses(self, value: str, found: list[Any]) -> list[str]:
        notes = [""] * len(found)
        if self.held:  # A may become infinite from rounded numbers, unlike from its own
            notes = [*map(lost, self.mine(value), found)]
        if self.digits and self.is_narrow(value):
            small = (is_too_small(x, self.dtype) for x in self.mine(value))
            notes = [note or TOO_SMALL * is_small for note, is_small in zip(notes, small)]
        return notes

    def _as_narrow(self, value: str, found: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return (A's values, B's values) as comparable in the narrower type."""
        mine = self.against(value)
        if not self.is_narrow(value):
            if value in self.pairs.int32:
                found = [as_wide(x, y) for x, y in zip(mine, found, strict=True)]
            return mine, found
        # After computing with a rounded mask (-65504 plus a score), A's result is no mask any more.
        found = [forgiven(y, x, self.dtype) for x, y in zip(self.mine(value), found, strict=True)]
        return [narrowed(x, self.dtype) for x in mine], found

    def _difference(self, value: str, mine: Any, theirs: Any, share: float) -> Difference:
        found = difference(mine, theirs, coarse=is_coarse(self.kind(value)))
        makers = (self.original.runner.program, self.pairs.of.get(value, value)), (self.program, value)
        if found.note and are_as_empty(mine, theirs, makers):
            return Difference()
        # Noise perturbs the type's own last bits, and bfloat16 is carried in float32.
        if found.note or not found.largest or not (self.dtype or "bfloat16" not in self.kind(value)):
            return found
        return found._replace(uneven=True) if Channels(mine, theirs, share, fine=self.fine).any else found


def _agree(differences: Iterable[Difference], share: float) -> bool:
    return all(d.within(share) for d in differences)


def _results(opened: Opened, feeds: Iterable[Values]) -> dict[str, list[Any]]:
    """Return the values that a piece makes, by case. `feeds`: of the values read. Raises Failed."""
    found: dict[str, list[Any]] = {v: [] for v in opened.names}
    for values in feeds:
        for name, value in opened.run(values).items():
            found[name].append(value)
    return found
