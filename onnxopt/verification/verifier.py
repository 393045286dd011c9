"""The parent's side: has a worker run original and results, and judges what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from onnxopt.verification.protocol import Answer, Opened, Request
from onnxopt.verification.records import (
    DIFFERENT,
    IN_PIECES,
    INCONCLUSIVE,
    UNVERIFIED,
    JudgedCase,
    Verification,
    VerifyOptions,
)
from onnxopt.worker.limits import Limits
from onnxopt.worker.service import Died, Refused, Service, Spare

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxopt.verification.cases import Recipe
    from onnxopt.verification.datasets import Data
    from onnxopt.verification.plan import Plan

_START: Final = "from onnxopt.verification.judge import main; main()"
_BEYOND: Final = 1e3  # times the noise of the whole: a right result stays far below
# What imports numpy is imported where it is used: whoever starts a worker early has not done so yet.
_AT_ONCE: Final = 3  # cases looked at in pieces together
_CONSPICUOUS: Final = 1e-4  # of its range: by so much an output may not differ without a word on rounding

_CRUDE: Final = 1e-2  # of its range: less may be rounding that a network amplifies

Read = Callable[[], "Data"]


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
        start: str = _START,
        spare: Spare | None = None,
    ) -> None:
        """`labels`: what messages call the two. `stepwise`: the timeout is for each step, and what dies in one case is
        started again for the next. `spare`: where a worker comes from and goes to, that serves others too."""
        self.original = Path(original)
        self.options = options or VerifyOptions()
        self.labels = labels
        self.stepwise = stepwise
        self._start = start
        self._spare = spare
        self._service: Service | None = None
        self._plan: Plan | None = None
        self.declared: dict[str, float] = {}  # what passes allow themselves, where that decides
        self._requests: list[tuple[Recipe, Read]] = []
        self._answers: list[Answer] | None = None  # of the original
        self._opened = Opened()
        self._steady = True  # does the original give the same twice?
        self._base: dict[str, int] | None = None
        self._refusal = ""  # why the original could not be run
        self._began = 0.0
        self._path = ""

        limit = Limits(self.options.limit).bytes
        self._limit_bytes = 0 if self.options.provider else limit  # a device's memory is mapped into the process
        self.options = self.options.share(self._limit_bytes)
        self._given = self.options

    def _serve(self) -> Service:
        make = Service if self._spare is None else self._spare.take
        return make(self._start, self.options.timeout, self._limit_bytes)

    # -- what it is told ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the worker, unless it runs already or there is nothing to open."""
        if self._service is not None or not self.original.is_file():
            return
        self._service = self._serve()
        self._limit()
        self._post("open", str(self.original.absolute()), self.options, self.labels, self.stepwise)

    def describe(self, original: ModelProto, *, override: bool = True) -> None:
        """Tell the worker what the original expects; it runs it then. `submit` does this if nobody did before.

        `override`: initializers that are also inputs may be given other values (False: nobody does so). Raises
        UsageError for inputs and dims that the options give and the model does not have.
        """
        from onnxopt.verification.cases import OWN, missing
        from onnxopt.verification.datasets import Data, read_array
        from onnxopt.verification.interface import fix_dims
        from onnxopt.verification.plan import make_plan

        plan = make_plan(original)
        if not override:
            plan.overridable = {}
        given = {name: read_array(name, Path(file), plan) for name, file in self.options.inputs.items()}
        fix_dims(plan, self.options.dims)
        self.prepare(plan, [(r, lambda: Data(given)) for r in OWN if not missing(r, plan, given)])

    def prepare(self, plan: Plan, requests: Sequence[tuple[Recipe, Read]]) -> None:
        """The same with a plan and the cases, and how to read their data."""
        self.start()
        self._plan, self._requests = plan, list(requests)
        self._post("plan", plan)
        self._post_originals()

    def _post_originals(self) -> None:
        """Where the worker need not wait for us."""
        if self.stepwise:
            return
        for recipe, read in self._requests:
            self._post("original", Request(recipe, read()))
        if self._plan is not None and self._plan.random:
            self._post("deterministic")

    def submit(self, result: str | Path, tolerances: Mapping[str, float] | None = None) -> None:
        """Hand over the result; the worker compares it while the caller does something else. `tolerances`: by how much
        of an output's range passes said that they change it, which counts unless the options say what is allowed."""
        self._began = time.monotonic()
        self.start()
        if self._plan is None:
            from onnx import load

            self.describe(load(self.original, load_external_data=False))
        self._path = str(Path(result).absolute())
        self.declared = dict(tolerances or {}) if not self._given.by_tolerance else {}
        self.options = self._given.allowing(self.declared)
        if self._answers is not None:
            self._limit()
        if not self.stepwise:
            self._post("result", self._path, self.options)

    def _limit(self) -> None:
        if not self.stepwise and self._service is not None:
            self._service.deadline = time.monotonic() + self.options.timeout

    def _post(self, method: str, *args: Any) -> None:
        assert self._service is not None
        self._service.post(method, *args)

    def _call(self, method: str, *args: Any) -> Any:
        assert self._service is not None
        return self._service.call(method, *args)

    @property
    def provider(self) -> str:
        """The execution provider that ran both."""
        return self._opened.provider

    # -- the verdict -------------------------------------------------------------------------------------

    def finish(self, into: Verification | None = None) -> Verification:
        """The verdict on the submitted result. Never raises for what a runtime does. Others may be submitted after."""
        verdict = into if into is not None else Verification(UNVERIFIED, "")
        try:
            self._finish(verdict)
        except Refused as e:
            self._refusal = str(e)
            if self._service is not None:
                self._service.drain()
            self._stop(verdict, UNVERIFIED, str(e), f"{self.labels[1]} was not compared with {self.labels[0]}")
        except Died as e:
            if e.is_about(self.labels[1]):
                self._stop(verdict, DIFFERENT, str(e), "it ran with the original; report it")
            else:
                self._stop(verdict, UNVERIFIED, str(e), "give it data that the model is made for")
        verdict.seconds = time.monotonic() - self._began
        return verdict

    def _stop(self, verdict: Verification, status: str, message: str, hint: str = "") -> None:
        verdict.status, verdict.message, verdict.hint = status, message, hint

    def _finish(self, verdict: Verification) -> None:
        assert self._plan is not None
        if self._refusal and self._answers is None:  # nothing has changed since
            raise Refused(self._refusal)
        if self._service is None or not self._service.alive:
            self._revive(result=False)
        if self.stepwise:
            self._open()
            if why := self._call("result", self._path, self.options):
                return self._stop(verdict, DIFFERENT, why)
            answers, cases = self._step_by_step()
        else:
            answers = self._originals()
            if why := self._call("result", self._path, self.options):
                return self._stop(verdict, DIFFERENT, why, _REPORT)
            cases = [self._compare(a) for a in answers] if self._steady else [a.case for a in answers]
        verdict.engine = self._opened.engine
        verdict.cases = list(cases)
        self._judge(verdict, answers, cases)
        if self._service is not None and self._service.alive:
            self._call("release")
        return None

    def _open(self) -> None:
        self._call("open", str(self.original.absolute()), self.options, self.labels, self.stepwise)
        self._opened = self._call("plan", self._plan)

    def _revive(self, *, result: bool = True) -> None:
        """A worker that stands where the one stood that died."""
        if self._service is None or not self._service.alive:
            self._service = self._serve()
            self._limit()
        self._post("open", str(self.original.absolute()), self.options, self.labels, self.stepwise)
        self._post("plan", self._plan)
        self._post_originals()
        self._answers = None
        if result or not self.stepwise:
            self._post("result", self._path, self.options)

    def _originals(self) -> list[Answer]:
        """What came of running the original. Raises Refused where that is nothing."""
        if self._answers is not None:
            return self._answers
        self._open()
        assert self._plan is not None
        found: list[Answer] = [self._call("original", Request(recipe, read())) for recipe, read in self._requests]
        for answer, (recipe, _) in zip(found, self._requests):
            if answer.case.status == "skipped" and recipe.override:
                raise Refused(f"the original fails with other values for its initializers: {answer.case.note}")
        if self._plan.random:
            self._steady = self._call("deterministic")
        taken = [a for a in found if a.case.status != "skipped"]
        if not taken:
            why = found[0].case.note if found else "there is no input to try"
            raise Refused(why.replace("the original does not take it: ", "the original fails on every input tried: "))
        self._answers = taken
        return taken

    def _compare(self, answer: Answer, data: Data | None = None) -> JudgedCase:
        expected = data.expected if data is not None else {}
        found: JudgedCase = self._call("compare", answer.case.name, expected)
        if found.status != DIFFERENT and any(not o.ok for o in found.outputs):
            found.status = DIFFERENT
        return found

    def _step_by_step(self) -> tuple[list[Answer], list[JudgedCase]]:
        """Each case on its own: a death in one is its verdict."""
        from onnxopt.verification.cases import RECIPES

        assert self._plan is not None
        answers: list[Answer] = []
        cases: list[JudgedCase] = []
        for i, (recipe, read) in enumerate(self._requests):
            data = read()
            try:
                answer: Answer = self._call("original", Request(recipe, data, self._base))
                if answer.case.status == "skipped":
                    cases.append(answer.case)
                    continue
                if not answers and self._plan.random:
                    self._steady = self._call("deterministic")
                cases.append(self._compare(answer, data) if self._steady else answer.case)
                answers.append(answer)
            except Died as e:
                status = DIFFERENT if e.is_about(self.labels[1]) else UNVERIFIED
                cases.append(JudgedCase(recipe.name, {}, status=status, note=str(e)))
                if e.late:  # it would again, and each time take as long
                    note = "not run: an earlier case did not finish"
                    cases += [JudgedCase(r.name, {}, status="skipped", note=note) for r, _ in self._requests[i + 1 :]]
                    break
                self._revive()
                for method in ("open", "plan", "result"):
                    self._call(method)
            if self._base is None and answers and recipe in RECIPES.values():
                self._base = answers[-1].case.dims
        return answers, cases

    def _judge(self, verdict: Verification, answers: Sequence[Answer], cases: Sequence[JudgedCase]) -> None:
        from onnxopt.verification.verdict import conclude, word

        compared = [c for c in cases if c.outputs]
        failed = next((c for s in (DIFFERENT, UNVERIFIED) for c in cases if c.status == s and not c.outputs), None)
        conclude(verdict, compared)
        weak, untaken = self._weak(answers)
        looked = self._look(verdict, answers, failed, untaken, weak=bool(weak))
        if failed is not None:
            name = f"case {failed.name}: " if self.stepwise else ""
            where = f"; it goes wrong at `{verdict.places[0].value}`" if verdict.places else ""
            return self._stop(verdict, failed.status, f"{name}{failed.note}{where}", "" if self.stepwise else _REPORT)
        if not compared and not (looked and (verdict.agrees or verdict.places)):
            if not self._steady:
                why = "the model is not deterministic: two runs of the original differ"
                note = verdict.pieces.note if verdict.pieces is not None else ""
                raise Refused(f"{why}, and {note or 'not everything could be compared in pieces'}")
            notes = [c.note for c in cases if c.note]
            self._stop(verdict, UNVERIFIED, f"no case could be compared: {notes[0] if notes else 'there is none'}")
            verdict.hint = "give real data with --inputs"
            return None
        if verdict.status == IN_PIECES and verdict.pieces is not None and verdict.pieces.says_something:
            weak = {}  # the values inside say more than the outputs
            untaken = {name: why for name, why in untaken.items() if name not in verdict.pieces.branches}
        if verdict.status == IN_PIECES and self._is_unexplained(verdict):
            weak["the whole"] = "each piece agrees, but the whole differs by far more than rounding explains"
        if self._opened.around and self._service is not None and self._service.alive:
            self._opened = self._opened._replace(around=self._call("around"))
        word(verdict, [*weak.values(), *untaken.values()], opened=self._opened, declared=self.declared)
        if verdict.status == DIFFERENT:
            wrong = next((c for c in compared if any(not o.ok for o in c.outputs)), None)
            if self.stepwise and wrong is not None:
                verdict.message = f"case {wrong.name}: {verdict.message}"
            verdict.hint = "" if self.stepwise else _REPORT
        elif self._service is not None and self._service.alive and (why := self._call("optimized")):
            self._stop(verdict, DIFFERENT, why, "" if self.stepwise else _REPORT)
        elif verdict.status == INCONCLUSIVE:
            verdict.hint = f"give real data with {'--inputs' if self.stepwise else '--input NAME=FILE.npy'}"
        return None

    def _is_unexplained(self, verdict: Verification) -> bool:
        """Does the whole differ by much more than rounding does, where nothing is decided that could jump?"""
        decides = self._plan is None or self._plan.decides or self._plan.random or self._plan.stateful
        noise = max(verdict.noise.values(), default=0.0)
        return not decides and 0 < _BEYOND * noise < verdict.worst_rel

    def _weak(self, answers: Sequence[Answer]) -> tuple[dict[str, str], dict[str, str]]:
        """Why the cases prove little, by output; and by value that decides a branch."""
        from onnxopt.verification.verdict import untaken_branches, weak_outputs

        assert self._plan is not None
        found = [a for a in answers if a.evidence]
        if not self._plan.inputs or not found:
            return {}, {}
        outputs = {name: [a.evidence[name] for a in found] for name in found[0].evidence}
        branches: dict[str, set[bool]] = {}
        for answer in answers:
            for name, taken in answer.branches.items():
                branches.setdefault(name, set()).add(taken)
        return weak_outputs(outputs, self._plan.gives_all(self.options.inputs)), untaken_branches(branches)

    # -- the second look ---------------------------------------------------------------------------------

    def _look(
        self,
        verdict: Verification,
        answers: Sequence[Answer],
        failed: JudgedCase | None,
        untaken: Mapping[str, str],
        *,
        weak: bool,
    ) -> bool:
        """Look into pieces where outputs leave something open; False where they do not, or nothing is to be seen."""
        from onnxopt.verification.verdict import settle

        assert self._plan is not None
        rough = verdict.status == DIFFERENT or failed is not None
        hidden = self._plan.decides and not verdict.exact
        if not (rough or hidden or weak or untaken or self.options.pieces or self.options.dtype or not self._steady):
            return False
        wrong = {c.name for c in verdict.cases if any(not o.ok for o in c.outputs)} | {failed.name if failed else ""}
        names = [a.case.name for a in answers if a.case.name in wrong] or [a.case.name for a in answers]
        pieces, places = None, []
        try:
            for i in range(0, len(names), _AT_ONCE):
                group = names[i : i + _AT_ONCE]
                self._hold(group)
                found, places = self._call("pieces", group, list(untaken))
                pieces = found if pieces is None else pieces.joined(found)
                if places:
                    break
            if pieces is None:
                return False
            told = verdict.worst_rel > _CONSPICUOUS and verdict.worst_rel < float("inf")
            noise = self._call("noise", names[:_AT_ONCE]) if told or (rough and not pieces.complete) else {}
        except Died as e:
            if verdict.worst_rel < _CRUDE and verdict.status == DIFFERENT:  # it may be rounding: nobody is accused
                raise Refused(f"the outputs differ by {verdict.worst_rel:.1e}, and looking into pieces {e}") from None
            return False
        if self.options.by_tolerance or failed is not None:
            verdict.pieces, verdict.places, verdict.noise = pieces, places, noise
        else:
            settle(verdict, pieces, places, noise)
        return True

    def _hold(self, names: Sequence[str]) -> None:
        """Have the worker run the original again where it does not remember a case."""
        if self.stepwise:
            for recipe, read in self._requests:
                if recipe.name in names:
                    self._call("hold", Request(recipe, read(), self._base))

    def close(self) -> None:
        if self._service is not None and self._spare is not None:
            self._spare.keep(self._service)
            self._service = None
        elif self._service is not None:
            self._service.close()

    def __enter__(self) -> Verifier:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


_REPORT: Final = "nothing was written; find the pass with --disable NAME, and report it"
