"""Compare a model with files that are run one after the other in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxopt.verification.compare import compare
from onnxopt.verification.inputs import Case
from onnxopt.verification.plan import Plan
from onnxopt.verification.records import CaseRecord, Verification, VerifyOptions
from onnxopt.verification.run import OnnxRuntime, Reference, Refused, reason
from onnxopt.verification.verdict import conclude
from onnxopt.verification.worker import Judge


@dataclass(frozen=True)
class Step:
    """A file to run: the names it must be fed, those it may be fed, and what it gives."""

    file: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    optional: tuple[str, ...] = ()


def verify_composition(original: Path, plan: Plan, steps: Sequence[Step], options: VerifyOptions) -> Verification:
    """Run the original, and the steps in order, on inputs made by `plan`; optimizations are off in both.

    In this process: a crash of the runtime is one of ours. Status `unverified` where the original does not run.
    """
    judge = Judge(str(original), options)
    try:
        if plan.stateful:  # onnxruntime would write into weights that parts have copies of: no comparison is fair
            judge.engine = Reference(str(original))
        else:
            judge.open(str(original))
        judge.run_original(plan)
    except Refused as e:
        return Verification("unverified", str(e))
    try:
        found = _run(steps, judge.cases, isinstance(judge.engine, OnnxRuntime))
    except Exception as e:
        return Verification("different", f"the parts fail where the original runs: {reason(e)}")
    names = judge.engine.outputs[: len(judge.results[0])]
    records = []
    for case, results, values in zip(judge.cases, judge.results, found, strict=True):
        record = CaseRecord(case.name, case.dims)
        for name, expected in zip(names, results, strict=True):
            record.outputs.append(compare(name, expected, values[name], options, plan.quantized, judge.room))
        records.append(record)
    verdict = Verification("equal", "", engine=judge.engine.name, cases=records)
    conclude(verdict, records, sizes=False)
    return verdict


def _run(steps: Sequence[Step], cases: Sequence[Case], runtime: bool) -> list[dict[str, Any]]:
    """For each case every value by name. One step is open at a time: together they are as large as the model."""
    values = [dict(case.feeds) for case in cases]
    for step in steps:
        engine: Any = OnnxRuntime(str(step.file)) if runtime else Reference(str(step.file))
        for known in values:
            feeds = {name: known[name] for name in step.inputs}
            feeds |= {name: known[name] for name in step.optional if name in known}
            known.update(zip(engine.outputs, engine.run(feeds), strict=True))
    return values
