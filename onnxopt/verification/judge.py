"""The worker: runs original and result on one case at a time, and looks into pieces where that is not enough.

A crash or a hang here is a verdict, not the end of onnxopt: the worker says what it begins before it begins it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from onnxopt.protos import tensor_type
from onnxopt.verification.batches import ALIKE, compared, freed, other_feeds
from onnxopt.verification.model.views import views
from onnxopt.verification.numbers.compare import compare
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.numbers.metrics import measure
from onnxopt.verification.numbers.narrow import narrow_feeds
from onnxopt.verification.numbers.rounding import MOST_OF_WHOLE, difference, is_float
from onnxopt.verification.numbers.shaken import last_bit
from onnxopt.verification.options import DIFFERENT, UNLOADED, VerifyOptions
from onnxopt.verification.original import Original
from onnxopt.verification.records import JudgedCase, OutputRecord, Pieces, Place
from onnxopt.verification.run import OnnxRuntime, Reference, blame_system, is_starved, reason
from onnxopt.verification.runtime import CPU
from onnxopt.worker.heap import keep_little
from onnxopt.worker.serving import Refused, Tell, serve

if TYPE_CHECKING:
    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.limits import Side
    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.inputs.values import Case
    from onnxopt.verification.look import Look
    from onnxopt.verification.programs.program import Program

T = TypeVar("T")
_WORTH_READING: Final = 1 << 26  # products of numbers in one run
_WORK: Final = 1 << 33  # bytes of weights that are read once for each row of a case of many
_UNSEEN: Final = (OSError, ValueError, MemoryError, Refused)  # the parts of a file cannot be looked at
SHAKEN: Final = 2.0  # times what a change of the last bits of inputs does is allowed


class Judge(Original):
    """Holds results against the original, in the same runtime."""

    def __init__(self, tell: Tell = lambda state: None, *, whole: bool = False) -> None:
        super().__init__(tell, whole=whole)
        self.shaken: dict[str, dict[str, float]] = {}  # by case and output
        self.b: Any = None  # the result
        self._uneven: set[str] = set()  # cases in which a channel of an output differs by much of its own range
        self._look: Look | None = None
        self._ahead: tuple[Program, Side] | None = None  # of the original, which is the same for all results
        self._alone: Plan | None = None  # the plan of the original, where that of both is in its place
        self._roundings: dict[str, float] | None = None  # see `Look.roundings`
        self._unrun: OnnxRuntime | None = None  # a result whose operators are run one by one, as it is

    # -- the result --------------------------------------------------------------------------------------

    def result(self, path: str, options: VerifyOptions) -> str:
        """Load the result; why it cannot take the place of the original, empty if it can. `options`: as they are for
        this one, which may be allowed more than the last."""
        self.options = options
        self.paths[1] = path
        self.b = self._look = self._unrun = None
        self.planned, self._alone = self._alone or self.planned, None
        self._uneven.clear()
        if self.kept:  # what the original made is
            self._rest()
        a, b = self.labels
        self.tell(f"loading {b}")
        try:
            self.b = self._with_room(partial(self._open_result, path))
        except Exception as e:
            blame_system(e)
            self._blame_room(e, self._wake_original)
            return f"{b}{UNLOADED}: {reason(e)}"
        if self.unknown and (why := self.engine.unlike(self.b)):
            raise Refused(why)
        own = len(self.engine.own) if self.unknown else None
        if self.b.outputs[:own] != self.outputs[:own]:
            return f"the outputs of {b} are {self.b.outputs}, those of {a} {self.outputs}"
        return ""

    def _with_room(self, run: Callable[[], T]) -> T:
        """`run`; where there is no memory for that beside what is loaded, again when that is let go of: what is run is
        loaded when it is."""
        try:
            return run()
        except Exception as e:
            if not is_starved(e):
                raise
        self._rest(deeply=True)
        return run()

    def _blame_room(self, error: Exception, original: Callable[[], object]) -> None:
        """Where the result was refused memory, and in its place the `original` is too, beside what is kept of its runs,
        that says nothing of the result. Raises Refused."""
        if not is_starved(error):
            return
        self._rest(deeply=True)
        try:
            original()
        except Exception as e:
            if is_starved(e):
                a, b = self.labels
                why = f"there is no memory for {b} beside the values of {a} that it is compared with (--memory)"
                raise Refused(why) from error

    def _wake_original(self) -> None:
        if isinstance(self.engine, OnnxRuntime):
            self.engine.wake()

    def _open_result(self, path: str) -> Any:
        is_narrow = self.options.dtype and not isinstance(self.engine, Reference)
        if self.unknown:
            return type(self.engine)(self._open_narrow(path) if is_narrow else self._stream(1), self.engine.unseen)
        if is_narrow:
            return self._open_narrow(path)
        if self.streamed:
            return self._stream(1)
        if isinstance(self.engine, Reference):
            return Reference(path, self.options.original_names)
        return self._loaded(path)

    def _open_narrow(self, path: str) -> Any:
        """Each operator rounds what it makes (`programs/rounded.py`); the file itself is loaded, if it can be, and run
        once: there are kernels that refuse a type only then."""
        from onnxopt.verification.programs.stream import Streamed

        if self._is_loadable and not self.streamed:
            loaded = self._loaded(path)
            self._unrun = loaded if not self.unknown else None
        return Streamed(self._looked().b, self.options.memory, keep=not self.streamed)

    def _loaded(self, path: str) -> OnnxRuntime:
        names = self.options.original_names
        return OnnxRuntime(path, stateful=self.planned.stateful, runtime=self.runtime, names=names)

    @property
    def _is_loadable(self) -> bool:
        """Could the runtime load the result? It has no kernels for bfloat16."""
        return self.options.dtype != "bfloat16"

    def compare(self, name: str, expected: dict[str, Any]) -> JudgedCase:
        """Run the result on a case that the original took, and compare. `expected`: outputs that are given, by name."""
        case, values = self.kept[name]
        record = JudgedCase(name, case.dims)
        self.tell(f"running {self.labels[1]}")
        try:
            feeds = self._feeds_of_b(case.feeds)
            if self._unrun is not None:
                self._with_room(partial(self._unrun.run, feeds))
                self._unrun = None
            results = self._with_room(partial(self.b.run, feeds))
        except Exception as e:
            blame_system(e)
            self._blame_room(e, partial(self.engine.run, case.feeds))
            record.status, record.note = DIFFERENT, f"{self.labels[1]} fails where {self.labels[0]} runs: {reason(e)}"
            return record
        explained: Mapping[str, float] = {}
        compared = self._measured(values, results, explained)
        for explain in (partial(self._by_paths, values, compared), partial(self._by_inputs, case, values)):
            if all(o.ok for o in compared) or not self._may_shake():
                break
            explained = {o: max(share, explained.get(o, 0.0)) for o, share in explain().items()}
            compared = self._measured(values, results, explained)
        if any(found.uneven for found in compared):
            self._uneven.add(name)
        for output, found, a, b in zip(self.outputs, compared, values, results):
            record.outputs.append(found)
            if output in expected:
                given = expected[output]
                record.outputs.append(self._measure(output, given, a, explained, f"{self.labels[0]} and file"))
                record.outputs.append(self._measure(output, given, b, explained, f"{self.labels[1]} and file"))
        return record

    def batches(self) -> list[JudgedCase]:
        """The result on twice the size of each dim that is a symbol there and a number in the original: see
        `batches.py`. Raises Refused where that cannot be run, or no case tells the halves apart."""
        names = self.options.freed
        if self.unknown or isinstance(self.b, Reference) or not self.kept:
            raise Refused("onnxruntime does not run all of the model")
        if isinstance(self.b, OnnxRuntime):
            dims = self.b.dims
        else:
            dims = {i.name: tensor_type(i.type)[1] or () for i in self._looked().b.program.graph.input}
        found = []
        for symbol, axes in freed(self.planned, dims, names).items():
            self.tell(f"running {self.labels[1]}")
            found.append(self._batch(symbol, axes))
        return found

    def _batch(self, symbol: str, axes: Mapping[str, int]) -> JudgedCase:
        (case, values), *others = self.kept.values()
        for feeds in other_feeds(case.feeds, axes, (c.feeds for c, _ in others), self.options.seed):
            try:
                again = self._with_room(partial(self._run_original, feeds))[: len(self.outputs)]
            except Exception as e:  # it takes no such values
                blame_system(e)
                continue
            own = zip(self.outputs, values, self._run_result(case.feeds))
            share = {name: 2 * difference(a, b).relative for name, a, b in own}  # which the verdict allows
            halves = [(case.feeds, values), (feeds, again)]
            run = partial(compared, symbol, axes, halves, self.outputs, self._run_result)
            found: JudgedCase = run(partial(self._measure, explained=share))
            if paths := self._by_paths(values, found.outputs) if self._may_shake() else {}:
                share = {name: max(s, paths.get(name, 0.0)) for name, s in share.items()}
                found = run(partial(self._measure, explained=share))
            return found
        raise Refused(ALIKE)

    def _run_result(self, feeds: dict[str, Any]) -> list[Any]:
        return list(self._with_room(partial(self.b.run, self._feeds_of_b(feeds))))

    def _feeds_of_b(self, feeds: dict[str, Any]) -> dict[str, Any]:
        if not self.options.dtype:
            return feeds
        return narrow_feeds(self._looked().b.program.graph, feeds, self.options.dtype)

    def _may_shake(self) -> bool:
        return not (self.streamed or self.planned.random or self.options.by_tolerance)

    def _by_paths(self, values: Sequence[Any], compared: Sequence[OutputRecord]) -> dict[str, float]:
        """The share of the range of each output in float32 that the roundings on its longest path explain; of none
        where all that differ do so by more than any path explains."""
        if not any(o.max_rel <= MOST_OF_WHOLE for o in compared if not o.ok):
            return {}
        if self._roundings is None:
            self._roundings = {}
            with contextlib.suppress(*_UNSEEN):  # the second look says so
                self._roundings = self._looked().roundings(self.outputs)
        floats = (o for o, v in zip(self.outputs, values) if isinstance(v, np.ndarray) and v.dtype == np.float32)
        return {o: self._roundings[o] for o in floats if o in self._roundings}

    def _by_inputs(self, case: Case, values: Sequence[Any]) -> dict[str, float]:
        """The share of each output's range that the last bits of inputs explain."""
        if case.name not in self.shaken:
            self.shaken[case.name] = self._shake(case, values)
        return {o: SHAKEN * share for o, share in self.shaken[case.name].items()}

    def _measured(
        self, values: Sequence[Any], results: Sequence[Any], explained: Mapping[str, float]
    ) -> list[OutputRecord]:
        return [self._measure(o, a, b, explained) for o, a, b in zip(self.outputs, values, results, strict=True)]

    def _shake(self, case: Case, values: Sequence[Any]) -> dict[str, float]:
        """What the last bits of the inputs do to each output, of its range: the least that rounding will do to it."""
        rng = Draws(self.options.seed)
        if not any(is_float(v) for v in case.feeds.values()):
            return dict.fromkeys(self.outputs, 0.0)
        try:
            feeds = {n: last_bit(v, rng, self.options.dtype) for n, v in case.feeds.items()}
            again = self._with_room(partial(self._run_original, feeds))
        except Exception as e:  # it does not take what is a bit larger
            if is_starved(e):
                raise Refused(f"there is no memory to run {self.labels[0]} once more (--memory)") from e
            return dict.fromkeys(self.outputs, 0.0)
        found = [difference(a, b) for a, b in zip(values, again)]
        return {n: 0.0 if d.note or d.discrete else d.relative for n, d in zip(self.outputs, found)}

    def _measure(self, name: str, a: Any, b: Any, explained: Mapping[str, float], against: str = "") -> OutputRecord:
        share = explained.get(name, 0.0)
        if not against and self._is_nothing_in_segments(name, a, b):
            b = a
        if self.figures:
            return measure(name, a, b, self.options, share, against=against)
        return compare(name, a, b, self.options, share)

    def _is_nothing_in_segments(self, name: str, a: Any, b: Any) -> bool:
        """Is it what a Loop of no turn stacks, in the other shape that a runtime knows which is told a segment only?"""
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.size or b.size or a.shape == b.shape:
            return False
        if isinstance(self.b, OnnxRuntime | Reference):
            return False
        from onnxopt.verification.pieces.no_turn import are_as_empty

        look = self._looked()
        return are_as_empty(a, b, ((look.a.program, name), (look.b.program, name)))

    def optimized(self) -> tuple[str, bool]:
        """Why the result cannot be loaded with onnxruntime's optimizations, else empty; and can the original be?"""
        if not isinstance(self.engine, OnnxRuntime) or self.streamed or not self._is_loadable:
            return "", True
        a, b = self.labels
        self.b = self._look = None  # all is compared, and whatever memory there is is free
        self.engine.rest()
        error = self._refusal(self.paths[1], b, True)
        if error is None:
            return "", True
        return reason(error), not self.unloaded(self.paths[0], a, True)

    def unloaded(self, path: str, label: str, optimize: bool) -> str:
        """Why onnxruntime does not load the model at `path`, with its optimizations or without; empty where it does, or
        there is no memory to know it. Nothing need be open for that."""
        error = self._refusal(path, label, optimize)
        return "" if error is None or is_starved(error) else reason(error)

    def _refusal(self, path: str, label: str, optimize: bool) -> Exception | None:
        self.tell(f"loading {label}{' with optimizations' if optimize else ''}")
        try:
            OnnxRuntime(path, optimize=optimize, runtime=self.runtime)
        except Exception as e:
            blame_system(e)
            return e
        return None

    # -- pieces ------------------------------------------------------------------------------------------

    def alike(self) -> bool:
        """Do both make their outputs by the same operators, of the same constants, as far as files tell? Only asked
        where a look into pieces is much work: values inside say more."""
        try:
            return self.work > _WORTH_READING and self._looked().is_alike()
        except _UNSEEN:
            return False

    def hides(self) -> bool:
        """Is there anything that may not run, and is not the same in both, as far as files tell?"""
        try:
            return self._looked().hides()
        except (OSError, ValueError):
            return False  # what cannot be read is said where it is run

    def redecides(self) -> bool | list[str]:
        """Is anything that is decided upon made otherwise, as far as files tell? Else what is that may be muted."""
        try:
            return self._looked().redecides()
        except (OSError, ValueError):
            return False

    def read_ahead(self) -> None:
        """Read the original as the look into both files will: while its result is not there, nothing else is to do."""
        if self.planned.random or self.options.dtype or self._ahead is not None:  # each look changes its own copy
            return
        from onnxopt.verification.inputs.limits import Side
        from onnxopt.verification.look import open_runner

        with contextlib.suppress(*_UNSEEN):  # said where it is asked
            read = getattr(self.engine, "program", None)
            view, _ = views(self.options)
            program = read or open_runner(self.paths[0], self.labels[0], foreign=self._foreign, view=view).program
            self._ahead = program, Side.of(program.skeleton)

    def of_both(self, given: Sequence[str]) -> list[Recipe]:
        """Cases for numbers that only one of the two models has, where these inputs are given. They are planned for
        until the next result."""
        from onnxopt.verification.inputs.cases import OF_BOTH, missing
        from onnxopt.verification.inputs.limits import Side, of_both

        try:
            self.read_ahead()
            a, b = (runner.program.skeleton for runner in (self._looked().a, self._looked().b))
            both = of_both(self.planned, self._ahead[1] if self._ahead else Side.of(a), Side.of(b), _WORK)
        except _UNSEEN:
            return []
        is_alike = both.inputs == self.planned.inputs
        if is_alike and not both.limits:
            return []
        self.planned, self._alone = both, self.planned
        return [r for r in OF_BOTH if (r.beyond or not is_alike) and not missing(r, both, given)]

    def unshown(self, names: Sequence[str]) -> list[str]:
        """What would differ beyond bounds that the first of these cases does not reach, or in a runtime that rounds
        float16, in words."""
        from onnxopt.verification.programs.runner import Failed

        if self.streamed or self.options.dtype or self.planned.random:
            return []
        self._rest()
        try:
            cases, look = [self.kept[name][0] for name in names], self._looked()
            return [*look.unreached(cases[0]), *(look.rounded(cases) if self.runtime.provider == CPU else ())]
        except (Failed, OSError, ValueError, MemoryError):
            return []

    def pieces(
        self, names: Sequence[str], taken: Sequence[str], digits: bool = False, fine: bool = False
    ) -> tuple[Pieces, list[Place]]:
        """Compare in pieces, on the inputs of these cases. `taken`: conditions of which both branches were taken.
        `digits`, `fine`: see `Replay`."""
        from onnxopt.verification.programs.runner import Failed

        began = time.monotonic()
        self._rest()
        try:
            fine = fine or not self._uneven.isdisjoint(names)
            cases = [self.kept[n][0] for n in names]
            found, places = self._looked().pieces(cases, taken, fine=fine, digits=digits)
        except (Failed, OSError, ValueError, MemoryError) as e:
            found, places = Pieces(list(names), note=f"it could not be compared in pieces: {reason(e)}"), []
        found.seconds = time.monotonic() - began
        return found, places

    def as_taken(self, names: Sequence[str], most: int) -> Pieces | None:
        """The same, at most so many cases at once, with the branches that these take in place of Ifs. None unless all
        is seen so."""
        from onnxopt.verification.programs.runner import Failed

        try:
            return self._looked().as_taken([self.kept[n][0] for n in names], most)
        except (Failed, OSError, ValueError, MemoryError):
            return None

    def noise(
        self, names: Sequence[str], enough: Mapping[str, float], told: str = "", of_result: bool = False
    ) -> dict[str, dict[str, float]]:
        """What a change of the last bits of inputs and weights does to the original's outputs, or the result's, of
        their range, by case; as far as that is `enough` by output, or as the one that is `told` of is in the first."""
        from onnxopt.verification.programs.runner import Failed

        if self.streamed or self.planned.random:
            return {}
        try:
            cases = [self.kept[n] for n in names]
            ask = (cases, self.outputs, enough, told, self.shaken)
            return self._with_room(lambda: self._looked().noise(*ask, of_result=of_result))
        except Failed as e:  # it does not take what is a bit larger
            if is_starved(e):
                raise MemoryError from e
            return {}

    def _rest(self, *, deeply: bool = False) -> None:
        """Pieces are loaded from the files: the whole of them waits outside of memory. `deeply`: and each segment."""
        engines: tuple[Any, ...] = (self.engine, self.b, self._unrun)
        for engine in engines:
            if isinstance(engine, OnnxRuntime) or (deeply and hasattr(engine, "rest")):
                engine.rest()

    def release(self) -> None:
        """Let go of the result: where a file that is mapped cannot be renamed, its writer waits for that."""
        self.b = self._look = self._unrun = None

    def _looked(self) -> Look:
        """What can look inside both files."""
        from onnxopt.verification.look import Look

        if self._look is None:
            first = self._ahead[0] if self._ahead else getattr(self.engine, "program", None)
            self._look = Look(
                self.paths,
                self.options,
                self.labels,
                self.planned,
                self.runtime,
                self.engine,
                self.tell,
                self._foreign,
                [first, getattr(self.b, "program", None)],
            )
        return self._look


def main() -> None:
    from onnxopt.verification.job_runner import JobRunner

    keep_little()
    serve(lambda tell: JobRunner(Judge(tell), tell))
