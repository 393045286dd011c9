"""Whether the time per node stays flat: chains of Conv, BatchNormalization, Relu, Identity of growing length.

    python benchmarks/chain.py [--nodes 2000 20000 200000] [--max-seconds 15] [--max-growth 1.5] [--verify]

Runs `onnxopt optimize --no-verify`, or with `--verify` the whole of it, as a whole process. The start-up, measured on a
chain of four nodes, is subtracted before lengths are compared: at 2,000 nodes it is most of the time and would hide any
growth. Every weight is different, so that none of the work can be shared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import onnx
from families import chain
from pairs import onnxopt, run

UNIT = 4  # nodes in one repetition


def best(nodes: int, folder: Path, runs: int, verify: bool) -> float:
    """Returns the seconds of the fastest of `runs` whole processes: disturbances only add time."""
    source, target = folder / f"chain_{nodes}.onnx", folder / "optimized.onnx"
    onnx.save(chain(nodes), source)
    options = () if verify else ("--no-verify",)
    seconds = min(run(onnxopt("optimize", str(source), str(target), *options)) for _ in range(runs))
    source.unlink()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2_000, 20_000, 200_000], help="chain lengths")
    parser.add_argument("--runs", type=int, default=5, help="runs up to 20,000 nodes (default: %(default)s)")
    parser.add_argument("--max-seconds", type=float, default=15.0, help="for the longest (default: %(default)s)")
    parser.add_argument("--max-growth", type=float, default=1.5, help="per node (default: %(default)s)")
    parser.add_argument("--verify", action="store_true", help="verified runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        best(UNIT, Path(folder), 1, options.verify)  # fills the caches
        startup = best(UNIT, Path(folder), options.runs, options.verify)
        print(f"start-up {startup:.3f} s")
        print(f"{'nodes':>9} {'seconds':>9} {'µs/node':>9} {'less start-up':>14} {'ratio':>6}")
        first, seconds, growth = 0.0, 0.0, 0.0
        for nodes in sorted(options.nodes):
            seconds = best(nodes, Path(folder), options.runs if nodes <= 20_000 else 1, options.verify)
            net = (seconds - startup) / nodes * 1e6
            first = first or net
            growth = max(growth, net / first)
            print(f"{nodes:>9,} {seconds:>9.3f} {seconds / nodes * 1e6:>9.1f} {net:>14.1f} {net / first:>6.2f}")
    slow, steep = seconds > options.max_seconds, growth > options.max_growth
    print(f"longest {seconds:.1f} s (limit {options.max_seconds:g}): {'TOO SLOW' if slow else 'ok'}")
    print(f"growth per node {growth:.2f} (limit {options.max_growth:g}): {'NOT FLAT' if steep else 'ok'}")
    return int(slow or steep)


if __name__ == "__main__":
    sys.exit(main())
