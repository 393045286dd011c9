"""Trials of one model: its right rewrites, the same with larger gains, and wrong ones."""

from __future__ import annotations

import re
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final

import mutations
import onnx
from onnx import ModelProto, TensorProto

import onnxopt
from judging.noise import Engine, NotHere, Original, measure
from judging.records import ACCUSED, COUNTED, DEAD, EQUIVALENT, UNVERIFIED, Answer, Mutant, Record, Said, Settings
from judging.surgery import Surgeon
from judging.traps import amplified
from onnxopt.pipeline.journal import Journal
from onnxopt.verification import Verifier, VerifyOptions

_DIED: Final = re.compile(r"onnxruntime (crashed|ended|did not finish)")


class Judge:
    """One original and any number of results; a judge that died of a result is replaced."""

    def __init__(self, original: Path, timeout: float) -> None:
        self._open: Callable[[], Verifier] = lambda: Verifier(original, VerifyOptions(timeout=timeout))
        self._verifier = self._open()

    def ask(self, result: Path) -> Any:
        self._verifier.submit(result)
        verdict = self._verifier.finish()
        if _DIED.match(verdict.message):
            self._verifier.close()
            self._verifier = self._open()
        return verdict

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._verifier.close()


@dataclass
class Result:
    """The result of a level. Levels with equal results share a file."""

    level: int
    model: ModelProto
    path: Path
    made: set[str]


def try_model(name: str, path: Path, settings: Settings) -> Iterator[Record]:
    model = onnx.load(path, load_external_data=False)
    if any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer):
        yield Said(name, "its weights are in other files")
        return
    with tempfile.TemporaryDirectory() as folder:
        trial = _Trial(name, model, path, Path(folder), settings)
        with Judge(path, settings.timeout) as judge:
            yield from trial.right(judge, "")
            yield from trial.wrong(judge)
        louder = amplified(model)
        if louder is not None:
            path = Path(folder) / "amplified.onnx"
            onnx.save(louder, path)
            with Judge(path, settings.timeout) as judge:
                yield from _Trial(name, louder, path, Path(folder), settings).right(judge, ", amplified")


class _Trial:
    def __init__(self, name: str, model: ModelProto, path: Path, folder: Path, settings: Settings) -> None:
        self.name, self.model, self.path, self.folder, self.settings = name, model, path, folder, settings
        self.results = list(self._optimize())
        self.good: list[Result] = []  # that are worth breaking
        self._original: Original | NotHere | None = None

    def _optimize(self) -> Iterator[Result]:
        files: dict[bytes, Path] = {}
        for level in (1, 2, 3):
            journal = Journal()
            model = onnxopt.optimize(self.model, level=level, instruments=[journal], verify=False).model
            data = model.SerializeToString(deterministic=True)
            path = files.setdefault(data, self.folder / f"{self.path.stem}.O{level}.onnx")
            path.write_bytes(data)
            yield Result(level, model, path, {o for e in journal.entries for o in e.outputs})

    def original(self) -> Original:
        if self._original is None:
            try:
                self._original = measure(self.model, self.settings.noise_runs)
            except NotHere as e:
                self._original = e
        if isinstance(self._original, NotHere):
            raise self._original
        return self._original

    def right(self, judge: Judge, suffix: str) -> Iterator[Answer]:
        known: dict[Path, Answer] = {}
        for result in self.results:
            answer = known.setdefault(result.path, Answer(self.name, "", "", ""))
            if not answer.status:
                start = time.perf_counter()
                verdict = judge.ask(result.path)
                answer.status, answer.message = verdict.status, verdict.message
                answer.seconds = time.perf_counter() - start
                answer.times = self._times(result) if answer.status in ACCUSED else None
            yield replace(answer, what=f"-O{result.level}{suffix}")
        accepted = {r.path: r for r in reversed(self.results) if r.level > 1}
        self.good = [r for r in accepted.values() if known[r.path].status not in (*ACCUSED, *UNVERIFIED)][::-1]

    def _times(self, result: Result) -> float | None:
        """How many times the noise is it away from the original?"""
        try:
            original = self.original()
            engine = Engine(result.model, stateful=original.stateful)
            return original.excess(original.outputs, [engine.run(feeds) for feeds in original.cases])[0]
        except Exception:
            return None

    def wrong(self, judge: Judge) -> Iterator[Record]:
        """Mutants of each result that is not accused; then the result again, in case the judge remembers mutants."""
        if not self.good:
            yield Said(self.name, "no result of -O2 or -O3 that the judge accepts: nothing is broken")
            return
        start = time.perf_counter()
        for k, result in enumerate(self.good):
            try:
                yield from self._break(result, judge, start + self.settings.seconds * (k + 1) / len(self.good))
            except NotHere as e:
                yield Said(self.name, f"nothing is broken: {e}")
                return
            verdict = judge.ask(result.path)
            yield Answer(self.name, "after mutants", verdict.status, verdict.message)

    def _break(self, result: Result, judge: Judge, end: float) -> Iterator[Mutant | Said]:
        surgeon = Surgeon(self.original(), result.model, result.made)
        rng = Random(f"{self.settings.seed} {zlib.crc32(self.name.encode())} {result.level}")
        wanted, counted = -(-self.settings.mutants // len(self.good)), 0
        file = self.folder / "mutant.onnx"
        for kind, place, edit in surgeon.edits(rng):
            about = (mutations.name(kind), place.where, place.op, place.node.name or place.node.output[0], edit.what)
            mutant = Mutant(self.name, result.level, *about)
            model = mutations.broken(result.model, place, edit)
            effect = surgeon.effect(model, edit.beyond)
            if effect is None:
                mutant.outcome = DEAD
            else:
                mutant.times, mutant.change, usual = effect
                mutant.hidden = usual <= self.settings.factor
                if mutant.times <= self.settings.factor:
                    mutant.outcome = EQUIVALENT
                else:
                    onnx.save(model, file)
                    mutant.judged(judge.ask(file), place.outputs)
            yield mutant
            counted += mutant.outcome == COUNTED
            if counted >= wanted:
                return
            if time.perf_counter() > end:
                yield Said(self.name, f"-O{result.level}: time was up after {counted} mutants that count")
                return
