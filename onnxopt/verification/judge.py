"""Worker: runs original and result case by case, and compares in pieces where whole outputs are insufficient.

A crash or hang is a verdict: the worker announces each activity before it begins.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from onnxopt.errors import UsageError
from onnxopt.proto.messages import tensor_type
from onnxopt.verification.batches import ALIKE, compared, freed, other_feeds
from onnxopt.verification.model.views import views
from onnxopt.verification.numbers.compare import compare
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.numbers.metrics import measure
from onnxopt.verification.numbers.narrow import as_int32, as_wide, int32_values, narrow_feeds
from onnxopt.verification.numbers.perturbation import last_bit
from onnxopt.verification.numbers.rounding import MOST_OF_WHOLE, difference, is_float
from onnxopt.verification.options import DIFFERENT, UNLOADED, VerifyOptions
from onnxopt.verification.original import Original
from onnxopt.verification.records import JudgedCase, OutputRecord, Pieces, Place
from onnxopt.verification.run import OnnxRuntime, Reference, blame_system, is_starved, reason
from onnxopt.verification.runtime import CPU
from onnxopt.worker import keep_little
from onnxopt.worker.serving import Refused, Tell, serve

if TYPE_CHECKING:
    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.limits import Side
    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.inputs.values import Case
    from onnxopt.verification.look import Look
    from onnxopt.verification.programs.program import Program

T = TypeVar("T")
_WORTH_READING: Final = 1 << 26  # multiplications in a run
_WORK: Final = 1 << 33  # bytes of weights read, once per row of a large batch
_UNSEEN: Final = (OSError, ValueError, MemoryError, Refused)  # errors raised by looking into a file
SHAKEN: Final = 2.0  # times the effect of changed last bits of the inputs


class Judge(Original):
    """Compares results with the original in the same runtime."""

    def __init__(self, tell: Tell = lambda state: None, *, whole: bool = False) -> None:
        super().__init__(tell, whole=whole)
        self.shaken: dict[str, dict[str, float]] = {}  # by case and output: effect of changed last bits of the inputs
        self.b: Any = None  # engine of the result
        self._uneven: set[str] = set()  # cases with an output channel that differs by much of its own range
        self._look: Look | None = None
        self._ahead: tuple[Program, Side] | None = None  # the original, common to all results
        self._alone: Plan | None = None  # the original's own plan, while a plan for both models replaces it
        self._roundings: dict[str, float] | None = None  # see `Look.roundings`
        self._is_computed = False  # whether the result calls references in Python
        self._unrun: OnnxRuntime | None = None  # narrow result loaded as a file, whose kernels have not run yet

    # -- result ---------------------------------------------------------------------------------------------

    def result(self, path: str, options: VerifyOptions) -> str:
        """Load the result. Returns the reason for a refusal, or "".

        options: those of the current result; tolerances may differ from the last.
        """
        self.options = options
        self.b = self._look = self._unrun = None
        self.planned, self._alone = self._alone or self.planned, None
        self._uneven.clear()
        if self.kept:  # outputs of the original are kept
            self._rest()
        a, b = self.labels
        self.tell(f"loading {b}")
        try:
            self.b = self._with_room(partial(self.opened, path))
        except UsageError:  # of what the user brings: a library, a reference
            raise
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
        """Call `run`; if memory is short, unload the engines and call `run` again (engines reload on use)."""
        try:
            return run()
        except Exception as e:
            if not is_starved(e):
                raise
        self._rest(deeply=True)
        return run()

    def _blame_room(self, error: Exception, original: Callable[[], object]) -> None:
        """Raise Refused if the original is refused memory in the result's place too.

        original: runs or loads the original, beside the kept outputs. Other errors than lack of memory are ignored.
        """
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

    def opened(self, path: str) -> Any:
        """Return the engine of a result. Raises UsageError, Refused and the runtime's errors."""
        self.paths[1], self._is_computed = path, self.runtime.computes(path)
        is_narrow = self.options.dtype and not isinstance(self.engine, Reference)
        if self.unknown:
            return type(self.engine)(self._open_narrow(path) if is_narrow else self._stream(1), self.engine.unseen)
        if is_narrow:
            return self._open_narrow(path)
        if isinstance(self.engine, Reference):
            return Reference(path, self.options.original_names, self.runtime.kernels)
        if self.streamed or self._is_computed:
            return self._stream(1)
        return self._loaded(path)

    def _open_narrow(self, path: str) -> Any:
        """Return the engine of a result in a narrower type: each operator rounds its results (`programs/rounded.py`).

        The file itself is loaded too, and later run once: some kernels refuse a type only on the first run.
        """
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
        """Return whether the runtime could load the result.

        No kernels exist for bfloat16, nor for references in Python.
        """
        return self.options.dtype != "bfloat16" and not self._is_computed

    def compare(self, name: str, expected: dict[str, Any]) -> JudgedCase:
        """Run the result on a known case and compare outputs, with `expected` outputs too (by name)."""
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
        """Run the result on twice the size of each freed dim (see `batches.py`).

        Raises Refused if the model cannot be run, or no inputs distinguish the halves.
        """
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
            except Exception as e:  # the original rejects these values
                blame_system(e)
                continue
            own = zip(self.outputs, values, self._run_result(case.feeds))
            share = {name: 2 * difference(a, b).relative for name, a, b in own}  # differences allowed by the verdict
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
        if not (self.options.dtype or self.options.int32):
            return feeds
        look = self._looked()
        graph = look.b.program.graph
        if self.options.int32:
            narrow = int32_values(look.a.program.graph, graph)
            feeds = {name: as_int32(name, v) if name in narrow else v for name, v in feeds.items()}
        return narrow_feeds(graph, feeds, self.options.dtype) if self.options.dtype else feeds

    def _may_shake(self) -> bool:
        return not (self.streamed or self.planned.random or self.options.by_tolerance)

    def _by_paths(self, values: Sequence[Any], compared: Sequence[OutputRecord]) -> dict[str, float]:
        """Return, by float32 output, the relative rounding error explained by the longest path.

        Empty if every differing output exceeds the largest explainable error.
        """
        if not any(o.max_rel <= MOST_OF_WHOLE for o in compared if not o.ok):
            return {}
        if self._roundings is None:
            self._roundings = {}
            with contextlib.suppress(*_UNSEEN):  # reported by the second look
                self._roundings = self._looked().roundings(self.outputs)
        floats = (o for o, v in zip(self.outputs, values) if isinstance(v, np.ndarray) and v.dtype == np.float32)
        return {o: self._roundings[o] for o in floats if o in self._roundings}

    def _by_inputs(self, case: Case, values: Sequence[Any]) -> dict[str, float]:
        """Return, by output, the relative difference explained by the last bits of inputs."""
        if case.name not in self.shaken:
            self.shaken[case.name] = self._shake(case, values)
        return {o: SHAKEN * share for o, share in self.shaken[case.name].items()}

    def _measured(
        self, values: Sequence[Any], results: Sequence[Any], explained: Mapping[str, float]
    ) -> list[OutputRecord]:
        return [self._measure(o, a, b, explained) for o, a, b in zip(self.outputs, values, results, strict=True)]

    def _shake(self, case: Case, values: Sequence[Any]) -> dict[str, float]:
        """Return, by output, the relative change caused by the last bits of inputs: a lower bound of rounding noise."""
        rng = Draws(self.options.seed)
        if not any(is_float(v) for v in case.feeds.values()):
            return dict.fromkeys(self.outputs, 0.0)
        try:
            feeds = {n: last_bit(v, rng, self.options.dtype) for n, v in case.feeds.items()}
            again = self._with_room(partial(self._run_original, feeds))
        except Exception as e:  # the original rejects a value one bit larger
            if is_starved(e):
                raise Refused(f"there is no memory to run {self.labels[0]} once more (--memory)") from e
            return dict.fromkeys(self.outputs, 0.0)
        found = [difference(a, b) for a, b in zip(values, again)]
        return {n: 0.0 if d.note or d.discrete else d.relative for n, d in zip(self.outputs, found)}

    def _measure(self, name: str, a: Any, b: Any, explained: Mapping[str, float], against: str = "") -> OutputRecord:
        share = explained.get(name, 0.0)
        if self.options.int32:
            b = as_wide(a, b)
        if not against and self._is_nothing_in_segments(name, a, b):
            b = a
        if self.figures:
            return measure(name, a, b, self.options, share, against=against)
        return compare(name, a, b, self.options, share)

    def _is_nothing_in_segments(self, name: str, a: Any, b: Any) -> bool:
        """Return whether `a` and `b` are the empty stacked output of a zero-trip Loop, in different shapes.

        A runtime that knows only a segment infers a different empty shape.
        """
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.size or b.size or a.shape == b.shape:
            return False
        if isinstance(self.b, OnnxRuntime | Reference):
            return False
        from onnxopt.verification.pieces.zero_trip_loops import are_as_empty

        look = self._looked()
        return are_as_empty(a, b, ((look.a.program, name), (look.b.program, name)))

    def optimized(self) -> tuple[str, bool]:
        """Return (why the result does not load with onnxruntime's optimizations, or ""; whether the original loads)."""
        if not isinstance(self.engine, OnnxRuntime) or self.streamed or not self._is_loadable:
            return "", True
        a, b = self.labels
        self.b = self._look = None  # comparison is finished: free all memory
        self.engine.rest()
        error = self._refusal(self.paths[1], b, True)
        if error is None:
            return "", True
        return reason(error), not self.unloaded(self.paths[0], a, True)

    def unloaded(self, path: str, label: str, optimize: bool) -> str:
        """Return why onnxruntime does not load the file at `path`; "" if loaded or memory is short."""
        error = self._refusal(path, label, optimize)
        return "" if error is None or is_starved(error) else reason(error)

    def _refusal(self, path: str, label: str, optimize: bool) -> Exception | None:
        self.tell(f"loading {label}{' with optimizations' if optimize else ''}")
        if self.runtime.computes(path):
            return None
        try:
            OnnxRuntime(path, optimize=optimize, runtime=self.runtime)
        except Exception as e:
            blame_system(e)
            return e
        return None

    # -- pieces ---------------------------------------------------------------------------------------------

    def alike(self) -> bool:
        """Return whether equal operators on equal constants compute all outputs, according to the files.

        Asked only if comparing in pieces is expensive, as pieces say more.
        """
        try:
            return self.work > _WORTH_READING and self._looked().is_alike()
        except _UNSEEN:
            return False

    def hides(self) -> bool:
        """Return whether parts that may not run differ between the files."""
        try:
            return self._looked().hides()
        except (OSError, ValueError):
            return False  # read errors are reported when run

    def redecides(self) -> bool | list[str]:
        """Return whether the files differ in the computation of a decision.

        Without difference, returns the changed values that a Relu may mute.
        """
        try:
            return self._looked().redecides()
        except (OSError, ValueError):
            return False

    def read_ahead(self) -> None:
        """Read the original for a later `Look`, while the result is being made."""
        if self.planned.random or self.options.dtype or self._ahead is not None:  # `Look` changes its own copy
            return
        from onnxopt.verification.inputs.limits import Side
        from onnxopt.verification.look import open_runner

        with contextlib.suppress(*_UNSEEN):  # reported when asked
            read = getattr(self.engine, "program", None)
            view, _ = views(self.options)
            program = read or open_runner(self.paths[0], self.labels[0], foreign=self._foreign, view=view).program
            self._ahead = program, Side.of(program.skeleton)

    def of_both(self, given: Sequence[str]) -> list[Recipe]:
        """Return recipes of cases for constants present in one of the two models. `given`: inputs not to be drawn.

        The plan for both models replaces the original's until the next result.
        """
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
        """Return, in words, differences beyond bounds not reached by the first case, or after rounding to float16."""
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
        """Compare in pieces on the inputs of the named cases. Returns (pieces, places of faults).

        taken: conditions with both branches taken; digits, fine: see `Replay`.
        """
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
        """Compare in pieces, at most `most` cases at once, with the taken branches in place of Ifs.

        Returns None if not everything is covered.
        """
        from onnxopt.verification.programs.runner import Failed

        try:
            return self._looked().as_taken([self.kept[n][0] for n in names], most)
        except (Failed, OSError, ValueError, MemoryError):
            return None

    def noise(
        self, names: Sequence[str], enough: Mapping[str, float], told: str = "", of_result: bool = False
    ) -> dict[str, dict[str, float]]:
        """Return {case: {output: relative change}} caused by the last bits of inputs and weights (see `Noise`).

        Stops at `enough` by output, or when the output `told` reaches its bound in the first case. of_result: measure
        the result instead of the original.
        """
        from onnxopt.verification.programs.runner import Failed

        if self.streamed or self.planned.random:
            return {}
        try:
            cases = [self.kept[n] for n in names]
            ask = (cases, self.outputs, enough, told, self.shaken)
            return self._with_room(lambda: self._looked().noise(*ask, of_result=of_result))
        except Failed as e:  # the model rejects a value one bit larger
            if is_starved(e):
                raise MemoryError from e
            return {}

    def _rest(self, *, deeply: bool = False) -> None:
        """Unload both whole models, as pieces load from the files. `deeply`: unload segments too."""
        engines: tuple[Any, ...] = (self.engine, self.b, self._unrun)
        for engine in engines:
            if isinstance(engine, OnnxRuntime) or (deeply and hasattr(engine, "rest")):
                engine.rest()

    def release(self) -> None:
        """Drop the result: on systems without renaming of mapped files, the writer waits for the release."""
        self.b = self._look = self._unrun = None

    def _looked(self) -> Look:
        """Return the `Look` into both files, made on first use."""
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
    """Serve as the worker process of a verification."""
    from onnxopt.verification.job_runner import JobRunner

    keep_little()
    serve(lambda tell: JobRunner(Judge(tell), tell))
