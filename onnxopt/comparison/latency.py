"""Latency of models in onnxruntime, measured alternately in one worker, so a disturbance affects all alike.

The time by operator is summed from onnxruntime's profiles.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from onnxopt.errors import UsageError
from onnxopt.runtime import folder_for, onnxruntime, path_for
from onnxopt.verification.inputs.cases import Recipe
from onnxopt.verification.inputs.feeding import Data, feed, read_array
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.planning import fix_dims, make_plan
from onnxopt.verification.job import library_files
from onnxopt.verification.run import reason
from onnxopt.verification.runtime import find_runtime
from onnxopt.verification.two_files import check_interface, read
from onnxopt.worker.limits import Limits
from onnxopt.worker.service import Service
from onnxopt.worker.serving import Died, Refused, Tell, serve

LEVELS: Final = {"none": "ORT_DISABLE_ALL"} | {n: f"ORT_ENABLE_{n.upper()}" for n in ("basic", "extended", "all")}
CLOCKS: Final = {"wall": time.perf_counter, "processor": time.thread_time}
_START: Final = "from onnxopt.comparison.latency import main; main()"
# Sizes tried for dynamic dims, in this order: typical sizes, a second of sound at 16 kHz, then the verifier's sizes,
# derived from windows and Reshapes. A batch has size 1.
_LATENCY_SIZES: Final = (64, 128, 224, 32, 16, 8, 4, 3, 2, 1, 16_000)
_OPENINGS, _FEW_OPENINGS = 10, 6  # times the files are opened; few for files slow to load
_SLOW_TO_LOAD: Final = 1.0  # seconds
# Student's t, 97.5 % quantile, by degrees of freedom (openings kept minus 1) from 1.
_STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571)
_SAME: Final = 0.01  # a ratio closer to 1 is irrelevant
_SLICE: Final = 0.5  # seconds of work between two messages, as waking the parent disturbs the measurement
RUNS: Final = 20  # with a profile, at most, as a profiled run writes a line per node
SECONDS: Final = 2.0  # no round begins later

Profile = dict[str, tuple[float, float]]  # by operator: (share of the run's time, nodes run)


@dataclass
class OperatorTime:
    """Time of all nodes of an operator in a run, by file.

    Operators are those of the optimized session, with fusions such as `FusedMatMul` or `BiasGelu`.
    """

    operator: str
    seconds: list[float]  # share of a profiled run, times the median of unprofiled runs
    nodes: list[float]  # nodes run


@dataclass(frozen=True)
class BenchOptions:
    """Settings of a latency measurement."""

    runs: int | None = None  # runs of each file; None: as many as fit into `seconds`
    seconds: float = 5.0
    warmup: int = 3  # runs of each file before measuring
    threads: int = 0  # within an operator; 0: chosen by onnxruntime
    level: str = "all"  # graph optimizations, a key of LEVELS
    provider: str = ""
    dims: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)  # .npy files by input name
    seed: int = 0
    timeout: float = 600.0  # seconds for each load and each run
    limit: int = 0  # bytes of memory of the worker, as in VerifyOptions
    clock: str = "wall"  # `wall`, or `processor`: CPU time of the single thread, less disturbed by load
    operators: bool = False  # measure time by operator as well
    custom_op_libraries: Sequence[str | os.PathLike[str]] = ()  # as in VerifyOptions

    def __post_init__(self) -> None:
        """Raise UsageError for an unknown clock, a clock blind to the threads in use, or a missing library."""
        if self.clock not in CLOCKS:
            raise UsageError(f"there is no clock {self.clock!r}", f"there are {' and '.join(CLOCKS)}")
        if self.clock == "processor" and self.threads != 1:
            raise UsageError("the processor's clock sees one thread", "--threads 1")
        vars(self).update(custom_op_libraries=library_files(self.custom_op_libraries))


@dataclass
class Latency:
    """Seconds per run of a file. Bounds are None if the files were opened only once."""

    file: str
    median: float  # trimmed mean of the openings' medians
    low: float | None  # lower bound of the 95 % interval
    high: float | None  # upper bound
    p10: float  # four in five runs lie between p10 and p90
    p90: float


@dataclass
class Ratio:
    """Time of a file divided by the time of the first: below 1 is faster."""

    value: float
    low: float | None  # lower bound of the 95 % interval; None if opened only once
    high: float | None  # upper bound
    verdict: str  # faster, slower, or same: the interval reaches within 1 % of 1, or is unknown


@dataclass
class Bench:
    """Result of a latency measurement."""

    files: list[Latency] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)  # of all files but the first
    runs: int = 0
    openings: int = 0
    level: str = "all"
    threads: int = 0
    provider: str = "CPUExecutionProvider"
    dims: dict[str, int] = field(default_factory=dict)
    clock: str = "wall"
    operators: list[OperatorTime] = field(default_factory=list)  # time by operator, if requested
    failure: str = ""  # why nothing was measured, else ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    files: Sequence[str | Path],
    options: BenchOptions | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Measure the latency of files; the first decides the inputs. A crash of the runtime is a `failure`.

    Raises ModelError for an unreadable file, UsageError for different inputs or outputs and unknown names.
    """
    options = options or BenchOptions()
    paths = list(map(Path, files))
    result = Bench(level=options.level, threads=options.threads, clock=options.clock)
    with Service(_START, options.timeout, 0 if options.provider else Limits(options.limit).bytes) as service:
        models = [read(path) for path in paths]
        for model in models[1:]:
            check_interface(models[0].proto, model.proto)
        plan = make_plan(models[0].proto, models[0].values)
        given = {name: read_array(name, Path(file), plan) for name, file in options.inputs.items()}
        fix_dims(plan, options.dims)
        try:
            ask = [*map(str, map(Path.absolute, paths))], plan, options, given
            result.provider, result.dims, loading = service.call("open", *ask)
            openings = _measure(service, options, loading, progress)
            result.files = [_latency(str(file), [t[:, i] for t in openings]) for i, file in enumerate(files)]
            if options.operators:
                progress("where the time goes")
                result.operators = side_by_side(service.call("profile"), [f.median for f in result.files])
        except (Died, Refused) as e:
            result.failure = str(e)
            return result
    result.runs, result.openings = sum(map(len, openings)), len(openings)
    result.ratios = [ratio([(t[:, 0], t[:, i]) for t in openings]) for i in range(1, len(paths))]
    return result


def _measure(service: Service, options: BenchOptions, loading: float, progress: Callable[[str], None]) -> list[Any]:
    """Return, for each opening, seconds by round and file, shape (rounds, files). `loading`: seconds per opening."""
    count = _OPENINGS if loading < _SLOW_TO_LOAD else _FEW_OPENINGS
    count = count if options.runs is None else min(count, options.runs)
    found, done = [], 0
    for i in range(count):
        if i:
            service.call("reopen", i)
        rounds: list[list[float]] = []
        share = None if options.runs is None else options.runs * (i + 1) // count - done
        end = time.monotonic() + options.seconds / count
        while len(rounds) < share if share is not None else time.monotonic() < end or not rounds:
            left = 1 << 30 if share is None else share - len(rounds)
            rounds += service.call("measure", left, _SLICE if share else min(_SLICE, options.seconds / count))
            progress(f"{done + len(rounds):,} runs")
        done += len(rounds)
        found.append(np.array(rounds))
    return found


def _latency(file: str, openings: Sequence[Any]) -> Latency:
    p10, p90 = (float(p) for p in np.percentile(np.concatenate(openings), (10, 90)))
    return Latency(file, *middle([np.log(np.median(times)) for times in openings]), p10, p90)


def ratio(openings: Sequence[tuple[Any, Any]]) -> Ratio:
    """Return the ratio of the second file to the first, from seconds of the same rounds in each opening.

    Openings are the independent samples: memory placement of a session makes equal models differ by percents while
    open, and more runs in the same session do not reveal the effect.
    """
    value, low, high = middle([np.log(np.median(b) / np.median(a)) for a, b in openings])
    is_faster, is_slower = high is not None and high < 1 - _SAME, low is not None and low > 1 + _SAME
    return Ratio(value, low, high, "faster" if is_faster else "slower" if is_slower else "same")


def middle(logarithms: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return (exponential of the trimmed mean, low, high): a fifth trimmed at either end, 95 % interval.

    Tukey and McLaughlin (1963): winsorized standard error. For a single number, low and high are None. Trimmed, as load
    on the machine may spoil some openings.
    """
    logs = np.sort(logarithms)
    count, cut = len(logs), len(logs) // 5
    kept = count - 2 * cut
    mean = float(logs[cut : count - cut].mean())
    if count < 2:
        return float(np.exp(mean)), None, None
    winsorized = np.clip(logs, logs[cut], logs[count - cut - 1])
    error = float(winsorized.std(ddof=1)) * ((count - 1) / (kept * (kept - 1))) ** 0.5
    margin = _STUDENT[kept - 2] * error
    return float(np.exp(mean)), float(np.exp(mean - margin)), float(np.exp(mean + margin))


def profiles(openers: Sequence[Callable[[Any], Any]], settings: Any, run: Callable[[Any], float]) -> list[Profile]:
    """Return the profile of each session. Sessions run alternately; the first run of each is ignored.

    openers: open a session with `settings`; run: runs a session and returns seconds.
    """
    with TemporaryDirectory(prefix="onnxopt-") as folder:
        settings.enable_profiling = True
        sessions = []
        # File names end in the time: sessions opened in the same second need different prefixes.
        for i, opener in enumerate(openers):
            settings.profile_file_prefix = str(Path(folder_for(folder, b"location")) / f"profile{i}")
            sessions.append(opener(settings))
        settings.enable_profiling = False
        rounds, spent = 0, 0.0
        while rounds <= 3 or (rounds <= RUNS and spent < SECONDS):
            spent += sum(run(session) for session in sessions)
            rounds += 1
        return [summed(json.loads(Path(s.end_profiling()).read_text(encoding="utf-8"))) for s in sessions]


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
        if e.get("cat") != "Node" or not e["name"].endswith("_kernel_time") or not runs:
            continue
        operator, share, end = str(e["args"].get("op_name", "?")), e["dur"] / whole, e["ts"] + e["dur"]
        while around and around[-1][0] < end:
            around.pop()
        if around:
            runs[-1][around[-1][1]][0] -= share
        around.append((end, operator))
        runs[-1][operator][0] += share
        runs[-1][operator][1] += 1
    found: Profile = {}
    counted = runs[1:] or runs
    for name in set().union(*counted):
        shares, nodes = zip(*(run[name] for run in counted))
        found[name] = max(median(shares), 0.0), median(nodes)
    return found


def side_by_side(profiles: Sequence[Profile], medians: Sequence[float]) -> list[OperatorTime]:
    """Return the operators of all files, most expensive first. `medians`: seconds of a run, by file."""
    rows: list[OperatorTime] = []
    for name in set().union(*profiles):
        shares, nodes = zip(*(found.get(name, (0.0, 0.0)) for found in profiles))
        rows.append(OperatorTime(name, [share * whole for share, whole in zip(shares, medians)], [*nodes]))
    return sorted(rows, key=lambda row: (-max(row.seconds), row.operator))


def order(count: int, opening: int) -> list[int]:
    """Return the order in which `count` files are loaded, and run in each round.

    Over openings, each file is in each position equally often: the file loaded first may seem 4 % slower than its
    copies while open. Rounds keep the order: a file run twice in a row finds its weights in the cache, and seems 3 %
    faster.
    """
    found = [(k + opening // 2) % count for k in range(count)]
    return found[::-1] if opening % 2 else found


# -- in the worker ---------------------------------------------------------------------------------------


class Runner:
    """Sessions of all files, with deployment settings."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.sessions = tell, dict[int, Any]()

    def open(
        self, paths: Sequence[str], plan: Plan, options: BenchOptions, given: dict[str, Any]
    ) -> tuple[str, dict[str, int], float]:
        """Load all files and warm up. Returns (provider, sizes of dynamic dims, seconds of loading).

        Raises UsageError, and Refused if a file cannot be loaded or run.
        """
        self.runtime = find_runtime(options.provider, options.custom_op_libraries)
        self.paths, self.warmup, self.clock = paths, options.warmup, CLOCKS[options.clock]
        self.settings = self.runtime.session_options()
        self.settings.graph_optimization_level = getattr(onnxruntime().GraphOptimizationLevel, LEVELS[options.level])
        self.settings.intra_op_num_threads = options.threads
        self.settings.add_session_config_entry("session.force_spinning_stop", "1")  # idle threads of A would disturb B
        start = time.perf_counter()
        self._load(0)
        loading = time.perf_counter() - start
        bound = plan.bound(given)
        batch = {symbol: 1 for symbol in plan.symbols if plan.is_batch(symbol) and symbol not in bound}
        plan.fix(batch)
        choices = itertools.chain(plan.size_choices(_LATENCY_SIZES), plan.size_choices())
        case, _ = feed(partial(self._run, 0), plan, Recipe("bench"), Data(given), choices, options.seed)
        self.feeds = case.feeds
        self._warm_up()
        return self.runtime.provider, options.dims | batch | case.dims, loading

    def reopen(self, opening: int) -> None:
        """Open all files again, in the order of the given opening. Raises Refused."""
        self.sessions.clear()
        self._load(opening)
        self._warm_up()

    def _load(self, opening: int) -> None:
        self.order = order(len(self.paths), opening)
        for i in self.order:
            self.sessions[i] = self._opened(i, self.settings)

    def _opened(self, i: int, settings: Any) -> Any:
        self.tell(f"loading {_label(i)}")
        try:
            return onnxruntime().InferenceSession(path_for(self.paths[i]), settings, providers=self.runtime.providers)
        except Exception as e:
            raise Refused(f"{_label(i)} cannot be loaded: {reason(e)}") from e

    def profile(self) -> list[Profile]:
        """Return the time by operator of each file."""
        self.sessions.clear()
        self.tell("running with a profile")
        return profiles([partial(self._opened, i) for i in range(len(self.paths))], self.settings, self._seconds)

    def _warm_up(self) -> None:
        """Run each file once, then in rounds as when measured: else only the last file has its data in the cache."""
        for i in range(len(self.paths)):
            try:
                self._run(i, self.feeds)
            except Exception as e:
                raise Refused(f"{_label(i)} fails: {reason(e)}") from e
        self.tell("warming up")
        for _ in range(self.warmup):
            self._round()

    def _run(self, i: int, feeds: dict[str, Any]) -> None:
        self.tell(f"running {_label(i)}")
        self.sessions[i].run(None, feeds)

    def measure(self, count: int, seconds: float) -> list[list[float]]:
        """Return seconds by round and file: up to `count` rounds, the last begun within `seconds`."""
        self.tell("measuring")
        self.sessions[self.order[-1]].run(None, self.feeds)  # restores the cache state of consecutive rounds
        found: list[list[float]] = []
        end = time.perf_counter() + seconds
        while len(found) < count and (not found or time.perf_counter() < end):
            found.append(self._round())
        return found

    def _round(self) -> list[float]:
        """Return the seconds of a run of each file."""
        times = [0.0] * len(self.paths)
        for i in self.order:
            times[i] = self._seconds(self.sessions[i])
        return times

    def _seconds(self, session: Any) -> float:
        """Return the seconds of a run."""
        start = self.clock()
        session.run(None, self.feeds)
        return self.clock() - start


def _label(i: int) -> str:
    return chr(ord("A") + i)


def main() -> None:
    """Serve as the worker process of a measurement."""
    serve(Runner)
