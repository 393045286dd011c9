"""Optimize a model file into another: extract, optimize, verify, roll back. Shared by command and API."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report
from onnxopt.pipeline import Instrument
from onnxopt.pipeline.context import Trace
from onnxopt.rollback import optimize_or_roll_back
from onnxopt.verification import VerifyOptions

if TYPE_CHECKING:
    from onnxopt.conversion.extraction import Extraction
    from onnxopt.verification import Verifier


def run(
    source: Path,
    destination: Path,
    options: OptimizeOptions,
    *,
    called: tuple[str, str],
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    cut: Callable[[Extraction], None] = lambda found: None,
    verify_options: VerifyOptions | None = None,
    verifier: Verifier | None = None,
    strict: bool = False,
    allow_unverified: bool = True,
    progress: Callable[[str], None] = lambda name: None,
    instruments: Sequence[Instrument] = (),
    again: Sequence[Instrument] = (),
    trace: Trace | None = None,
    reproducer: str | Path | None = None,
    zero_weights: bool = False,
    began: float | None = None,
) -> Report:
    """Optimize `source` into `destination`; the report uses the names in `called`.

    `inputs` and `outputs`: values at the ends of the part; `cut` gets the extraction. `verifier`: a started verifier of
    `source`. `began`: start time of the caller by `time.perf_counter`, for the report. Raises the errors of
    `optimize_or_roll_back` and `extract_file`.
    """
    start = time.perf_counter() if began is None else began
    found: Extraction | None = None
    with ExitStack() as stack:
        if inputs or outputs:
            from onnxopt.conversion.extraction import cut_off

            source, found = stack.enter_context(cut_off(source, destination, inputs, outputs))
            cut(found)

        def complete(report: Report) -> None:
            report.source, report.destination = called
            report.seconds = time.perf_counter() - start
            if found is not None:
                report.pipeline.nodes_before, report.bytes_before = found.nodes_before, found.bytes_before

        try:
            report = optimize_or_roll_back(
                source,
                destination,
                options,
                verify_options=verify_options,
                verifier=verifier,
                strict=strict,
                allow_unverified=allow_unverified,
                progress=progress,
                instruments=instruments,
                again=again,
                trace=trace,
                reproducer=reproducer,
                zero_weights=zero_weights,
            )
        except DifferentResult as e:
            complete(e.report)
            raise
        complete(report)
        return report
