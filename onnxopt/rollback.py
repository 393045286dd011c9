"""When a result differs from the original: leave out the rewrite that makes it so, and optimize again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.api import DifferentResult, OptimizeOptions, Report, RolledBack, optimize_file
from onnxopt.errors import OnnxOptError
from onnxopt.verification import Verifier, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.bisect import Finding
    from onnxopt.pipeline import Instrument

_MOST = 8  # rules left out before we give up


def optimize_or_roll_back(
    source: str | Path,
    destination: str | Path,
    options: OptimizeOptions,
    *,
    verify_options: VerifyOptions | None = None,
    verifier: Verifier | None = None,
    strict: bool = False,
    progress: Callable[[str], None] = lambda name: None,
    instruments: Sequence[Instrument] = (),
    again: Sequence[Instrument] = (),
    reproducer: str | Path | None = None,
    zero_weights: bool = False,
) -> Report:
    """`optimize_file`, and `roll_back` where the result differs, unless `strict`. `verify_options` None: not verified.

    `again`: the instruments of runs after the first. Raises what `optimize_file` raises.
    """
    try:
        return optimize_file(
            source,
            destination,
            options,
            check_result=verify_options is not None,
            verify_options=verify_options,
            verifier=verifier,
            progress=progress,
            instruments=instruments,
            reproducer=reproducer,
            zero_weights=zero_weights,
        )
    except DifferentResult as e:
        if strict:
            raise
        return roll_back(
            e,
            source,
            destination,
            options,
            verify_options=verify_options,
            progress=progress,
            instruments=again,
            reproducer=reproducer,
        )


def roll_back(
    error: DifferentResult,
    source: str | Path,
    destination: str | Path,
    options: OptimizeOptions | None = None,
    *,
    verify_options: VerifyOptions | None = None,
    progress: Callable[[str], None] = lambda name: None,
    instruments: Sequence[Instrument] = (),
    reproducer: str | Path | None = None,
) -> Report:
    """After `optimize_file` raised `error`: find the guilty rule (or pass without rules) by bisection, disable it and
    optimize again, until the result is verified. The report's `rolled_back` says what was left out.

    `reproducer`: a folder for the smallest model that shows the first of them. Raises DifferentResult, with nothing
    written, if leaving out rules does not help.
    """
    options = options or OptimizeOptions()
    rolled_back: list[RolledBack] = []
    while True:
        guilty = _find(source, options, verify_options, progress) if len(rolled_back) < _MOST else None
        if guilty is None or _name(guilty) in options.disable:
            raise error
        if reproducer is not None and not rolled_back:
            _keep(Path(reproducer), Path(source), guilty, options, error)
        rolled_back.append(RolledBack(guilty.pass_text, guilty.rule, guilty.scope, guilty.match, guilty.message))
        options = dataclasses.replace(options, disable=(*options.disable, _name(guilty)))
        try:
            report = optimize_file(
                source,
                destination,
                options,
                verify_options=verify_options,
                progress=progress,
                instruments=instruments,
            )
        except DifferentResult as e:
            error = e
            continue
        report.rolled_back = rolled_back
        return report


def _name(finding: Finding) -> str:
    return finding.rule or finding.pass_text.partition("{")[0]


def _find(
    source: str | Path, options: OptimizeOptions, verify_options: VerifyOptions | None, progress: Callable[[str], None]
) -> Finding | None:
    from onnxopt.bisect import bisect  # not needed where nothing goes wrong

    try:
        return bisect(source, options, verify_options, lambda line: progress(f"bisecting: {line.strip()}"))
    except OnnxOptError:
        return None  # it cannot be found: the difference itself is what there is to say


def _keep(folder: Path, source: Path, finding: Finding, options: OptimizeOptions, error: DifferentResult) -> None:
    from onnxopt.io import from_proto, load
    from onnxopt.pipeline import pipeline_text
    from onnxopt.pipeline.reproducer import write_reproducer

    model = from_proto(finding.submodel) if finding.submodel is not None else load(source)
    text = finding.pass_text if finding.submodel is not None else pipeline_text(options.passes().passes)
    write_reproducer(folder, model, text, dataclasses.replace(options, pipeline=text).context(), error, verify=True)
