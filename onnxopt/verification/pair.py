"""The worker of `onnxopt verify`: holds A and B, and runs both on one case at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from onnxopt.verification.cases import Recipe, sizes
from onnxopt.verification.compare import Evidence, differ, evidence, slack
from onnxopt.verification.datasets import Data
from onnxopt.verification.feeding import feed
from onnxopt.verification.inputs import Case
from onnxopt.verification.metrics import measure
from onnxopt.verification.plan import Plan
from onnxopt.verification.records import JudgedCase, MeasuredRecord, VerifyOptions
from onnxopt.verification.run import OnnxRuntime, Reference, Refused, find_provider, open_original, reason
from onnxopt.verification.service import Tell, serve

_FIRST_CHUNK: Final = 16  # values given out at once by `layers`, before their sizes are known
_CHUNK_BYTES: Final = 256 << 20  # of values of one model, from then on


@dataclass
class Request:
    """One case: a recipe, values that are given, and the outputs that are expected with them.

    `base`: sizes of dynamic dims that A is known to take.
    """

    recipe: Recipe
    data: Data
    base: dict[str, int] | None = None


@dataclass
class Answer:
    """What came of it, and what the parent judges the whole by."""

    case: JudgedCase
    evidence: dict[str, Evidence | None] = field(default_factory=dict)
    branches: dict[str, bool] = field(default_factory=dict)


class Pair:
    """A and B in one runtime, with graph optimizations off."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def open(self, a: str, b: str, plan: Plan, options: VerifyOptions) -> tuple[str, str, str]:
        """(engine, provider, why onnxruntime refused A). Raises UsageError, and Refused where A cannot be loaded."""
        self.paths = (a, b)
        self.plan = plan
        self.options = options
        self.room = slack(plan.quantized, plan.narrowest)
        self.tell("at its start")
        self.provider = find_provider(options.provider)
        self.tell("loading A")
        self.a, why = open_original(a, plan.model or a, plan.stateful, self.provider)
        conditions = plan.conditions if plan.model is not None and isinstance(self.a, OnnxRuntime) else []
        self.conditions = list(conditions)
        self.outputs = self.a.outputs[: len(self.a.outputs) - len(self.conditions)]
        return self.a.name, self.provider, why

    def open_result(self) -> str:
        """Why B cannot take the place of A; empty if it can."""
        self.tell("loading B")
        try:
            self.b = self._engine(self.paths[1])
        except Exception as e:
            return f"B cannot be loaded: {reason(e)}"
        if self.b.outputs != self.outputs:
            return f"the outputs of B are {self.b.outputs}, those of A {self.outputs}"
        return ""

    def _engine(self, path: str, give: Sequence[str] = ()) -> OnnxRuntime | Reference:
        if isinstance(self.a, Reference):
            return Reference(path, give)
        return OnnxRuntime(path, stateful=self.plan.stateful, provider=self.provider, give=give)

    def deterministic(self, request: Request) -> bool:
        """Does A give the same twice?"""
        case, first = self._feed(request)
        self.tell("running A")
        return not differ(first, self.a.run(case.feeds))

    def run(self, request: Request) -> Answer:
        """Run A, then B, and compare."""
        record = JudgedCase(request.recipe.name, {})
        try:
            case, values = self._feed(request)
        except Refused as e:
            record.status, record.note = "skipped", str(e)
            return Answer(record)
        record.dims = case.dims
        count = len(self.outputs)
        answer = Answer(record)
        answer.branches = {name: bool(v.any()) for name, v in zip(self.conditions, values[count:], strict=True)}
        answer.evidence = {name: evidence(v) for name, v in zip(self.outputs, values)}
        self.tell("running B")
        try:
            results = self.b.run(case.feeds)
        except Exception as e:
            record.status, record.note = "different", f"B fails where A runs: {reason(e)}"
            return answer
        for name, a, b in zip(self.outputs, values, results):
            record.outputs.append(self._measure(name, a, b))
            if name in request.data.expected:
                given = request.data.expected[name]
                record.outputs.append(self._measure(name, given, a, "A and file"))
                record.outputs.append(self._measure(name, given, b, "B and file"))
        if not all(o.ok for o in record.outputs):
            record.status = "different"
        return answer

    def _measure(self, name: str, a: Any, b: Any, against: str = "") -> MeasuredRecord:
        return measure(name, a, b, self.options, quantized=self.plan.quantized, room=self.room, against=against)

    def _feed(self, request: Request) -> tuple[Case, list[Any]]:
        """Inputs that A takes, and what it makes of them. Raises Refused."""
        choices = sizes(self.plan, request.recipe, request.base)
        return feed(self._run_a, self.plan, request.recipe, request.data, choices, self.options.seed)

    def _run_a(self, feeds: dict[str, Any]) -> list[Any]:
        self.tell("running A")
        return self.a.run(feeds)

    def optimized(self) -> str:
        """Why B, unlike A, cannot be loaded with onnxruntime's optimizations, as it will be deployed; else empty."""
        if not isinstance(self.a, OnnxRuntime):
            return ""
        error = ""
        for name, path in zip("BA", reversed(self.paths)):
            self.tell(f"loading {name} with optimizations")
            try:
                OnnxRuntime(path, optimize=True, provider=self.provider)
            except Exception as e:
                if name == "B":
                    error = reason(e)
                    continue
                return ""  # the optimizer cannot take A either
            break
        return f"onnxruntime's optimizer loads A but not B: {error}" if error else ""

    def layers(self, request: Request, names: Sequence[str]) -> tuple[str, MeasuredRecord | None, list[str]]:
        """(first of `names` that differs or empty, how, those compared before it), in the order of `names`.

        Values become outputs of both, some at a time, so that what is in memory stays within bounds.
        """
        case, _ = self._feed(request)
        del self.b
        compared: list[str] = []
        rest, count = list(names), _FIRST_CHUNK
        while rest:
            chunk, rest = rest[:count], rest[count:]
            a = self._values("A", chunk, case)
            a = {name: x for name, x in a.items() if not isinstance(x, Exception)}  # not all can be given out
            b = self._values("B", list(a), case)
            for name, x in a.items():
                y = b[name]
                if isinstance(y, Exception):
                    return name, MeasuredRecord(name, "", [], ok=False, note=f"B fails: {reason(y)}"), compared
                record = self._measure(name, x, y)
                if not record.ok:
                    return name, record, compared
                compared.append(name)
            used = sum(v.nbytes for v in a.values() if isinstance(v, np.ndarray))
            count = max(1, min(4 * count, _CHUNK_BYTES * len(chunk) // max(used, 1)))
        return "", None, compared

    def _values(self, which: str, names: list[str], case: Case) -> dict[str, Any]:
        """Values inside a model by name; an exception for one that cannot be had."""
        if not names:
            return {}
        self.tell(f"running {which} as far as `{names[-1]}`")
        try:
            engine = self._engine(self.paths[which == "B"], [n for n in names if n not in self.outputs])
            return dict(zip(names, engine.run_to(names, case.feeds), strict=True))
        except Exception as e:
            if len(names) < 2:
                return {names[0]: e}
        half = len(names) // 2
        return self._values(which, names[:half], case) | self._values(which, names[half:], case)


def main() -> None:
    serve(Pair)
