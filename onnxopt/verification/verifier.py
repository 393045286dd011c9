"""The parent's side: has a worker run original and results, and judges what comes of it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import OnnxOptError, UsageError, file_path, unreadable
from onnxopt.verification.options import DIFFERENT, IN_PIECES, INCONCLUSIVE, UNLOADED, UNVERIFIED, VerifyOptions
from onnxopt.verification.records import JudgedCase, Verification
from onnxopt.verification.session import START, Read, Session
from onnxopt.worker.limits import Limits
from onnxopt.worker.service import Died, Spare
from onnxopt.worker.serving import Refused

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.proof import Proof
    from onnxopt.verification.protocol import Answer

# What imports numpy is imported where it is used: whoever starts a worker early has not done so yet.
_REAL: Final = "give real data with --input NAME=FILE.npy"
_OF_A_CHANNEL: Final = 16  # numbers, of which the noise is a bound
_PLAN: Final = "raise --verify-memory"
_REPORT: Final = "please report it, with both models; `onnxopt verify` with ONNXOPT_DEBUG=1 shows where"


class Verifier:
    """Compares results with one original, in a process of its own.

    `start` returns at once; the worker loads and runs the original while the caller optimizes. `submit` hands over the
    result, `finish` waits for the verdict; others may follow. Close it, or use it as a context manager: no worker
    outlives its parent.
    """

    def __init__(
        self,
        original: str | Path,
        options: VerifyOptions | None = None,
        *,
        labels: tuple[str, str] = ("the original", "the result"),
        stepwise: bool = False,
        foreign: bool = False,
        start: str = START,
        spare: Spare | None = None,
    ) -> None:
        """`labels`: what messages call the two. `stepwise`: the timeout is for each step, and what dies in one case is
        started again for the next. `foreign`: results are made elsewhere, and may have parts that the original has not.
        `spare`: where a worker comes from and goes to, that serves others too."""
        self.original = file_path(original)
        self.labels = labels
        self.stepwise = stepwise
        self._foreign = foreign
        self.declared: dict[str, float] = {}  # what passes allow themselves, where that decides
        self._result = self.original
        self._refusal = ""  # why the original could not be run
        self._began = 0.0
        self._has_further = False  # were more cases asked for than there are at first?

        asked = options or VerifyOptions()
        memory = 0 if asked.provider else Limits(asked.limit).bytes  # a device's memory is mapped into the process
        self.options = self._given = asked.share(memory)
        self._session = Session(self.original, labels, stepwise=stepwise, memory=memory, start=start, spare=spare)

    # -- what it is told ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the worker, unless it runs already or there is nothing to open."""
        self._session.start(self.options)

    def describe(
        self, original: ModelProto, array: Callable[[TensorProto], Any] | None = None, *, override: bool = True
    ) -> None:
        """Tell the worker what the original expects; it runs it then. `submit` does this if nobody did before.

        `array` reads initializers whose data are not in the proto.
        `override`: initializers that are also inputs may be given other values (False: nobody does so). Raises
        UsageError for inputs and dims that the options give and the model does not have.
        """
        from onnxopt.verification.inputs.cases import OWN, missing
        from onnxopt.verification.inputs.datasets import Data, read_array
        from onnxopt.verification.inputs.planning import make_plan
        from onnxopt.verification.interface import fix_dims

        plan = make_plan(original, array)
        if not override:
            plan.overridable = {}
        given = {name: read_array(name, Path(file), plan) for name, file in self.options.inputs.items()}
        fix_dims(plan, self.options.dims)
        is_long = self.stepwise or 2 * plan.bytes > self.options.memory  # each run reads all weights
        recipes = [r for r in OWN if not missing(r, plan, given) and not (r.single and is_long)]
        self.prepare(plan, [(r, lambda: Data(given)) for r in recipes])

    def prepare(self, plan: Plan, requests: Sequence[tuple[Recipe, Read]]) -> None:
        """The same with a plan and the cases, and how to read their data."""
        self.start()
        self._session.prepare(plan, requests)

    def submit(self, result: str | Path, tolerances: Mapping[str, float] | None = None) -> None:
        """Hand over the result; the worker compares it while the caller does something else. `tolerances`: by how much
        of an output's range passes said that they change it, which counts unless the options say what is allowed.

        Raises ModelError where there is no such file, or where nobody described the original and it is no model.
        """
        self._began = time.monotonic()
        path = file_path(result).absolute()
        if not path.is_file():
            raise unreadable(result, IsADirectoryError() if path.is_dir() else FileNotFoundError())
        if self._session.plan is None:
            from onnxopt.verification.interface import read

            skeleton = read(self.original)
            self.describe(skeleton.proto, skeleton.values)
        self.start()
        self.declared = dict(tolerances or {}) if not self._given.by_tolerance else {}
        self.options = self._given.allowing(self.declared)
        self._result = path
        self._session.submit(str(path), self.options)

    @property
    def provider(self) -> str:
        """The execution provider that ran both."""
        return self._session.opened.provider

    @property
    def _plan(self) -> Plan:
        assert self._session.plan is not None
        return self._session.plan

    # -- the verdict -------------------------------------------------------------------------------------

    def finish(self, into: Verification | None = None) -> Verification:
        """The verdict on the submitted result. Never raises for what a runtime does. Others may be submitted after.

        Raises UsageError where nothing was submitted.
        """
        if not self._session.has_result:
            raise UsageError(f"nothing was submitted that {self.original} could be compared with", "call submit first")
        verdict = into if into is not None else Verification(UNVERIFIED, "")
        try:
            self._finish_alive(verdict)
        except Refused as e:
            self._refusal = str(e)
            self._session.drain()
            self._stop(verdict, UNVERIFIED, str(e), f"{self.labels[1]} was not compared with {self.labels[0]}")
        except Died as e:
            if e.late and self._session.is_rushed:
                self._stop(verdict, UNVERIFIED, str(e), f"{self.labels[0]} took most of that: raise --timeout")
            elif e.is_about(self.labels[1]):
                self._stop(verdict, DIFFERENT, str(e), "it ran with the original; report it")
            else:
                self._stop(verdict, UNVERIFIED, str(e), "give it data that the model is made for")
        except (OnnxOptError, FileNotFoundError):  # a file that was removed meanwhile is for who named it
            raise
        except Exception as e:  # of the system, which had no memory, or a fault of ours: neither says that it is wrong
            from onnxopt.verification.run import is_starved, reason

            starved = is_starved(e)
            if not starved and os.environ.get("ONNXOPT_DEBUG"):
                raise
            self._session.drain()
            what = reason(e) if starved else f"internal error: {type(e).__name__}: {reason(e)}"
            why = f"comparing {self.labels[1]} with {self.labels[0]}: {what}"
            if not self._session.has_answers:
                self._refusal = why
            self._stop(verdict, UNVERIFIED, why, "raise --memory, or leave it out" if starved else _REPORT)
        if verdict.status == UNVERIFIED:
            self._refuse_unloaded(verdict)
        verdict.seconds = time.monotonic() - self._began
        return verdict

    def _refuse_unloaded(self, verdict: Verification) -> None:
        """A result that could not be compared, and that onnxruntime does not load where it loads the original, cannot
        take its place."""
        session = self._session
        if session.has_loaded or self.options.without or self.options.dtype == "bfloat16":  # which the CPU lacks
            return
        try:
            why = session.unloaded(1, self._result)
        except Died as e:
            why = "" if e.late else str(e)
        if why and self._loads_original():
            verdict.cases = []
            self._stop(verdict, DIFFERENT, f"{self.labels[1]}{UNLOADED}: {why}")

    def _loads_original(self, *, optimize: bool = False) -> bool:
        """Does onnxruntime load the original, as far as is known?"""
        try:
            return not self._session.unloaded(0, self.original, optimize=optimize)
        except Died:
            return False

    def _finish_alive(self, verdict: Verification) -> None:
        """What kills the original is no case: again without what is only tried, then with longer inputs."""
        try:
            return self._finish(verdict)
        except Died as e:
            died = e
        while not (self.stepwise or died.late or died.is_about(self.labels[1])):
            if not (self._session.tame() or self._session.lengthen(died)):
                break
            try:
                return self._finish(verdict)
            except Died as e:
                died = e
            except Refused:
                if not self._plan.least:
                    raise
                break  # it has no such sizes
        raise died

    def _stop(self, verdict: Verification, status: str, message: str, hint: str = "") -> None:
        verdict.status, verdict.message, verdict.hint = status, message, hint

    def _finish(self, verdict: Verification) -> None:
        from onnxopt.verification.proof import telling

        session = self._session
        session.as_before()
        self._has_further, verdict.pieces, verdict.places = False, None, []
        if self._refusal and not session.has_answers:  # nothing has changed since
            raise Refused(self._refusal)
        if not session.alive:
            session.revive(result=False)
        if self.stepwise:
            session.opening()
            if why := session.result():
                return self._stop(verdict, DIFFERENT, why)
            answers, cases = session.step_by_step()
            proof = self._proof(answers)
        else:
            answers = session.originals()
            if why := session.result():
                return self._stop(verdict, DIFFERENT, why)
            for answer in answers if session.is_steady else ():
                session.post("compare", answer.case.name, {})
            proof = self._proof(answers)  # while the worker compares
            cases = [session.compare(a) for a in answers] if session.is_steady else [a.case for a in answers]
            answers, cases = telling(answers, cases)
            for recipe in self._others(proof, cases):
                if more := self._tried(recipe, cases):
                    answers, cases = [*answers, *more], [*cases, *map(session.compare, more)]
                    proof = self._proof(answers)
        verdict.engine = session.opened.engine
        self._judge(verdict, answers, cases, proof)
        if session.alive:
            session.call("release")
        return None

    def _judge(
        self, verdict: Verification, answers: Sequence[Answer], cases: Sequence[JudgedCase], proof: Proof
    ) -> None:
        from onnxopt.verification.second_look import SecondLook
        from onnxopt.verification.verdict import conclude, is_unexplained, told_optimized, word, worst_of

        verdict.cases = [replace(c, outputs=[replace(o) for o in c.outputs]) for c in cases]
        compared = [c for c in verdict.cases if c.outputs]
        failed = next((c for s in (DIFFERENT, UNVERIFIED) for c in cases if c.status == s and not c.outputs), None)
        conclude(verdict, compared)
        weak, untaken, taken, none = proof
        second = SecondLook(self._session, self.options, foreign=self._foreign)
        looked = second.look(verdict, answers, failed, untaken, taken, weak=bool(weak or none))
        if second.is_alike:
            weak, untaken, none = {}, {}, ""
        if failed is None and (more := self._further(verdict)):
            answers, cases = [*answers, *more], [*cases, *map(self._session.compare, more)]
            return self._judge(verdict, answers, cases, proof)  # of which they are none
        if failed is not None:
            name = f"case {failed.name}: " if self.stepwise else ""
            where = f"; it goes wrong at `{verdict.places[0].value}`" if verdict.places else ""
            return self._stop(verdict, failed.status, f"{name}{failed.note.removesuffix('.')}{where}")
        if not compared and not (looked and (verdict.agrees or verdict.places)):
            if not self._session.is_steady:
                why = "the model is not deterministic: two runs of the original differ"
                note = verdict.pieces.note if verdict.pieces is not None else ""
                raise Refused(f"{why}, and {note or 'not everything could be compared in pieces'}")
            notes = [c.note for c in cases if c.note]
            self._stop(verdict, UNVERIFIED, f"no case could be compared: {notes[0] if notes else 'there is none'}")
            verdict.hint = _PLAN if "(--verify-memory)" in verdict.message else _REAL
            return None
        if verdict.status == IN_PIECES and verdict.pieces is not None and verdict.pieces.says_something:
            weak = {name: why for name, why in weak.items() if name in verdict.pieces.dead}  # values inside say more
        if verdict.pieces is not None and (verdict.pieces.complete or verdict.pieces.unseen):
            verdict.pieces.branches = [name for name, why in untaken.items() if why not in verdict.pieces.unseen]
            untaken = {why: why for why in verdict.pieces.unseen}
        if verdict.status == IN_PIECES and is_unexplained(verdict, self._plan, narrow=bool(self.options.dtype)):
            weak["the whole"] = "each piece agrees, but the whole differs by far more than rounding explains"
        session = self._session
        if session.opened.around and session.alive:
            session.opened = session.opened._replace(around=session.call("around"))
        untaken = untaken | second.unshown(verdict, answers)
        little = [*filter(None, [none]), *weak.values(), *untaken.values()]
        if second.cut_short:
            little.append(f"looking into pieces {second.cut_short}")
        if left := session.left_out:
            little.append(f"{left} more could not be run, for these took all of --timeout")
        word(verdict, little, opened=session.opened, declared=self.declared)
        if verdict.status == DIFFERENT:
            worst = worst_of(compared)
            if self.stepwise and worst is not None:
                verdict.message = f"case {worst[0].name}: {verdict.message}"
            return None
        if verdict.status == INCONCLUSIVE:
            verdict.hint = _REAL
        reached = max((n for c in compared for n in c.dims.values()), default=0)
        if self._plan.symbols and (beyond := [n for n in self._plan.other_sizes if n > reached]):
            verdict.message += f"; only one of the two has {beyond[0] - 1} as a size, which no case exceeds"
        if session.alive:
            why, original = self._optimized()
            told_optimized(verdict, why, self.labels, original=original)
        return None

    def _further(self, verdict: Verification) -> list[Answer]:
        """Where the result agrees, and something inside was not seen: more cases that the original takes, once."""
        from onnxopt.verification.inputs.cases import FURTHER, missing

        seen = verdict.pieces is None or not verdict.pieces.unseen or not verdict.agrees
        if seen or self.stepwise or self._has_further or not self._session.is_steady:
            return []
        self._has_further = True
        return self._session.further([r for r in FURTHER if not missing(r, self._plan, self.options.inputs)])

    def _others(self, proof: Proof, cases: Sequence[JudgedCase]) -> Iterator[Recipe]:
        """Cases that say more: of longer inputs, where outputs say nothing; of more rows, where a channel differs by
        much of its own range that has few numbers, which last bits may move as far."""
        from onnxopt.verification.inputs.cases import LONGER, ROWS

        if proof.weak:
            yield LONGER
        uneven = [o.shape for c in cases for o in c.outputs if o.uneven]
        if any(math.prod(shape) < _OF_A_CHANNEL * max(shape) for shape in uneven):
            yield ROWS
        if self._session.alive and not any(c.status == DIFFERENT for c in cases):
            yield from self._session.call("of_both", [*self.options.inputs])

    def _tried(self, recipe: Recipe, cases: Sequence[JudgedCase]) -> list[Answer]:
        """One more case where all agrees, if the original takes such."""
        if not self._session.is_steady or any(c.status == DIFFERENT for c in cases):
            return []
        found = self._session.further([recipe])
        if not self._session.alive:  # it died of them: who looks into pieces needs one that stands where this one stood
            self._session.revive()
            self._session.originals()
            self._session.result()
        return found

    def _proof(self, answers: Sequence[Answer]) -> Proof:
        from onnxopt.verification.proof import proof

        files = self.original, self._result
        return proof(files, self._plan, answers, fixed=self._plan.gives_all(self.options.inputs))

    def _optimized(self) -> tuple[str, bool]:
        """Why the result cannot be loaded with onnxruntime's optimizations, else empty; and whether the original can:
        there are models of float16 that onnxruntime's optimizer crashes on, whatever became of them here."""
        a, b = self.labels
        try:
            found: tuple[str, bool] = self._session.call("optimized")
            return found
        except Died as e:
            if not e.is_about(a) and not e.is_about(b):
                raise
            return str(e), e.is_about(b) and self._loads_original(optimize=True)

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Verifier:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
