"""Comparison of a model with files run in sequence in place of the model."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import UsageError
from onnxopt.verification import DIFFERENT, EQUAL, UNVERIFIED, VerifyOptions
from onnxopt.verification.inputs.cases import OWN, missing
from onnxopt.verification.inputs.datasets import Data
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.values import Case
from onnxopt.verification.job import Request
from onnxopt.verification.records import CaseRecord, Verification
from onnxopt.verification.references import DECLARED, Reference
from onnxopt.worker import Limits
from onnxopt.worker.service import Service
from onnxopt.worker.serving import Died, Refused, Tell, serve

if TYPE_CHECKING:
    from onnxopt.verification.judge import Judge

_START: Final = "from onnxopt.verification.composition import main; main()"
_ACTIVITY: Final = "running the parts"


@dataclass(frozen=True)
class Step:
    """A file to run."""

    file: Path
    inputs: tuple[str, ...]  # names required
    outputs: tuple[str, ...]  # names computed
    optional: tuple[str, ...] = ()  # names fed if known


def verify_composition(original: Path, plan: Plan, steps: Sequence[Step], options: VerifyOptions) -> Verification:
    """Run the original, and the steps in order, in a worker on inputs made by `plan`, with optimizations off.

    Returns UNVERIFIED if the original does not run, or exceeds a limit.
    """
    limit = Limits(options.limit).bytes
    with Service(_START, options.timeout, limit) as service:
        service.deadline = time.monotonic() + options.timeout
        try:
            ask = (original.absolute(), plan, steps, options.share(limit), tuple(DECLARED.values()))
            found: Verification = service.call("verify", *ask)
        except Died as e:
            is_wrong = e.state == _ACTIVITY and not e.late
            return Verification(DIFFERENT if is_wrong else UNVERIFIED, str(e))
    return found


def main() -> None:
    """Serve as the worker process."""
    serve(_Worker)


class _Worker:
    def __init__(self, tell: Tell) -> None:
        self.verify = functools.partial(_verify, tell)


def _verify(
    tell: Tell,
    original: Path,
    plan: Plan,
    steps: Sequence[Step],
    options: VerifyOptions,
    references: Sequence[Reference],
) -> Verification:
    from onnxopt.verification.judge import Judge
    from onnxopt.verification.numbers.compare import compare
    from onnxopt.verification.run import Reference as Evaluator
    from onnxopt.verification.run import is_starved, reason
    from onnxopt.verification.verdict import conclude, word

    judge = Judge(tell, whole=True)
    try:
        judge.open(str(original), options, ("the original", "the result"))
        if plan.stateful:  # onnxruntime would write into weights copied to several parts
            judge.engine = Evaluator(str(original))
        judge.refer(references)
        judge.plan(plan)
        answers = [judge.original(Request(r, Data({}))).case for r in OWN if not r.single and not missing(r, plan)]
    except Refused as e:
        return Verification(UNVERIFIED, str(e))
    kept = list(judge.kept.values())
    if not kept:
        return Verification(UNVERIFIED, f"the original fails on every input tried: {answers[0].note}")
    tell(_ACTIVITY)
    try:
        found = _run(judge, steps, [case for case, _ in kept])
    except UsageError:
        raise
    except Exception as e:
        if is_starved(e):
            return Verification(UNVERIFIED, f"the parts take more memory than they may (--memory): {reason(e)}")
        return Verification(DIFFERENT, f"the parts fail where the original runs: {reason(e)}")
    records = []
    for (case, results), values in zip(kept, found, strict=True):
        record = CaseRecord(case.name, case.dims)
        for name, expected in zip(judge.outputs, results, strict=True):
            record.outputs.append(compare(name, expected, values[name], options))
        records.append(record)
    verdict = Verification(EQUAL, "", engine=judge.engine.name, cases=list(records))
    conclude(verdict, records)
    word(verdict, sizes=False)
    verdict.message += judge.with_references((str(original), *(str(step.file) for step in steps)))
    return verdict


def _run(judge: Judge, steps: Sequence[Step], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return all values by name, for each case.

    One step is loaded at a time, as all together are as large as the model.
    """
    values = [dict(case.feeds) for case in cases]
    for step in steps:
        engine = judge.opened(str(step.file))
        for known in values:
            feeds = {name: known[name] for name in step.inputs}
            feeds |= {name: known[name] for name in step.optional if name in known}
            known.update(zip(engine.outputs, engine.run(feeds), strict=True))
    return values
