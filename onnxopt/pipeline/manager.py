"""Run passes to a fixed point, checking and recording around each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from onnxopt.analysis import types
from onnxopt.errors import NoFixpointError, OnnxOptError, PassError
from onnxopt.graph import Model, check_model
from onnxopt.pipeline.base import Pass
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.records import PassReport, PipelineReport

_MAX_ROUNDS = 100


def run_fixpoint(
    model: Model,
    passes: Sequence[Pass],
    ctx: PassContext,
    progress: Callable[[str], None] = lambda name: None,
) -> PipelineReport:
    """Run `passes` in order, again and again, until a whole round changes nothing.

    A pass is skipped while the model is as that pass left it. Raises PassError (with the pass named) and
    NoFixpointError.
    """
    report = PipelineReport(nodes_before=model.node_count())
    reports = {p.name: PassReport(p.name) for p in passes}
    clean: dict[str, int] = {}
    start = time.perf_counter()
    while True:
        before = model.version
        types.refresh_allowed(model)
        for p in passes:
            if clean.get(p.name) == model.version:
                continue
            progress(p.name)
            _run_pass(model, p, ctx, reports[p.name])
            clean[p.name] = model.version
        report.rounds += 1
        if model.version == before or ctx.fuel.left == 0:
            break
        if report.rounds >= _MAX_ROUNDS:
            raise NoFixpointError(
                f"{model.name}: the passes undo each other's work: still changing after {report.rounds} rounds",
                "disable one of them with --disable, and report it",
            )
    report.seconds = time.perf_counter() - start
    report.nodes_after = model.node_count()
    report.passes = [r for r in reports.values() if r.runs]
    return report


def _run_pass(model: Model, p: Pass, ctx: PassContext, report: PassReport) -> None:
    ctx.rules = report.rules
    nodes, start = model.node_count(), time.perf_counter()
    try:
        p.run(model, ctx)
        if ctx.check:
            check_model(model)
    except OnnxOptError as e:
        e.message = f"pass {p.name}: {e.message}"
        raise
    except Exception as e:
        raise PassError(
            f"pass {p.name} failed on {model.name}: {type(e).__name__}: {e}",
            f"this is a bug in the pass; go on without it by --disable {p.name}, and report it",
        ) from e
    report.runs += 1
    report.seconds += time.perf_counter() - start
    report.nodes += nodes - model.node_count()
