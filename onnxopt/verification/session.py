"""The parent's conversation with its worker: what was asked of it, so that one that dies is followed by another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.verification.options import DIFFERENT, UNVERIFIED, VerifyOptions
from onnxopt.verification.protocol import Answer, Opened, Request
from onnxopt.verification.records import LEFT_OUT, JudgedCase
from onnxopt.worker.service import Died, Service, Spare
from onnxopt.worker.serving import Refused

if TYPE_CHECKING:
    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.datasets import Data
    from onnxopt.verification.inputs.plan import Plan

_SMALL: Final = 1 << 20  # bytes that are loaded sooner than somebody is told to
_LOADING: Final = 60.0  # seconds for a load that is all that is asked for
START: Final = "from onnxopt.verification.judge import main; main()"

Read = Callable[[], "Data"]


class Session:
    """Original and results in a worker, one case after another.

    `stepwise`: the timeout is for each step, and what dies in one case is started again for the next. `memory`: bytes
    that the worker may take, 0 for all there are. `opened`: what runs the original; `is_steady`: it gives the same
    twice; `left_out`: cases that were not begun, for want of time.
    """

    def __init__(
        self,
        original: Path,
        labels: tuple[str, str],
        *,
        stepwise: bool = False,
        memory: int = 0,
        start: str = START,
        spare: Spare | None = None,
    ) -> None:
        self.original = original
        self.labels = labels
        self.stepwise = stepwise
        self.plan: Plan | None = None
        self.opened = Opened()
        self.is_steady = True
        self.left_out = 0
        self._memory = memory
        self._start = start
        self._spare = spare
        self._service: Service | None = None
        self._requests: list[tuple[Recipe, Read]] = []
        self._answers: list[Answer] | None = None  # of the original
        self._more = 0  # of these, that are there for one result only
        self._base: dict[str, int] | None = None
        self._path = ""
        self._options = VerifyOptions()
        self._waits = False  # for a result, before anything is opened
        self.has_loaded = False  # is it known that the result can be loaded?
        self.is_rushed = False  # has a result less time than the original took?

    # -- the worker --------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._service is not None and self._service.alive

    @property
    def has_answers(self) -> bool:
        """Has the original been run?"""
        return self._answers is not None

    @property
    def has_result(self) -> bool:
        return bool(self._path)

    def start(self, options: VerifyOptions) -> None:
        """Start the worker, unless it runs already or there is nothing to open. Of many small models most do not
        change: nothing is opened before there is a result."""
        if self._service is not None or self._waits or not self.original.is_file():
            return
        self._options = options
        if self._spare is not None and self.original.stat().st_size <= _SMALL:
            self._waits = True
            self._spare.prepare(self._start, options.timeout, self._memory)
        else:
            self._begin()

    def _begin(self) -> None:
        self._waits = False
        self._serve()
        self._open()

    def _serve(self) -> None:
        make = Service if self._spare is None else self._spare.take
        self._service = make(self._start, self._options.timeout, self._memory)
        self.limit()

    def limit(self) -> None:
        """All that is asked from now on has the time of the options together, unless it is counted step by step."""
        self.is_rushed = False
        if not self.stepwise and self._service is not None:
            self._service.deadline = time.monotonic() + self._options.timeout

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Step by step, all that is asked inside has the timeout together, however many steps it takes."""
        service = self._service
        if self.stepwise and service is not None:
            service.deadline = time.monotonic() + self._options.timeout
        try:
            yield
        finally:
            if self.stepwise and service is not None:
                service.deadline = None

    def post(self, method: str, *args: Any) -> None:
        assert self._service is not None
        self._service.post(method, *args)

    def call(self, method: str, *args: Any) -> Any:
        assert self._service is not None
        return self._service.call(method, *args)

    def drain(self) -> None:
        if self._service is not None:
            self._service.drain()

    def close(self) -> None:
        if self._service is not None and self._spare is not None:
            self._spare.keep(self._service)
            self._service = None
        elif self._service is not None:
            self._service.close()

    # -- what it is told ---------------------------------------------------------------------------------

    def prepare(self, plan: Plan, requests: Sequence[tuple[Recipe, Read]]) -> None:
        """What the original asks for, the cases, and how to read their data."""
        self.plan, self._requests = plan, list(requests)
        if self._waits and plan.bytes > _SMALL:  # beside the model
            self._begin()
        if not self._waits:
            self._post_plan()

    def submit(self, path: str, options: VerifyOptions) -> None:
        """The result, and what it may be allowed."""
        self._path, self._options, self.has_loaded = path, options, False
        if self._waits:
            self._begin()
            self._post_plan()
        if self._answers is not None:
            self.limit()
        if self.alive and not self.stepwise:  # one that died is replaced first
            self._post_result()

    def _open(self) -> None:
        self.post("open", str(self.original.absolute()), self._options, self.labels, self.stepwise)

    def _post_plan(self) -> None:
        self.post("plan", self.plan)
        self._post_originals()

    def _post_originals(self) -> None:
        """Where the worker need not wait for us."""
        if self.stepwise:
            return
        for recipe, read in self._requests:
            self.post("original", Request(recipe, read()))
        if self.plan is not None and self.plan.random:
            self.post("deterministic")

    def _post_result(self) -> None:
        self.post("result", self._path, self._options)

    def revive(self, *, result: bool = True) -> None:
        """A worker that stands where the one stood that died."""
        if not self.alive:
            self._serve()
        self._open()
        self._post_plan()
        self._answers = None
        if result or not self.stepwise:
            self._post_result()

    def tame(self) -> bool:
        """Leave out the cases that are only tried, and what is only tried in others; False where that was done."""
        assert self.plan is not None
        is_tried = {recipe.name: recipe.wide or recipe.single or recipe.flags > 0 for recipe, _ in self._requests}
        bold = any(is_tried[recipe.name] or recipe.is_bold(self.plan) for recipe, _ in self._requests)
        self._requests = [
            (replace(recipe, tame=True), read) for recipe, read in self._requests if not is_tried[recipe.name]
        ]
        return bold

    def lengthen(self, died: Died) -> bool:
        """Have longer inputs, where the original may have died of too short ones; False where that was done, or it is
        not what it died of: then longer ones would only take longer."""
        is_of_sizes = died.state == f"running {self.labels[0]}" and not died.late and "SIGKILL" not in died.how
        return is_of_sizes and self.plan is not None and self.plan.lengthen()

    # -- what it answers ---------------------------------------------------------------------------------

    def opening(self) -> None:
        """Wait until the original is open."""
        self.call("open", str(self.original.absolute()), self._options, self.labels, self.stepwise)
        self.opened = self.call("plan", self.plan)

    def result(self) -> str:
        """Why the result cannot take the place of the original; empty if it can."""
        why: str = self.call("result", self._path, self._options)
        self.has_loaded = not why
        return why

    def originals(self) -> list[Answer]:
        """What came of running the original. Raises Refused where that is nothing."""
        if self._answers is not None:
            return self._answers
        self.opening()
        assert self.plan is not None
        found: list[Answer] = [self.call("original", Request(recipe, read())) for recipe, read in self._requests]
        for answer, (recipe, _) in zip(found, self._requests):
            if answer.case.status == "skipped" and recipe.override:
                raise Refused(f"the original fails with other values for its initializers: {answer.case.note}")
        if self.plan.random:
            self.is_steady = self.call("deterministic")
        assert self._service is not None
        if self._service.deadline is not None:
            now = time.monotonic()
            self.is_rushed = self._service.deadline - now < now - self._service.heard
        taken = [a for a in found if a.case.status != "skipped"]
        if not taken:
            why = found[0].case.note if found else "there is no input to try"
            runs = "the original"
            if self.opened.refused:
                runs = (
                    f"onnxruntime cannot load the original ({self.opened.refused}), and in the reference evaluator it"
                )
            raise Refused(why.replace("the original does not take it: ", f"{runs} fails on every input tried: "))
        self._answers = taken
        return taken

    def further(self, recipes: Sequence[Recipe]) -> list[Answer]:
        """Run the original on more cases, for the result that is there: what came of these. None where that is the end
        of the worker: what kills the original is no case."""
        known = list(self._requests)
        new = [(recipe, known[0][1]) for recipe in recipes if known]
        try:
            found: list[Answer] = [self.call("original", Request(recipe, read())) for recipe, read in new]
        except Died:
            return []
        taken = [answer.case.name for answer in found if answer.case.status != "skipped"]
        self._requests += [(recipe, read) for recipe, read in new if recipe.name in taken]
        self._more += len(taken)
        more = [answer for answer in found if answer.case.name in taken]
        self._answers = [*(self._answers or ()), *more]
        return more

    def as_before(self) -> None:
        """The cases that there were at first: what is seen in others only, the next result may hide there."""
        if self._more:
            del self._requests[-self._more :]
            if self._answers:
                del self._answers[-self._more :]
        self._more = 0

    def compare(self, answer: Answer, data: Data | None = None) -> JudgedCase:
        expected = data.expected if data is not None else {}
        found: JudgedCase = self.call("compare", answer.case.name, expected)
        if found.status != DIFFERENT and any(not o.ok for o in found.outputs):
            found.status = DIFFERENT
        return found

    def step_by_step(self) -> tuple[list[Answer], list[JudgedCase]]:
        """Each case on its own: a death in one is its verdict. No more is begun once those before took the timeout
        together."""
        from onnxopt.verification.inputs.cases import RECIPES

        assert self.plan is not None
        answers: list[Answer] = []
        cases: list[JudgedCase] = []
        self.left_out, i, end = 0, 0, time.monotonic() + self._options.timeout
        while i < len(self._requests):
            recipe, read = self._requests[i]
            if answers and time.monotonic() > end:
                rest = [JudgedCase(r.name, {}, status="skipped", note=LEFT_OUT) for r, _ in self._requests[i:]]
                self.left_out = len(rest)
                cases += rest
                break
            i += 1
            data = read()
            try:
                answer: Answer = self.call("original", Request(recipe, data, self._base))
                if answer.case.status == "skipped":
                    cases.append(answer.case)
                    continue
                if not answers and self.plan.random:
                    self.is_steady = self.call("deterministic")
                cases.append(self.compare(answer, data) if self.is_steady else answer.case)
                answers.append(answer)
            except Died as e:
                status = DIFFERENT if e.is_about(self.labels[1]) else "skipped" if recipe.wide else UNVERIFIED
                if status == UNVERIFIED and not e.late and recipe.is_bold(self.plan):
                    i -= 1
                    self._requests[i] = replace(recipe, tame=True), read
                elif status == UNVERIFIED and not answers and self.lengthen(e):
                    i -= 1
                else:
                    cases.append(JudgedCase(recipe.name, {}, status=status, note=str(e)))
                if e.late:  # it would again, and each time take as long
                    note = "not run: an earlier case did not finish"
                    cases += [JudgedCase(r.name, {}, status="skipped", note=note) for r, _ in self._requests[i:]]
                    break
                self.revive()
                for method in ("open", "plan", "result"):
                    self.call(method)
            if self._base is None and answers and recipe in RECIPES.values():
                self._base = answers[-1].case.dims
        return answers, cases

    def unloaded(self, which: int, path: str | Path, *, optimize: bool = False) -> str:
        """Why onnxruntime does not load a file, which is called by the label `which`; empty where it does, or that is
        not known. A worker that is started for that ends, so that whoever is next starts anew. Raises Died."""
        label, was_alive = self.labels[which], self.alive
        if not was_alive:
            self._serve()
        assert self._service is not None
        if self._service.deadline is not None:
            self._service.deadline = time.monotonic() + min(self._options.timeout, _LOADING)
        try:
            found: str = self.call("unloaded", str(Path(path).absolute()), label, self.opened.provider, optimize)
            return found
        except Refused:
            return ""
        finally:
            if not was_alive:
                self._service.close()

    def hold(self, names: Sequence[str]) -> None:
        """Have the worker run the original again where it does not remember a case."""
        if self.stepwise:
            for recipe, read in self._requests:
                if recipe.name in names:
                    self.call("hold", Request(recipe, read(), self._base))
