"""onnxopt beside the other optimizers: nodes left, time, difference from the original, speed of the result.

    make bench-peers [MODEL="a.onnx b.onnx"] [RUNS=20]

Each optimizer runs with its default settings in a process of its own, which is timed whole; its result is compared with
the original in onnxruntime, graph optimizations off; then original and results run in turn in one process, with all of
the runtime's optimizations and with none, with one thread and two. Prints Markdown. Ratios are to the original: below
one is faster.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import onnx
from tools import ONNXOPT, PEERS, ROOT

from onnxopt.verification import verify
from onnxopt.verification.latency import BenchOptions, bench

TOOLS = {
    "onnxopt": [ONNXOPT, "optimize", "-q"],
    "onnxopt -O3": [ONNXOPT, "optimize", "-q", "-O3"],
    **PEERS,
}


@dataclass
class Result:
    """What an optimizer left of a model; `said` why there is nothing."""

    nodes: int = 0
    seconds: float = 0.0
    said: str = ""
    verdict: str = ""
    path: Path | None = None


def count(graph: onnx.GraphProto) -> int:
    """Nodes, those of bodies too."""
    bodies = [g for n in graph.node for a in n.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]
    return len(graph.node) + sum(count(g) for g in bodies)


def nodes(path: Path) -> int:
    model = onnx.load(path, load_external_data=False)
    return count(model.graph) + sum(len(f.node) for f in model.functions)


def run(command: list[str], source: Path, target: Path, limit: float) -> Result:
    start = time.perf_counter()
    try:
        done = subprocess.run([*command, source, target], capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return Result(said=f"no answer in {limit:.0f} s")
    seconds = time.perf_counter() - start
    if done.returncode or not target.exists():
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Result(seconds=seconds, said=f"fails: {lines[-1][:70]}")
    found = verify(source, target)
    verdict = (
        f"**{found.message}**"
        if found.status == "different"
        else ("exact" if found.exact else f"{found.worst_rel:.0e}")
    )
    return Result(nodes(target), seconds, "", verdict, target if found.status != "different" else None)


def speed(files: dict[str, Path], runs: int) -> dict[str, list[str]]:
    """Ratios to the original of each file: optimizations all and none, one thread and two."""
    columns: dict[str, list[str]] = {name: [] for name in files}
    for level in ("all", "none"):
        for threads in (1, 2):
            found = bench(list(files.values()), BenchOptions(runs=runs, threads=threads, level=level))
            values = [1.0, *(r.value for r in found.ratios)] if not found.failure else [float("nan")] * len(files)
            for name, value in zip(files, values):
                columns[name].append(f"{value:.2f}")
    return columns


def report(source: Path, folder: Path, runs: int, limit: float) -> None:
    print(f"\n### {source.stem}: {nodes(source):,} nodes\n")
    results = {
        name: run(command, source, folder / f"{i}.onnx", limit) for i, (name, command) in enumerate(TOOLS.items())
    }
    usable = {"original": source, **{n: r.path for n, r in results.items() if r.path is not None}}
    ratios = speed(usable, runs) if runs else {}
    print("| | nodes | seconds | difference | all, 1 thread | all, 2 | none, 1 | none, 2 |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    for name, r in results.items():
        cells = ratios.get(name, [""] * 4)
        left = f"{r.nodes:,}" if not r.said else r.said
        print(f"| {name} | {left} | {r.seconds:.2f} | {r.verdict} | {' | '.join(cells)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--runs", type=int, default=20, help="of each file; 0: no timing (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=120, help="seconds for an optimizer (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = options.models
        if not models:
            subprocess.run(
                [sys.executable, ROOT / "models" / "build.py", folder], check=True, stdout=subprocess.DEVNULL
            )
            models = [Path(folder) / f"{n}.onnx" for n in ("repvgg_blocks", "mobileone_block", "transformer_block")]
        for i, model in enumerate(models):
            made = Path(folder) / f"results{i}"
            made.mkdir()
            report(model, made, options.runs, options.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
