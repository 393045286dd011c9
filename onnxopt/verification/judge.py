"""Comparison of whole outputs in the worker, and the questions about pieces that `look` answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from onnxopt.proto.messages import tensor_type
from onnxopt.verification import DIFFERENT, EQUAL
from onnxopt.verification.compare import as_wide, compare, measure, narrow_feeds
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.values import Case
from onnxopt.verification.job import BATCHES
from onnxopt.verification.loaded import UNSEEN, Loaded
from onnxopt.verification.records import CaseRecord, OutputRecord, Pieces, Place
from onnxopt.verification.rounding import MOST_OF_WHOLE, Draws, allowed_of_whole, difference, is_float, last_bit
from onnxopt.verification.run import Failed, OnnxRuntime, Reference, blame_system, is_starved, reason
from onnxopt.worker import keep_little
from onnxopt.worker.serving import Refused, Tell, is_asked, serve

# -- samples of a freed batch dim -------------------------------------------------------------------------
# A freed dim is a number in the original and a symbol in the result. The result runs once on twice the size, the
# original on each half; each part of an output must equal the original's output for the same half.

ALIKE: Final = "both halves of the batch are the same"


def freed(
    plan: Plan, dims: Mapping[str, Sequence[int | str | None]], names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return {symbol: {input name: axis}} for freed dims of inputs.

    A freed dim is a symbol of `names` in the result (`dims`), and a number in the original (`plan`).
    """
    found: dict[str, dict[str, int]] = {}
    for i in plan.inputs:
        for axis, (was, dim) in enumerate(zip(i.shape, dims.get(i.name, ()))):
            if isinstance(was, int) and dim in names and isinstance(dim, str):
                found.setdefault(dim, {})[i.name] = axis
    return found


def other_feeds(
    feeds: dict[str, Any], axes: Mapping[str, int], known: Iterable[dict[str, Any]], seed: int
) -> Iterator[dict[str, Any]]:
    """Yield feeds with different values for the inputs in `axes`: from the `known` cases, then a permutation."""
    rng = Draws(seed)

    def shuffled(v: Any) -> Any:
        return np.asarray(v).reshape(-1)[np.argsort(rng.uniform((np.size(v),)))].reshape(np.shape(v))

    tried = [*known, {name: shuffled(v) if name in axes else v for name, v in feeds.items()}]
    for other in tried:
        values = {name: other[name] if name in axes else v for name, v in feeds.items()}
        if all(np.shape(values[n]) == np.shape(feeds[n]) for n in axes) and any(
            not np.array_equal(values[n], feeds[n]) for n in axes
        ):
            yield values


def _parts(shape: Sequence[int], result: Any) -> list[Any]:
    """Return the halves of an output along the only doubled axis; the whole output twice if no axis is doubled."""
    grown = [i for i, (a, b) in enumerate(zip(shape, np.shape(result))) if b == 2 * a and a]
    if len(shape) == np.ndim(result) and len(grown) == 1:
        return np.split(result, 2, grown[0])
    return [result, result]


# -- one case ---------------------------------------------------------------------------------------------
# A crash or hang is a verdict: the worker announces each activity before it begins.

FAILURES: Final = (Failed, OSError, ValueError, MemoryError)  # errors raised by running pieces
SHAKEN: Final = 2.0  # times the effect of changed last bits of the inputs


class Judge(Loaded):
    """Compares results with the original in the same runtime."""

    def __init__(self, tell: Tell = lambda state: None) -> None:
        super().__init__(tell)
        self.shaken: dict[str, dict[str, float]] = {}  # by case and output: effect of changed last bits of the inputs
        self._roundings: dict[str, float] | None = None  # see `_by_paths`

    def compare(self, name: str, expected: dict[str, Any]) -> CaseRecord:
        """Run the result on a known case and compare outputs, with `expected` outputs too (by name)."""
        case, values = self.kept[name]
        record = CaseRecord(name, case.dims)
        self.tell(f"running {self.labels[1]}")
        try:
            results = self._run_result(case.feeds)
        except Exception as e:
            blame_system(e)
            self._blame_room(e, partial(self.engine.run, case.feeds))
            record.status, record.note = DIFFERENT, f"{self.labels[1]} fails where {self.labels[0]} runs: {reason(e)}"
            return record
        explained: Mapping[str, float] = {}
        compared = self._measured(values, results, explained)
        if not all(o.ok for o in compared) and self._may_shake():
            explained = self._explained(case, values, compared)
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

    def batches(self) -> list[CaseRecord]:
        """Run the result on twice the size of each freed dim.

        Raises Refused if the model cannot be run, or no inputs distinguish the halves.
        """
        names = self.options.freed
        if self.unknown or isinstance(self.b, Reference) or not self.kept:
            raise Refused("onnxruntime does not run all of the model")
        if isinstance(self.b, OnnxRuntime):
            dims = self.b.dims
        else:
            dims = {i.name: tensor_type(i.type)[1] or () for i in self.looked().b.program.graph.input}
        found = []
        for symbol, axes in freed(self.planned, dims, names).items():
            self.tell(f"running {self.labels[1]}")
            found.append(self._batch(symbol, axes))
        return found

    def _batch(self, symbol: str, axes: Mapping[str, int]) -> CaseRecord:
        (case, values), *others = self.kept.values()
        for feeds in other_feeds(case.feeds, axes, (c.feeds for c, _ in others), self.options.seed):
            try:
                again = self._with_room(partial(self._run_original, feeds))
            except Exception as e:  # the original rejects these values
                blame_system(e)
                continue
            joined = {n: np.concatenate([v, feeds[n]], axes[n]) if n in axes else v for n, v in case.feeds.items()}
            record = CaseRecord(BATCHES, {symbol: max(joined[n].shape[axis] for n, axis in axes.items())})
            record.note = self._halves(record, case, joined, [values, again])
            record.status = DIFFERENT if record.note else EQUAL
            return record
        raise Refused(ALIKE)

    def _halves(self, record: CaseRecord, case: Case, joined: dict[str, Any], halves: Sequence[Sequence[Any]]) -> str:
        """Compare each half of the result's outputs on `joined` inputs. Returns the difference in words, or "".

        case: of the first half; halves: outputs of the original.
        """
        size = "".join(f"at {name}={size}" for name, size in record.dims.items())
        # Differences allowed by the verdict on the first half alone.
        own = zip(self.outputs, halves[0], self._run_result(case.feeds))
        share = {name: 2 * difference(a, b).relative for name, a, b in own}
        try:
            results = self._run_result(joined)
        except Exception as e:
            blame_system(e)
            return f"{size} the result fails: {reason(e)}"
        parts = [
            (name, x, part)
            for name, a, b, result in zip(self.outputs, *halves, results, strict=True)
            for x, part in zip((a, b), _parts(np.shape(a), result))
        ]
        record.outputs = [self._measure(*part, share) for part in parts]
        if paths := self._by_paths(halves[0], record.outputs) if self._may_shake() else {}:
            share = {name: max(s, paths.get(name, 0.0)) for name, s in share.items()}
            record.outputs = [self._measure(*part, share) for part in parts]
        return next((f"{size} {_wrong_alone(o)}" for o in record.outputs if not o.ok), "")

    def _run_result(self, feeds: dict[str, Any]) -> list[Any]:
        """Return the result's outputs on feeds of the original."""
        if self.options.dtype or self.options.int32:
            feeds = narrow_feeds(self.looked().b.program.graph, feeds, self.options.dtype)
        if self._unrun is not None:
            self._with_room(partial(self._unrun.run, feeds))
            self._unrun = None
        return list(self._with_room(partial(self.b.run, feeds)))

    def _may_shake(self) -> bool:
        return not (self.streamed or self.planned.random or self.options.by_tolerance)

    def _explained(self, case: Case, values: Sequence[Any], compared: Sequence[OutputRecord]) -> dict[str, float]:
        """Return, by output, the relative difference explained by rounding.

        The longest path is an estimate, used only for outputs that no float input changes.
        """
        shares = self._by_inputs(case, values)
        rest = [o for o in compared if not o.ok and not shares[o.name]]
        return (
            self._by_paths(values, rest) | {name: share for name, share in shares.items() if share} if rest else shares
        )

    def _by_paths(self, values: Sequence[Any], compared: Sequence[OutputRecord]) -> dict[str, float]:
        """Return, by float32 output, the relative rounding error explained by the longest path.

        Empty if every differing output exceeds the largest explainable error.
        """
        if not any(o.max_rel <= MOST_OF_WHOLE for o in compared if not o.ok):
            return {}
        if self._roundings is None:
            self._roundings = self._on_longest_path()
        floats = (o for o, v in zip(self.outputs, values) if isinstance(v, np.ndarray) and v.dtype == np.float32)
        return {o: self._roundings[o] for o in floats if o in self._roundings}

    def _on_longest_path(self) -> dict[str, float]:
        with contextlib.suppress(*UNSEEN):  # reported by the second look
            from onnxopt.verification.pieces.paths import paths

            program = self.runner(0).program
            found = paths(program, [o for o in self.outputs if o in program.maker], (), {})
            return {o: allowed_of_whole(path.depth) for o, path in found.items()}
        return {}

    def _by_inputs(self, case: Case, values: Sequence[Any]) -> dict[str, float]:
        """Return, by output, the relative difference explained by the last bits of inputs."""
        if case.name not in self.shaken:
            self.shaken[case.name] = self._shake(case, values)
        return {o: SHAKEN * share for o, share in self.shaken[case.name].items()}

    def shake_ahead(self) -> None:
        """Measure `_by_inputs` for the known cases while the original is loaded, as a result unloads the original."""
        for case, values in self.kept.values() if self._may_shake() else ():
            self._by_inputs(case, values)

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
        if not against and self._is_nothing(name, a, b):
            b = a
        if self.figures:
            return measure(name, a, b, self.options, share, against=against)
        return compare(name, a, b, self.options, share)

    def _is_nothing(self, name: str, a: Any, b: Any) -> bool:
        """Return whether `a` and `b` are the empty stacked output of a zero-trip Loop, in different shapes.

        A runtime takes the shape from inference, which may know less of the original's body, or of a segment.
        """
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.size or b.size or a.shape == b.shape:
            return False
        from onnxopt.verification.pieces.replay import are_as_empty

        look = self.looked()
        return are_as_empty(a, b, ((look.a.program, name), (look.b.program, name)))

    # -- pieces ---------------------------------------------------------------------------------------------

    def pieces(self, names: Sequence[str], digits: bool = False, fine: bool = False) -> tuple[Pieces, list[Place]]:
        """Compare in pieces on the inputs of the named cases. Returns (pieces, places of faults).

        digits, fine: see `Replay`.
        """
        began = time.monotonic()
        self.rest()
        try:
            fine = fine or not self._uneven.isdisjoint(names)
            cases = [self.kept[n][0] for n in names]
            found, places = self.looked().pieces(cases, fine=fine, digits=digits)
        except FAILURES as e:
            found, places = Pieces(list(names), note=f"it could not be compared in pieces: {reason(e)}"), []
        found.seconds = time.monotonic() - began
        return found, places

    def noise(
        self, names: Sequence[str], enough: Mapping[str, float], told: str = "", of_result: bool = False
    ) -> dict[str, dict[str, float]]:
        """Return {case: {output: relative change}} caused by the last bits of inputs and weights (see `Look.noise`).

        Stops at `enough` by output, or when the output `told` reaches its bound in the first case. of_result: measure
        the result instead of the original.
        """
        if self.streamed or self.planned.random:
            return {}
        try:
            cases = [self.kept[n] for n in names]
            ask = (cases, self.outputs, enough, told, self.shaken)
            return self._with_room(lambda: self.looked().noise(*ask, of_result=of_result))
        except Failed as e:  # the model rejects a value one bit larger
            if is_starved(e):
                raise MemoryError from e
            return {}


def main() -> None:
    """Serve as the worker process of a verification."""
    from onnxopt.verification.job_runner import JobRunner

    keep_little()
    serve(lambda tell: JobRunner(Judge(tell), tell, is_asked))


def _wrong_alone(output: OutputRecord) -> str:
    why = output.note or f"it differs by {output.max_rel:.2g} of its range"
    return f"output `{output.name}` is not what each part of the batch gives alone: {why}"
