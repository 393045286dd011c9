"""Whether models run faster: the original, onnxopt's result, and other optimizers', in onnxruntime.

    python benchmarks/runtime.py MODEL.onnx [MODEL.onnx ...] [--level 2] [--peer NAME=FILE.onnx] [--runs 30]

Every file is opened with all of the runtime's optimizations and with none, with one thread and with two; the runs of
all files alternate in one process, so that what disturbs the machine disturbs all alike. Medians, as ratios to the
original, with the interval that 95 % of measurements lie in: below one is faster. For two files of one's own there is
`onnxopt bench A B`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import onnxopt
from onnxopt.verification.latency import BenchOptions, bench


def compare(files: dict[str, Path], runs: int) -> None:
    for level in ("all", "none"):
        for threads in (1, 2):
            found = bench(list(files.values()), BenchOptions(runs=runs, threads=threads, level=level))
            if found.failure:
                raise SystemExit(f"{files['original']}: {found.failure}")
            others = [name for name in files if name != "original"]
            ratios = "  ".join(
                f"{name} {r.value:.3f}" + (f" ({r.low:.3f} to {r.high:.3f})" if r.low and r.high else "")
                for name, r in zip(others, found.ratios)
            )
            median = found.files[0].median * 1e3
            print(f"  optimizations {level:4}  threads {threads}  {median:8.2f} ms  {ratios}")


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
