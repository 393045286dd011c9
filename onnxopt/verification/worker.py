"""The child process that runs models: a crash or a hang here is a verdict, not the end of onnxopt.

Messages on stdin and on a private copy of stdout. First the original's path, which is
loaded at once; then its plan, to run it, answered by None or why not; then a result's path, answered by a Verification.
It ends when stdin does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from onnxopt.verification.compare import compare, differ, evidence, slack
from onnxopt.verification.frames import receive, send
from onnxopt.verification.inputs import MODES, Case, InputMaker, Unsupported
from onnxopt.verification.plan import Plan
from onnxopt.verification.records import CaseRecord, Verification, VerifyOptions
from onnxopt.verification.run import OnnxRuntime, Reference, Refused, open_original, reason
from onnxopt.verification.verdict import conclude, weaknesses


class Judge:
    """Holds what the original computed, and compares a result with it."""

    def __init__(self, path: str, options: VerifyOptions) -> None:
        self.path = path
        self.options = options
        self.branches: dict[str, set[bool]] = {}
        self.engine: Any = None
        self.refused_by_runtime = ""
        self.cases: list[Case] = []
        self.results: list[list[Any]] = []

    def open(self, model: str | bytes, stateful: bool = False) -> None:
        """Load the original; where onnxruntime cannot, the reference evaluator may. Raises Refused."""
        self.engine, self.refused_by_runtime = open_original(self.path, model, stateful)

    def run_original(self, plan: Plan) -> None:
        """Run the original on two sets of inputs, of two sizes where it is dynamic. Raises Refused."""
        given = {name: np.load(file, allow_pickle=False) for name, file in self.options.inputs.items()}
        unknown = [name for name in given if name not in plan.names]
        if unknown:
            raise Refused(f"the model has no input `{unknown[0]}`; it has {', '.join(plan.names)}")
        if (plan.model is not None or plan.stateful) and isinstance(self.engine, OnnxRuntime):
            self.open(plan.model or self.path, plan.stateful)
            self.branches = {name: set() for name in plan.conditions}
        self.plan = plan
        self.room = slack(plan.quantized, plan.narrowest)
        maker = InputMaker(plan, given, self.options.seed)
        self._try_sizes(maker)
        if len(self.cases) == 1 and plan.inputs:
            case = maker.make("case 2", self.cases[0].dims, 1)
            with contextlib.suppress(Exception):  # the first stands, should these values not be to the model's taste
                self._keep(case, self.engine.run(case.feeds))
        if plan.overridable:
            case = maker.override(self.cases[0])
            try:
                self._keep(case, self.engine.run(case.feeds))
            except Exception as e:
                raise Refused(f"the original fails with other values for its initializers: {reason(e)}") from e
        if plan.random:
            again = self.engine.run(self.cases[0].feeds)[: len(self.results[0])]
            if differ(self.results[0], again):
                raise Refused("the model is not deterministic: two runs of the original differ")

    def _try_sizes(self, maker: InputMaker) -> None:
        error: Exception | None = None
        for dims in self.plan.size_choices():
            if any(dims[s] == c.dims[s] for c in self.cases for s in dims if not self.plan.is_batch(s)):
                continue
            for mode in MODES:
                try:
                    case = maker.make(f"case {len(self.cases) + 1}", dims, len(self.cases), mode)
                    results = self.engine.run(case.feeds)
                except Unsupported as e:
                    raise Refused(str(e)) from e
                except Exception as e:
                    error = e
                    continue
                self._keep(case, results)
                break
            if len(self.cases) == 2:
                return
        if not self.cases:
            raise Refused(f"the original fails on every input tried: {reason(error) if error else 'no input'}")

    def _keep(self, case: Case, results: list[Any]) -> None:
        count = len(results) - len(self.branches)
        for name, value in zip(self.branches, results[count:], strict=True):
            self.branches[name].add(bool(value.any()))
        self.cases.append(case)
        self.results.append(results[:count])

    def judge(self, path: str) -> Verification:
        """Compare the result at `path`. Deployed with optimizations on it must load too, if the original does."""
        if not isinstance(self.engine, OnnxRuntime):
            return self._judge(path)
        with ThreadPoolExecutor(1) as pool:  # the runtime lets go of the lock: this costs no time of ours
            optimized = pool.submit(OnnxRuntime, path, True)
            verdict = self._judge(path)
            error = optimized.exception()
        if verdict.status in ("equal", "inconclusive") and error is not None:
            try:
                OnnxRuntime(self.path, optimize=True)
            except Exception:  # the runtime's optimizer cannot take the original either
                return verdict
            verdict.status = "different"
            verdict.message = f"onnxruntime's optimizer loads the original but not the result: {reason(error)}"
        return verdict

    def _judge(self, path: str) -> Verification:
        try:
            engine: Any = (
                OnnxRuntime(path, stateful=self.plan.stateful)
                if isinstance(self.engine, OnnxRuntime)
                else Reference(path)
            )
        except Exception as e:
            return Verification("different", f"the result cannot be loaded: {reason(e)}")
        names = self.engine.outputs[: len(self.results[0])]
        if engine.outputs != names:
            return Verification("different", f"the outputs are {engine.outputs}, they were {names}")
        records = []
        for case, originals in zip(self.cases, self.results):
            try:
                results = engine.run(case.feeds)
            except Exception as e:
                return Verification("different", f"the result fails where the original runs: {reason(e)}")
            record = CaseRecord(case.name, case.dims)
            for name, a, b in zip(names, originals, results):
                record.outputs.append(compare(name, a, b, self.options, self.plan.quantized, self.room))
            records.append(record)
        return self._verdict(records, names)

    def _verdict(self, records: list[CaseRecord], names: list[str]) -> Verification:
        verdict = Verification("equal", "", engine=self.engine.name, cases=records)
        outputs = {name: [evidence(r[i]) for r in self.results] for i, name in enumerate(names) if self.plan.inputs}
        weak = weaknesses(outputs, self.branches)
        conclude(verdict, records, weak, refused=self.refused_by_runtime)
        if verdict.status == "different":
            verdict.hint = "nothing was written; find the pass with --disable NAME, and report it"
            kind = next(o.dtype for c in records for o in c.outputs if not o.ok and o.name == verdict.worst)
            if "int" in kind or kind == "bool":
                verdict.hint = "integers that rank or threshold floats flip in near ties: try -O1, which is exact"
        elif verdict.status == "inconclusive":
            verdict.hint = "give real data with --input NAME=FILE.npy"
        return verdict


def main() -> None:
    """Serve one parent: the original and options, its plan, then results."""
    source = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as target:
        os.dup2(2, 1)  # whatever a runtime prints must not enter the frames
        judge = Judge(*receive(source))
        refused = None
        try:
            judge.open(judge.path)
            judge.run_original(receive(source))
        except Refused as e:
            refused = str(e)
        except EOFError:
            return
        except Exception as e:
            refused = f"{type(e).__name__}: {e}"
        send(target, refused)
        while refused is None:
            try:
                result = receive(source)
            except EOFError:
                return
            send(target, judge.judge(result))


if __name__ == "__main__":
    main()
