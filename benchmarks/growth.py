"""Whether time and memory per node stay flat: families of models, small and large, through `onnxopt optimize`.

    python benchmarks/growth.py [--nodes 20000 500000] [--families adds readers] [--runtime-seconds 300]

Whole processes, unverified. Counted are the seconds of the processor, which other work on the machine disturbs least
(seconds of the clock where the system does not count them), less those of a model of four nodes. Growth is time per
node in the largest model over that in the smallest. onnxruntime's offline optimizer (all optimizations) stands beside
the largest model; it is ended after --runtime-seconds. The table is Markdown.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from families import FAMILIES
from pairs import onnxopt

RUNTIME = (
    "import onnxruntime as ort, sys; o = ort.SessionOptions(); o.log_severity_level = 4; "
    "o.optimized_model_filepath = sys.argv[2]; o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL; "
    "ort.InferenceSession(sys.argv[1], o, providers=['CPUExecutionProvider'])"
)


@dataclass(frozen=True)
class Cost:
    """`seconds` of the processor and `megabytes` at the peak of one process; `failed`: why it did not finish."""

    seconds: float
    megabytes: float
    failed: str = ""


def cost(command: Sequence[str], limit: float) -> Cost:
    """What one run takes; it is ended after `limit` seconds of the clock."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not hasattr(os, "wait4"):
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return Cost(limit, 0.0, f"over {limit:.0f} s")
        return Cost(time.monotonic() - start, 0.0, f"exit code {code}" if code else "")
    failed = ""
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if not failed and time.monotonic() - start > limit:
            failed = f"over {limit:.0f} s"
            process.kill()
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and not failed:
        failed = f"exit code {process.returncode}"
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit, failed)


def optimized(family: str, nodes: int, folder: Path, limit: float) -> Cost:
    source = folder / f"{family}_{nodes}.onnx"
    if not source.exists():
        onnx.save(FAMILIES[family](nodes), source)
    return cost(onnxopt("optimize", str(source), str(folder / "out.onnx"), "--no-verify", "-q"), limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[20_000, 500_000], help="sizes (default: %(default)s)")
    parser.add_argument("--families", nargs="+", choices=sorted(FAMILIES), default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--max-growth", type=float, default=2.0, help="per node (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=900.0, help="for one run of ours (default: %(default)s)")
    parser.add_argument("--runtime-seconds", type=float, default=300.0, help="for onnxruntime; 0: leave it out")
    options = parser.parse_args()
    sizes = sorted(options.nodes)
    steep = []
    print("| family | " + " | ".join(f"{n:,} nodes" for n in sizes) + " | growth | peak memory | onnxruntime |")
    print("|---" * (len(sizes) + 4) + "|")
    for family in options.families:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            optimized(family, 4, folder, options.seconds)  # fills the caches
            start = optimized(family, 4, folder, options.seconds).seconds
            costs = [optimized(family, n, folder, options.seconds) for n in sizes]
            per_node = [max(c.seconds - start, 1e-3) / n for c, n in zip(costs, sizes)]
            growth = per_node[-1] / per_node[0]
            beside = "-"
            if options.runtime_seconds:
                largest = str(folder / f"{family}_{sizes[-1]}.onnx")
                command = [sys.executable, "-c", RUNTIME, largest, str(folder / "runtime.onnx")]
                theirs = cost(command, options.runtime_seconds)
                beside = theirs.failed or f"{theirs.seconds:.1f} s, {theirs.megabytes:,.0f} MB"
        cells = [c.failed or f"{c.seconds:.1f} s" for c in costs]
        print(
            f"| {family} | {' | '.join(cells)} | {growth:.2f} | {costs[-1].megabytes:,.0f} MB | {beside} |", flush=True
        )
        if growth > options.max_growth or any(c.failed for c in costs):
            steep.append(family)
    print(f"\ngrowth per node (limit {options.max_growth:g}): {'NOT FLAT: ' + ', '.join(steep) if steep else 'ok'}")
    return int(bool(steep))


if __name__ == "__main__":
    sys.exit(main())
