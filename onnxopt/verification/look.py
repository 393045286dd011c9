"""Comparison of two model files in pieces, fault localization, and rounding noise of the original."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from onnx import ModelProto

from onnxopt.verification import VerifyOptions
from onnxopt.verification.compare import CODES, as_held
from onnxopt.verification.coverage.bodies import walk_bodies
from onnxopt.verification.coverage.cones import outputs_behind
from onnxopt.verification.coverage.gaps import changed_blanks, have_other_points, unproven_blanks, unreached
from onnxopt.verification.coverage.probe import overflowing
from onnxopt.verification.coverage.traces import Trace, traces
from onnxopt.verification.coverage.unseen import unseen, untaken
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.values import Case
from onnxopt.verification.pieces.outcome import Fault, case_names, place_of
from onnxopt.verification.pieces.pairs import Pairs, Sameness
from onnxopt.verification.pieces.precise import apart, exactly
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program, bodies, types_of
from onnxopt.verification.programs.runner import Runner, Values
from onnxopt.verification.programs.transforms import (
    draw_alike,
    draws_of_outputs,
    has_narrow,
    name_in_file,
    round_results,
    tensor_types,
    with_roundings,
)
from onnxopt.verification.records import Pieces, Place
from onnxopt.verification.rounding import Difference, Draws, difference, is_float, last_bit

_SEEDS: Final = 2  # perturbed sets of weights, and sets of inputs for each


class Look:
    """Both files, opened for comparison in pieces (`pieces`) and noise measurement (`noise`)."""

    def __init__(self, a: Runner, b: Runner, options: VerifyOptions, plan: Plan) -> None:
        """Open the runners of both files. Random and narrow models are changed in copies."""
        self.options, self.plan = options, plan
        self.held: dict[str, str] = {}  # values of the narrower type in the result
        skeletons = [r.program.skeleton for r in (a, b)]
        for skeleton in skeletons if options.any_width else ():
            skeleton.kinds = tensor_types(skeleton.proto)
        if plan.random or options.dtype:
            skeletons = [s.copied() for s in skeletons]
            if plan.random:
                draw_alike(*skeletons)
            if options.dtype:
                self.held = _rounded(skeletons[1].proto, options.dtype)
            a, b = (r.inside(Program(s)) for r, s in zip((a, b), skeletons))
        self.a, self.b = a, b
        self._pairs: dict[tuple[Program, Program], Pairs] = {}

    @property
    def pairs(self) -> Pairs:
        """The correspondence of values of both programs."""
        both = self.a.program, self.b.program
        if both not in self._pairs:
            self._pairs[both] = Pairs(*both)
        return self._pairs[both]

    def pieces(self, cases: Sequence[Case], **how: bool) -> tuple[Pieces, list[Place]]:
        """Compare the second file with the first on the cases' inputs. Returns (pieces, places of faults).

        how: `fine` and `digits` of `Replay`.
        """
        feeds = self._complete([case.feeds for case in cases])
        return self._held(self.a, self.b, cases, feeds, pairs=self.pairs, **how)

    def as_taken(self, cases: Sequence[Case], most: int) -> Pieces | None:
        """Compare, at most `most` cases at once, with taken branches in place of Ifs present in only one of the two.

        Returns None if not everything is covered.
        """
        feeds = self._complete([case.feeds for case in cases])
        known: list[Pieces] = []
        for one in traces(self.a, self.b, feeds, types_of(feeds[0])):
            seen = self._of_trace(one, cases, feeds, most)
            if seen is None or seen.unseen:
                return None
            known.append(seen)
        return functools.reduce(Pieces.joined, known) if known else None

    def _of_trace(self, one: Trace, cases: Sequence[Case], feeds: Sequence[dict[str, Any]], most: int) -> Pieces | None:
        """Compare the cases of a trace, at most `most` at once. Returns None unless all agree in each piece."""
        parts: list[Pieces] = []
        for start in range(0, len(one.cases), most):
            some = one.cases[start : start + most]
            found, places = self._held(one.a, one.b, [cases[k] for k in some], [feeds[k] for k in some])
            if places or not found.complete:
                return None
            parts.append(found)
        return functools.reduce(Pieces.joined, parts) if parts else None

    def _held(
        self, a: Runner, b: Runner, cases: Sequence[Case], feeds: Sequence[dict[str, Any]], **how: Any
    ) -> tuple[Pieces, list[Place]]:
        """Compare two programs, of the files or with branches in place of Ifs. Returns (pieces, places of faults)."""
        walk = self._walked(a, b, feeds, held=self.held, dtype=self.options.dtype, **how)
        pieces, names = walk.pieces, [case.name for case in cases]
        pieces.cases, pieces.untaken = names, untaken(walk)
        places = [place for fault in walk.faults for place in self._places(walk, fault, names, "main")]
        if not walk.unsettled or walk.faults:
            self._add_gaps(walk, pieces, places)
        else:
            pieces.note = f"output `{walk.unsettled[0]}` is computed differently"
        if draws_of_outputs(walk.a) != draws_of_outputs(walk.b):
            why = "one of the models draws random numbers more often, and in the comparison draws are equal"
            pieces.unseen.append(why)
        pieces.complete = not places and not walk.unsettled
        if pieces.complete:
            _add_blanks(walk, pieces)
        return pieces, places

    def _add_gaps(self, walk: Walk, pieces: Pieces, places: list[Place]) -> None:
        """Add the faults and gaps in parts that no case ran."""
        is_wrong = not self.options.by_tolerance and any(p.is_gross for p in places)
        for part in unseen(walk, is_wrong=is_wrong):
            known = {(p.scope, p.value) for p in places}
            there = [p for f in part.faults if part.walk for p in self._places(part.walk, f, pieces.cases, part.scope)]
            places += [p for p in there if (p.scope, p.value) not in known]
            (pieces.silent if part.silent else pieces.unseen).extend([part.why] if part.why else [])
            pieces.shown += [part.why] if part.stays else []

    def unreached(self, case: Case) -> list[str]:
        """Return, in words, values with changed bounds that differ beyond the bounds, where no case reaches."""
        if not have_other_points(self.a.program, self.b.program):
            return []
        walk = self._walked(self.a, self.b, self._complete([case.feeds]))
        return [f"`{v}` has other bounds, and differs beyond the bounds that a case reaches" for v in unreached(walk)]

    def rounded(self, cases: Sequence[Case]) -> list[str]:
        """Return, in words, the first value that differs if both round values held in narrower floats."""
        runners = self.a, self.b
        if not any(has_narrow(r.program.skeleton.proto) for r in runners):
            return []
        a, b = (r.inside(Program(with_roundings(r.program.skeleton.copied()))) for r in runners)
        walk = self._walked(a, b, self._complete([case.feeds for case in cases]))
        # Narrow values of A are rounded as well. A larger loss in either is not compared, unless nothing is left.
        faults = ((name_in_file(fault.value), fault.found.note) for fault in walk.faults)
        names = [name for name, note in faults if note or walk.replay.kind(name) == "tensor(float)"][:1]
        found = [f"`{v}` differs where float16 is rounded, which this runtime computes in float32" for v in names]
        large = (f"`{name_in_file(v)}` overflows for larger numbers, unlike in the original" for v in overflowing(walk))
        return found or [*itertools.islice(large, 1)]

    def _walked(self, a: Runner, b: Runner, feeds: Sequence[Mapping[str, Any]], **how: Any) -> Walk:
        how |= {"memory": self.options.memory, "seed": self.options.seed}
        return Walk(a, b, feeds, types_of(feeds[0]), **how).run()

    def is_alike(self) -> bool:
        """Return whether equal operators on equal inputs and constants compute all outputs, according to the files."""
        if self.options.dtype or self.plan.random or self.plan.overridable or self.a.program.skeleton.foreign:
            return False
        a, b = self.a.program, self.b.program
        # From the inputs, not by name: the reader of a removed Dropout reads another name, and the same value.
        return a.outputs == b.outputs and Sameness(self.pairs, a.given).are_all_made_alike(a.outputs)

    def _places(self, walk: Walk, fault: Fault, names: list[str], scope: str) -> list[Place]:
        """Return the places of a fault: inside a body if located there, else at the node (both branches wrong).

        names: of all cases.
        """
        i, j = walk.a.maker[walk.pairs.of[fault.value]], walk.b.maker[fault.value]
        inner = [w for _, w in walk_bodies(walk, i, j)] if bodies(walk.a.nodes[i]) else []
        wrong = [(w, e) for w in inner if w.faults and (e := w.enclosing) is not None and e.is_sure]
        if len(wrong) != 1:
            return [place_of(walk, fault, case_names(walk, names), scope)]
        found, enclosing = wrong[0]
        return [p for f in found.faults for p in self._places(found, f, names, enclosing.scope(scope))]

    def _complete(self, feeds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the feeds of all cases, completed with overridable defaults. Raises ValueError if defaults differ."""
        fed = set[str]().union(*feeds)
        self.a, self.b = (_fed(r, fed) for r in (self.a, self.b))
        defaults = {name: self._default(name) for name in fed.intersection(self.a.program.constants)}
        return [{**known, **{n: v for n, v in defaults.items() if n not in known}} for known in feeds]

    def _default(self, name: str) -> Any:
        """Return the default value of an input. Raises ValueError if the second file has another."""
        default = self.a.program.constant(name)
        other = self.b.program.constant(name) if name in self.b.program.constants else None
        if other is not None and difference(as_held(default, other, self.options.dtype), other).relative:
            raise ValueError(f"the default of `{name}` is another")
        return default

    def noise(
        self,
        cases: Sequence[tuple[Case, Sequence[Any]]],
        outputs: Sequence[str],
        enough: Mapping[str, float],
        told: str = "",
        known: Mapping[str, Mapping[str, float]] | None = None,
        *,
        of_result: bool = False,
    ) -> dict[str, dict[str, float]]:
        """Return {case: {output: relative change}}: the largest if last bits of inputs and weights change.

        Measuring ends when all outputs reach `enough`, or output `told`, measured in the first case alone. If the noise
        is small, outputs are also computed in float64. known: earlier results. of_result: measure the second file,
        equal to the first if all pieces agree, with fewer nodes. Raises Failed.
        """
        feeds = self._complete([case.feeds for case, _ in cases])[: 1 if told else None]
        found = [{**dict.fromkeys(outputs, 0.0), **(known or {}).get(case.name, {})} for case, _ in cases]
        runner = self.b if of_result else self.a
        made = [o for o in outputs if o in runner.program.maker]
        asked = [told] if told else made

        def left() -> list[int]:
            """Return the cases with less noise than `enough` of an asked output."""
            few = enumerate(found[: len(feeds)])
            return [i for i, shares in few if any(shares[o] < enough.get(o, math.inf) for o in asked)]

        if left():
            values = [dict(zip(outputs, results)) for _, results in cases]
            values = _run_all(runner, feeds, outputs, made) if of_result else values
            for i, results in self._shaken(runner, feeds, made, left):
                _enlarge(found[i], {o: difference(values[i][o], v) for o, v in results.items()})
            for i in left() if not self.options.dtype else ():
                _enlarge(found[i], self._beyond_float64(runner, made, feeds[i], values[i]))
        return {case.name: shares for (case, _), shares in zip(cases, found)}

    def _beyond_float64(
        self, runner: Runner, made: Sequence[str], fed: Values, values: Values
    ) -> dict[str, Difference]:
        """Return the differences of float outputs `values` from the same computed in float64."""
        exact = exactly(runner, made, fed, self.options.memory // 8)
        return {o: apart(values[o], v) for o, v in exact.items() if is_float(values[o])}

    def _shaken(
        self, runner: Runner, feeds: Sequence[Values], made: Sequence[str], left: Callable[[], list[int]]
    ) -> Iterator[tuple[int, Values]]:
        """Yield (index of a case in `left`, outputs with other last bits of inputs and weights)."""
        nodes, types = runner.program.cone(made, ()), types_of(feeds[0])
        for k in range(_SEEDS):
            if not left():
                return
            change = partial(last_bit, rng=Draws(self.options.seed, k), dtype=self.options.dtype)
            opened = runner.open(nodes, types, made, change)
            for i, _ in itertools.product(range(len(feeds)), range(_SEEDS)):
                if i in left():
                    yield i, opened.run({name: change(v) for name, v in feeds[i].items()})


def _rounded(proto: ModelProto, dtype: str) -> dict[str, str]:
    """Round the results of a narrow model in place. Returns the types of its values of the narrower type."""
    kind = f"tensor({dtype})"
    held = {name: kind for name, own in tensor_types(proto).items() if own == kind}
    round_results(proto, held, CODES[dtype])
    return held


def _add_blanks(walk: Walk, pieces: Pieces) -> None:
    """Record the outputs behind changed blank values."""
    blanks = changed_blanks(walk)
    unproven = unproven_blanks(walk, blanks)
    pieces.dead = outputs_behind(walk, unproven)
    pieces.silent += outputs_behind(walk, [v for v in blanks if v not in unproven])


def _run_all(runner: Runner, feeds: Sequence[Values], outputs: Sequence[str], made: Sequence[str]) -> list[Values]:
    opened = runner.open(runner.program.cone(outputs, ()), types_of(feeds[0]), made)
    return [opened.run(fed) for fed in feeds]


def _enlarge(shares: dict[str, float], found: Mapping[str, Difference]) -> None:
    shares.update((o, max(shares[o], d.relative)) for o, d in found.items())


def _fed(runner: Runner, fed: set[str]) -> Runner:
    """Return the runner with these inputs fed, including inputs with defaults."""
    program = runner.program
    known = program.given & program.constants.keys()
    return runner if known == fed & program.constants.keys() else runner.inside(Program(program.skeleton, fed=fed))
