"""Where the time of a run goes, by operator: onnxruntime's own profile, summed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from onnxopt.ort import folder_for

RUNS: Final = 20  # at most, of a session with a profile: each writes a line for each node
SECONDS: Final = 2.0  # after which no further round begins
_FEWEST: Final = 3
_KERNEL: Final = "_kernel_time"

Profile = dict[str, tuple[float, float]]  # (share of the time, nodes) of a run, by operator


@dataclass
class OperatorTime:
    """What all nodes of one operator take in one run, for each file: seconds, and how many nodes run.

    `seconds` is the operator's share of a run with a profile, of the median of those without. Operators are those that
    run: onnxruntime's optimizations have put some together, as `FusedMatMul` or `BiasGelu`.
    """

    operator: str
    seconds: list[float]
    nodes: list[float]


def profiles(openers: Sequence[Callable[[Any], Any]], settings: Any, run: Callable[[Any], float]) -> list[Profile]:
    """The profile of each session that the `openers` make of `settings`. They run in turn; `run` runs one, and returns
    the seconds that took. The first run of each does not count."""
    with TemporaryDirectory(prefix="onnxopt-") as folder:
        settings.enable_profiling = True
        sessions = []
        try:
            for i, opener in enumerate(openers):  # a file's name ends in the time: two of one moment would be one
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
    """The medians over the runs that the events of a profile are of, without the first. A node of a body counts as
    often as the body runs; for the operator around it counts what it does itself."""
    ordered = sorted(events, key=lambda e: (e["ts"], -e["dur"]))
    runs: list[defaultdict[str, list[float]]] = []  # of each, by operator: (share, nodes)
    around: list[tuple[int, str]] = []  # (end, operator) of the kernels that an event is in, the innermost last
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
    """The operators of all files, whose runs take `medians`; those first that take most in any."""
    rows = []
    for name in {operator for found in profiles for operator in found}:
        shares, nodes = zip(*(found.get(name, (0.0, 0.0)) for found in profiles))
        rows.append(OperatorTime(name, [share * whole for share, whole in zip(shares, medians)], [*nodes]))
    return sorted(rows, key=lambda row: (-max(row.seconds), row.operator))
