"""How fast models run in onnxruntime: in one worker, in turn, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from onnxopt.verification.cases import Recipe
from onnxopt.verification.datasets import Data, bound_dims, read_array
from onnxopt.verification.feeding import feed
from onnxopt.verification.interface import check_interface, fix_dims, read
from onnxopt.verification.plan import Plan, make_plan
from onnxopt.verification.run import Refused, find_provider, reason
from onnxopt.verification.service import Died, Service, Tell, serve

LEVELS: Final = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_START: Final = "from onnxopt.verification.latency import main; main()"
# Sizes of dynamic dims, tried in this order: what is typical of use rather than small. A batch has one.
_SIZES: Final = (64, 128, 224, 32, 16, 8, 4, 3, 2, 1)
_BLOCKS: Final = 100
_SAMPLES: Final = 1000  # of the bootstrap
_SAME: Final = 0.01  # a ratio that is closer to one does not matter to anybody
_SLICE: Final = 0.5  # seconds of work between two messages: a parent that wakes up disturbs


@dataclass(frozen=True)
class BenchOptions:
    """`runs` of each file, or else as many as fit into `seconds`, after `warmup` of each.

    `threads`: within an operator; 0 lets the runtime choose. `level`: its graph optimizations, one of LEVELS.
    `inputs`: .npy files by input name. `timeout`: seconds for each load and each run.
    """

    runs: int | None = None
    seconds: float = 5.0
    warmup: int = 3
    threads: int = 0
    level: str = "all"
    provider: str = ""
    dims: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    timeout: float = 600.0


@dataclass
class Latency:
    """Seconds that runs of one file take: the middle, and the bounds that four in five lie between."""

    file: str
    median: float
    p10: float
    p90: float


@dataclass
class Ratio:
    """How long a file takes over how long the first does: below one is faster. 95 % of such measurements lie
    in `low` to `high`.

    `verdict`: faster, slower, or same where the interval reaches to within 1 % of one.
    """

    value: float
    low: float
    high: float
    verdict: str


@dataclass
class Bench:
    """What was measured, and how. `failure`: why nothing was, else empty; `ratios` are those of the other files."""

    files: list[Latency] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    runs: int = 0
    level: str = "all"
    threads: int = 0
    provider: str = "CPUExecutionProvider"
    dims: dict[str, int] = field(default_factory=dict)
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    files: Sequence[str | Path],
    options: BenchOptions | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Measure these files, of which the first decides the inputs. A crash of the runtime is a `failure`.

    Raises ModelError for a file that cannot be read, UsageError for files with other inputs or outputs, and for names
    that do not exist.
    """
    options = options or BenchOptions()
    paths = [Path(file) for file in files]
    result = Bench(level=options.level, threads=options.threads)
    with Service(_START, options.timeout) as service:
        models = [read(path) for path in paths]
        for model in models[1:]:
            check_interface(models[0], model)
        plan = make_plan(models[0])
        given = {name: read_array(name, Path(file), plan) for name, file in options.inputs.items()}
        fix_dims(plan, options.dims)
        try:
            absolute = [str(p.absolute()) for p in paths]
            result.provider, result.dims = service.call("open", absolute, plan, options, given)
            times = _measure(service, options, progress)
        except (Died, Refused) as e:
            result.failure = str(e)
            return result
    result.runs = len(times)
    result.files = [_latency(str(file), times[:, i]) for i, file in enumerate(files)]
    result.ratios = [ratio(times[:, 0], times[:, i]) for i in range(1, len(paths))]
    return result


def _measure(service: Service, options: BenchOptions, progress: Callable[[str], None]) -> Any:
    """Seconds, by round and file."""
    rounds: list[list[float]] = []
    end = time.monotonic() + options.seconds
    while len(rounds) < options.runs if options.runs is not None else time.monotonic() < end or not rounds:
        left = options.runs - len(rounds) if options.runs is not None else 1 << 30
        rounds += service.call("measure", left, _SLICE if options.runs else min(_SLICE, options.seconds))
        progress(f"{len(rounds):,} runs")
    return np.array(rounds)


def _latency(file: str, times: Any) -> Latency:
    p10, median, p90 = (float(p) for p in np.percentile(times, (10, 50, 90)))
    return Latency(file, median, p10, p90)


def ratio(a: Any, b: Any) -> Ratio:
    """How `b` compares with `a`, seconds of the same rounds.

    The median over ratios of medians of up to a hundred consecutive blocks of rounds, with a percentile bootstrap of
    it. Blocks, because what disturbs a machine lasts for more than one run.
    """
    blocks = min(len(a), _BLOCKS)
    ratios = np.array(
        [np.median(y) / np.median(x) for x, y in zip(np.array_split(a, blocks), np.array_split(b, blocks))]
    )
    chosen = np.random.default_rng(0).integers(0, blocks, (_SAMPLES, blocks))
    low, high = (float(p) for p in np.percentile(np.median(ratios[chosen], axis=1), (2.5, 97.5)))
    verdict = "faster" if high < 1 - _SAME else "slower" if low > 1 + _SAME else "same"
    return Ratio(float(np.median(ratios)), low, high, verdict)


# -- in the worker ---------------------------------------------------------------------------------------


class Runner:
    """Sessions of all files, with the settings that models are deployed with."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.rounds = 0

    def open(
        self, paths: Sequence[str], plan: Plan, options: BenchOptions, given: dict[str, Any]
    ) -> tuple[str, dict[str, int]]:
        """(provider, sizes of dynamic dims). Raises UsageError, and Refused where a file cannot be loaded or run."""
        import onnxruntime as rt

        provider = find_provider(options.provider)
        settings = rt.SessionOptions()
        settings.graph_optimization_level = getattr(rt.GraphOptimizationLevel, LEVELS[options.level])
        settings.intra_op_num_threads = options.threads
        settings.log_severity_level = 4
        settings.add_session_config_entry("session.force_spinning_stop", "1")  # or idle threads of A disturb B
        self.sessions = []
        labels = [chr(ord("A") + i) for i in range(len(paths))]
        for label, path in zip(labels, paths):
            self.tell(f"loading {label}")
            try:
                providers = list(dict.fromkeys((provider, "CPUExecutionProvider")))
                self.sessions.append(rt.InferenceSession(path, settings, providers=providers))
            except Exception as e:
                raise Refused(f"{label} cannot be loaded: {reason(e)}") from e
        self.tell("running A")
        bound = bound_dims(plan, given)
        batch = {symbol: 1 for symbol in plan.symbols if plan.is_batch(symbol) and symbol not in bound}
        plan.fix(batch)
        case, _ = feed(self._first, plan, Recipe("bench"), Data(given), plan.size_choices(_SIZES), options.seed)
        self.feeds = case.feeds
        for label, session in zip(labels, self.sessions):
            self.tell(f"running {label}")
            try:
                for _ in range(options.warmup + 1):
                    session.run(None, self.feeds)
            except Exception as e:
                raise Refused(f"{label} fails: {reason(e)}") from e
        return provider, options.dims | batch | case.dims

    def _first(self, feeds: dict[str, Any]) -> None:
        self.tell("running A")
        self.sessions[0].run(None, feeds)

    def measure(self, count: int, seconds: float) -> list[list[float]]:
        """Up to `count` rounds, of which the last begins within `seconds`: what each file took, in their order."""
        self.tell("measuring")
        found: list[list[float]] = []
        end = time.perf_counter() + seconds
        order = list(range(len(self.sessions)))
        while len(found) < count and (not found or time.perf_counter() < end):
            times = [0.0] * len(order)
            self.rounds += 1
            for i in order if self.rounds % 2 else reversed(order):  # neither is always first
                start = time.perf_counter()
                self.sessions[i].run(None, self.feeds)
                times[i] = time.perf_counter() - start
            found.append(times)
        return found


def main() -> None:
    serve(Runner)
