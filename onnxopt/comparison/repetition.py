"""Repetition of a run without record, to find its history and verdict."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onnxopt.bisection import explain
from onnxopt.comparison.history import History
from onnxopt.comparison.records import LARGE, graph_record
from onnxopt.graph.dims import specialise
from onnxopt.io import blaming, load
from onnxopt.optimizer import OptimizeOptions, Report, optimize_model
from onnxopt.pipeline.instruments import Timeline
from onnxopt.pipeline.journal import Entry, Journal
from onnxopt.verification import Verification, Verifier, VerifyOptions


def repeat(
    source: str | Path, options: OptimizeOptions | None = None, progress: Callable[[str], None] = lambda name: None
) -> History:
    """Return the history of optimizing `source` in memory.

    Raises the errors of `optimize_file`, except WriteError and VerificationError.
    """
    options = options or OptimizeOptions()
    progress("optimizing again")
    start = time.perf_counter()
    timeline, journal = Timeline(), Journal()
    with blaming(source):
        model = options.load(source, stored=True)
        loaded = time.perf_counter()
        pipeline = optimize_model(model, options, (timeline, journal))
    ended = time.perf_counter()
    report = Report(str(source), "", pipeline, seconds=ended - start, fixed_dims=dict(options.dims))
    report.target, report.choices = str(options.context().target), options.choices(model)
    report.changed = model.version > 0
    report.phases = {"load": loaded - start, "passes": ended - loaded}
    made = graph_record(model).signature()
    if made[0] > LARGE:
        del model
        gc.collect()  # a graph is a large reference cycle, and two further graphs are about to be read
    return History(report.to_dict(), timeline.to_list(), journal.entries, True, made)


def judge(
    source: str | Path,
    result: str | Path,
    options: OptimizeOptions | None = None,
    entries: Sequence[Entry] = (),
    tolerances: Mapping[str, float] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
) -> Verification:
    """Return the verdict on a result made with `options`, for the fixed sizes and frozen initializers.

    entries: journal of the run, to name rewrites at faults; tolerances: by pass, declared change of outputs; libraries:
    of custom operators.
    """
    options = options or OptimizeOptions()
    asked = VerifyOptions(limit=options.limits.memory, custom_op_libraries=libraries)
    with Verifier(source, options.judging(asked)) as verifier:
        verifier.start()
        model = load(source, stored=True)
        specialise(model, options.dims, options.shapes)
        verifier.describe(model.proto, model.data_of, override=not options.freeze_initializers)
        verifier.submit(result, tolerances)
        found = verifier.finish()
    found.hint = ""  # the hint addresses users who optimize
    explain(found.places, entries)
    return found
