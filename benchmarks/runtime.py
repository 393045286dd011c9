"""Whether models run faster: the original, onnxopt's result, and other optimizers', in onnxruntime.

    python benchmarks/runtime.py MODEL.onnx [MODEL.onnx ...] [--level 2] [--peer NAME=FILE.onnx] [--runs 30]

Every file is opened with all of the runtime's optimizations and with none, with one thread and with two; the runs of
all files alternate in one process, so that what disturbs the machine disturbs all alike. Medians, as ratios to the
original: below one is faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as rt

import onnxopt
from onnxopt.verification.inputs import InputMaker
from onnxopt.verification.plan import make_plan

LEVELS = {"all": rt.GraphOptimizationLevel.ORT_ENABLE_ALL, "none": rt.GraphOptimizationLevel.ORT_DISABLE_ALL}


def session(path: Path, level: str, threads: int) -> rt.InferenceSession:
    options = rt.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return rt.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feeds(path: Path, runner: rt.InferenceSession) -> dict[str, Any]:
    """Inputs that the original takes."""
    plan = make_plan(onnx.load(path, load_external_data=False))
    for dims in plan.size_choices():
        case = InputMaker(plan, {}, 0).make("runtime", dims, 0)
        try:
            runner.run(None, case.feeds)
        except Exception:
            continue
        return case.feeds
    raise SystemExit(f"{path}: no input that it takes was found")


def compare(files: dict[str, Path], runs: int) -> None:
    for level in LEVELS:
        for threads in (1, 2):
            sessions = {name: session(path, level, threads) for name, path in files.items()}
            given = feeds(files["original"], sessions["original"])
            times: dict[str, list[float]] = {name: [] for name in sessions}
            for _ in range(runs):
                for name, runner in sessions.items():
                    start = time.perf_counter()
                    runner.run(None, given)
                    times[name].append(time.perf_counter() - start)
            medians = {name: statistics.median(t) for name, t in times.items()}
            ratios = "  ".join(f"{n} {m / medians['original']:.3f}" for n, m in medians.items() if n != "original")
            print(f"  optimizations {level:4}  threads {threads}  {medians['original'] * 1e3:8.2f} ms  {ratios}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--level", type=int, default=2, help="of onnxopt (default: %(default)s)")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=FILE", help="another optimizer's result")
    parser.add_argument("--runs", type=int, default=30, help="of each file (default: %(default)s)")
    options = parser.parse_args()
    peers = {name: Path(file) for name, _, file in (text.partition("=") for text in options.peer)}
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "optimized.onnx"
            settings = onnxopt.OptimizeOptions(level=options.level)
            report = onnxopt.optimize_file(model, result, settings, check_result=False)
            print(f"{model}: {report.pipeline.nodes_before:,} -> {report.pipeline.nodes_after:,} nodes")
            compare({"original": model, "onnxopt": result, **peers}, options.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
