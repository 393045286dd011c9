"""Explanation of a result larger than its original, with options to avoid growth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.errors import OnnxOptError
from onnxopt.optimizer.options import OptimizeOptions
from onnxopt.pipeline import execute

if TYPE_CHECKING:
    from onnxopt.optimizer.results import Report
    from onnxopt.pipeline import PassReport

_PERCENT: Final = 1  # of the file; less growth is ignored
_MAX_NAMED: Final = 3
_REMEDIES: Final = {"constant-folding": "--max-constant-bytes 0"}  # default: leave the pass out


def growth(report: Report, source: str | Path, options: OptimizeOptions, repeat: bool) -> list[str]:
    """Return a line with the growth, the passes that added constants, and options to avoid them; [] for little growth.

    repeat: run the passes again to measure bytes, not measured in the first run. Runs are deterministic.
    """
    more = report.bytes_after - report.bytes_before
    if more < report.bytes_before * _PERCENT // 100:
        return []
    from onnxopt.reporting.plain import size

    passes = report.pipeline.passes
    said = f"the file is {size(more)} larger than the original"
    if not repeat and not any(p.bytes for p in passes):
        return [f"{said}; --max-constant-bytes 0 keeps constants small, verification names the pass"]
    try:
        passes = passes if any(p.bytes for p in passes) else _measured(source, options)
    except OnnxOptError:  # the file changed in the meantime
        return []
    grown = sorted((p for p in passes if -p.bytes > more // 10), key=lambda p: p.bytes)[:_MAX_NAMED]
    if not grown:
        return [f"{said}: what was converted or put inline takes more room"]
    added = " and ".join(f"{p.name} made constants of {size(-p.bytes)}" for p in grown)
    remedies = ", ".join(_REMEDIES.get(p.name, f"--disable {p.name}") for p in grown)
    return [f"{said}: {added}; {remedies} keeps it small"]


def _measured(source: str | Path, options: OptimizeOptions) -> list[PassReport]:
    from onnxopt.pipeline.instruments import Sizes

    return execute(options.passes(), options.load_converted(source), options.context((Sizes(),))).passes
