"""Time by operator, summed from onnxruntime's profiles."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from onnxopt.runtime import folder_for

RUNS: Final = 20  # at most, as a profiled run writes a line per node
SECONDS: Final = 2.0  # no round begins later
_FEWEST: Final = 3
_KERNEL: Final = "_kernel_time"

Profile = dict[str, tuple[float, float]]  # by operator: (share of the run's time, nodes run)


@dataclass
class OperatorTime:
    """Time of all nodes of an operator in a run, by file.

    Operators are those of the optimized session, with fusions such as `FusedMatMul` or `BiasGelu`.
    """

    operator: str
    seconds: list[float]  # share of a profiled run, times the median of unprofiled runs
    nodes: list[float]  # nodes run


def profiles(openers: Sequence[Callable[[Any], Any]], settings: Any, run: Callable[[Any], float]) -> list[Profile]:
    """Return the profile of each session. Sessions run alternately; the first run of each is ignored.

    openers: open a session with `settings`; run: runs a session and returns seconds.
    """
    with TemporaryDirectory(prefix="onnxopt-") as folder:
        settings.enable_profiling = True
        sessions = []
        try:
            # File names end in the time: sessions opened in the same second need different prefixes.
            for i, opener in enumerate(openers):
                settings.profile_file_prefix = str(Path(folder_for(folder, b"location")) / f"profile{i}")
                sessions.append(opener(settings))
        finally:
            settings.enable_profiling = False
        rounds, spent = 0, 0.0
        while rounds <= _FEWEST or (rounds <= RUNS and spent < SECONDS):
            spent += sum(run(session) for session in sessions)
            rounds += 1
        files = [Path(session.end_profiling()) for session in sessions]
        return [summed(json.loads(file.read_text(encoding="utf-8"))) for file in files]


def summed(events: Iterable[dict[str, Any]]) -> Profile:
    """Return medians over the profiled runs, except the first.

    A node in a body counts once per execution. Its time is subtracted from the enclosing operator.
    """
    ordered = sorted(events, key=lambda e: (e["ts"], -e["dur"]))
    runs: list[defaultdict[str, list[float]]] = []  # by run and operator: [share, nodes]
    around: list[tuple[int, str]] = []  # (end, operator) of the enclosing kernels, innermost last
    for e in ordered:
        if e.get("name") == "model_run":
            runs.append(defaultdict(lambda: [0.0, 0]))
            whole = max(e["dur"], 1)
        if e.get("cat") != "Node" or not e["name"].endswith(_KERNEL) or not runs:
            continue
        operator, share, end = str(e["args"].get("op_name", "?")), e["dur"] / whole, e["ts"] + e["dur"]
        while around and around[-1][0] < end:
            around.pop()
        if around:
            runs[-1][around[-1][1]][0] -= share
        around.append((end, operator))
        runs[-1][operator][0] += share
        runs[-1][operator][1] += 1
    counted = runs[1:] or runs
    names = {name for run in counted for name in run}
    return {
        name: (max(median(run[name][0] for run in counted), 0.0), median(run[name][1] for run in counted))
        for name in names
    }


def side_by_side(profiles: Sequence[Profile], medians: Sequence[float]) -> list[OperatorTime]:
    """Return the operators of all files, most expensive first. `medians`: seconds of a run, by file."""
    rows = []
    for name in {operator for found in profiles for operator in found}:
        shares, nodes = zip(*(found.get(name, (0.0, 0.0)) for found in profiles))
        rows.append(OperatorTime(name, [share * whole for share, whole in zip(shares, medians)], [*nodes]))
    return sorted(rows, key=lambda row: (-max(row.seconds), row.operator))
