"""The parent's side of `onnxopt verify`: chooses the cases, has a worker run them, and judges the whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.verification.cases import RECIPES, Recipe, choose, missing
from onnxopt.verification.datasets import Data, find_data_sets, read_array
from onnxopt.verification.interface import check_interface, common_values, fix_dims, maker, read
from onnxopt.verification.pair import Answer, Request
from onnxopt.verification.plan import Plan, make_plan
from onnxopt.verification.records import Comparison, JudgedCase, Layers, VerifyOptions
from onnxopt.verification.run import Refused
from onnxopt.verification.service import Died, Service
from onnxopt.verification.verdict import conclude, weaknesses

if TYPE_CHECKING:
    from onnx import ModelProto

_START: Final = "from onnxopt.verification.pair import main; main()"


def compare_files(a: str | Path, b: str | Path, options: VerifyOptions) -> Comparison:
    """Compare two models on the cases and data that `options` ask for, with graph optimizations off.

    A crash or a hang of the runtime is a verdict. Raises ModelError for a file that cannot be read, UsageError for
    models with other inputs or outputs, for names that do not exist, and for data that the model does not take.
    """
    began = time.monotonic()
    a, b = Path(a), Path(b)
    with Service(_START, options.timeout) as service:
        models = read(a), read(b)
        check_interface(*models)
        plan = make_plan(models[0])
        fix_dims(plan, options.dims)
        result = _Session(service, a, b, models, plan, options).run()
    result.seconds = time.monotonic() - began
    return result


class _Session:
    """One comparison: what is to run, and what came of it so far."""

    def __init__(
        self,
        service: Service,
        a: Path,
        b: Path,
        models: tuple[ModelProto, ModelProto],
        plan: Plan,
        options: VerifyOptions,
    ) -> None:
        self.service = service
        self.models = models
        self.plan = plan
        self.options = options
        self.paths = (str(a.absolute()), str(b.absolute()))
        self.result = Comparison("equal", "", a=str(a), b=str(b))
        self.answers: list[Answer] = []
        self.refused = ""
        self.base: dict[str, int] | None = None
        self.given = {name: read_array(name, Path(file), plan) for name, file in options.inputs.items()}
        self.requests = list(self._requests())

    def _requests(self) -> Iterator[tuple[Recipe, Any]]:
        """(recipe, how to read its data) of each case; those that the model does not have only where they are named."""
        sets = find_data_sets(self.options.datasets, self.models[0], self.plan)
        names = self.options.cases
        if names is None and not sets and not self.given:
            names = ("all",)
        for recipe in choose(names or ()):
            why = missing(recipe, self.plan)
            others = {i.name for i in self.models[1].graph.input}
            if recipe.override and not why:
                why = "".join(f"B does not take `{n}`" for n in list(self.plan.overridable)[:1] if n not in others)
            if not why:
                yield recipe, lambda: Data(self.given)
            elif recipe.name in (names or ()):
                self.answers.append(Answer(JudgedCase(recipe.name, {}, status="skipped", note=why)))
        if self.given and not sets and self.options.cases is None:
            yield Recipe("given"), lambda: Data(self.given)
        for found in sets:
            yield Recipe(found.name), found.read

    def run(self) -> Comparison:
        try:
            if why := self._open():
                return self._stop("different", why)
            self._cases()
            self._judge()
            if self.options.layers:
                self._layers()
        except Refused as e:
            return self._stop("unverified", str(e))
        except Died as e:
            return self._stop("different" if e.state.endswith("B") else "unverified", str(e))
        return self.result

    def _open(self) -> str:
        """Why B cannot take the place of A; empty if it can. Raises Refused, Died."""
        opened = self.service.call("open", *self.paths, self.plan, self.options)
        self.result.engine, self.result.provider, self.refused = opened
        why: str = self.service.call("open_result")
        return why

    def _stop(self, status: str, message: str) -> Comparison:
        self.result.status, self.result.message = status, message
        self.result.cases = [a.case for a in self.answers]
        return self.result

    def _cases(self) -> None:
        for i, (recipe, read_data) in enumerate(self.requests):
            request = self._request(recipe, read_data)
            try:
                if not i and self.plan.random and not self.service.call("deterministic", request):
                    raise Refused("the model is not deterministic: two runs of A differ")
                answer: Answer = self.service.call("run", request)
            except Died as e:
                status = "different" if e.state.endswith("B") else "unverified"
                self.answers.append(Answer(JudgedCase(recipe.name, {}, status=status, note=str(e))))
                if e.late:  # it would again, and each time take as long
                    for other, _ in self.requests[i + 1 :]:
                        note = "not run: an earlier case did not finish"
                        self.answers.append(Answer(JudgedCase(other.name, {}, status="skipped", note=note)))
                    return
                self._open()
                continue
            self.answers.append(answer)
            if self.base is None and answer.case.status != "skipped" and recipe in RECIPES.values():
                self.base = answer.case.dims

    def _request(self, recipe: Recipe, read_data: Any) -> Request:
        data = read_data()
        return Request(recipe, replace(data, inputs=self.given | data.inputs), self.base)

    def _judge(self) -> None:
        self.result.cases = [a.case for a in self.answers]
        cases = self.result.judged
        compared = [c for c in cases if c.outputs]
        bad = next((c for s in ("different", "unverified") for c in cases if c.status == s and not c.outputs), None)
        weak = self._weak() if self.plan.inputs else []
        conclude(self.result, compared, weak, refused=self.refused)
        if self.result.status == "different":
            wrong = next(c for c in compared if any(not o.ok and o.name == self.result.worst for o in c.outputs))
            self.result.message = f"case {wrong.name}: {self.result.message}"
            self.result.hint = "" if self.options.layers else "--layers finds the first value that differs"
        elif bad is not None:
            self._stop(bad.status, f"case {bad.name}: {bad.note}")
        elif not compared:
            notes = [c.note for c in cases if c.note]
            self._stop("unverified", f"no case could be compared: {notes[0] if notes else 'there is none'}")
            self.result.hint = "give real data with --inputs"
        elif why := self.service.call("optimized"):
            self._stop("different", why)
        elif weak:
            self.result.hint = "give real data with --inputs"

    def _weak(self) -> list[str]:
        answers = [a for a in self.answers if a.evidence]
        outputs = {name: [a.evidence[name] for a in answers] for name in (answers[0].evidence if answers else ())}
        branches: dict[str, set[bool]] = {}
        for answer in answers:
            for name, taken in answer.branches.items():
                branches.setdefault(name, set()).add(taken)
        return weaknesses(outputs, branches)

    def _layers(self) -> None:
        """In the case with a difference, or else in the first that ran."""
        names, total = common_values(*self.models)
        ran = [a.case for a in self.answers if a.case.status in ("different", "equal")]
        case = next((c for c in ran if c.status == "different"), ran[0] if ran else None)
        if case is None:
            return
        found = self.result.layers = Layers(case.name, matched=len(names), named=total)
        request = next(self._request(r, read_data) for r, read_data in self.requests if r.name == case.name)
        request.base = case.dims or self.base
        try:
            if why := self._open():
                found.note = why
                return
            found.value, found.record, before = self.service.call("layers", request, names)
        except Died as e:
            found.note = str(e)
            return
        found.compared = len(before) + bool(found.value)
        if found.value:
            found.a, found.b = (maker(model, found.value) for model in self.models)
            inputs = found.a.inputs if found.a is not None else []
            found.before = [name for name in inputs if name in set(before)]
