"""Whole processes over many models, as ratios to loading and saving each with onnx: time and memory.

    python benchmarks/whole.py [FOLDER or MODEL ...] [--runs 5] [--peers]      (Linux and macOS)

The commands run in turn, so that all see the same machine; a figure is the median of a command's runs over that of
`load + save`, peak memory that of the largest process. Prints a Markdown table: the geometric mean over the models, the
lowest and highest, and with `--peers` for how many models each other optimizer, and the program it comes with, takes
longer than onnxopt; below it, on which it takes less. A model that a tool fails on, or takes more than `--limit`
seconds for, is left out of that tool's row.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from costs import Cost, cost, middle
from tools import COMMANDS, FLOOR, ONNXOPT, PEER, PEERS, find_models

OURS = {
    "onnxopt -O0": [ONNXOPT, "optimize", "-q", "-O0", "--no-verify"],
    "onnxopt, unverified": [ONNXOPT, "optimize", "-q", "--no-verify"],
    "onnxopt, verified": [ONNXOPT, "optimize", "-q"],
}
NAME = "load + save"


def measure(model: Path, tools: dict[str, list[str]], runs: int, limit: float, folder: Path) -> dict[str, Cost]:
    """The medians of each tool that can; after one run of each that fills the caches."""
    commands = {name: [*tool, str(model), str(folder / f"{i}.onnx")] for i, (name, tool) in enumerate(tools.items())}
    found: dict[str, list[Cost]] = {name: [] for name, command in commands.items() if not cost(command, limit).failed}
    for _ in range(runs):
        for name, costs in found.items():
            costs.append(cost(commands[name], limit))
    return {name: middle(costs) for name, costs in found.items() if not any(c.failed for c in costs)}


def mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*", help="files, or folders of them (default: the sample models)")
    parser.add_argument("--runs", type=int, default=5, help="of each command (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one run (default: %(default)s)")
    parser.add_argument("--peers", action="store_true", help="the other optimizers too, from .venv-peers")
    options = parser.parse_args()
    peers = {**PEERS, **COMMANDS} if options.peers and PEER.exists() else {}
    tools = {NAME: FLOOR, **OURS, **peers}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = find_models(options.models, folder)
        results = []
        for i, model in enumerate(models):
            print(f"\r{i + 1}/{len(models)} {model.stem[:40]:40}", end="", file=sys.stderr, flush=True)
            results.append(measure(model, tools, options.runs, options.limit, folder))
        print(file=sys.stderr)
    measured = {str(m): r for m, r in zip(models, results) if NAME in r}
    print_table(tools, list(measured.values()))
    print_faster(tools, measured)
    return 0


def print_faster(tools: dict[str, list[str]], results: dict[str, dict[str, Cost]]) -> None:
    for name in [n for n in list(tools)[1:] if n not in OURS]:
        for ours in list(OURS)[1:]:
            both = {m: r[name].seconds / r[ours].seconds for m, r in results.items() if name in r and ours in r}
            found = [f"{Path(m).parent.name}/{Path(m).stem} {x:.2f}" for m, x in both.items() if x < 1]
            if found:
                print(f"{name} takes less than {ours} on {len(found)}: {', '.join(found)}", file=sys.stderr)


def print_table(tools: dict[str, list[str]], results: list[dict[str, Cost]]) -> None:
    print(f"{len(results)} models; ratios to {NAME}: geometric mean (lowest to highest).\n")
    print("| | time | memory | models | slower than onnxopt, verified | unverified |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in list(tools)[1:]:
        able = [r for r in results if name in r]
        if not able:
            continue
        times = [r[name].seconds / r[NAME].seconds for r in able]
        sizes = [r[name].megabytes / r[NAME].megabytes for r in able]
        beside = [f"{slower(able, name, ours)} of {len(able)}" for ours in reversed(list(OURS)[1:])]
        if name in OURS:
            beside = ["", ""]
        print(f"| {name} | {spread(times)} | {spread(sizes)} | {len(able)} | {' | '.join(beside)} |")


def slower(results: list[dict[str, Cost]], name: str, ours: str) -> int:
    return sum(ours in r and r[name].seconds > r[ours].seconds for r in results)


def spread(ratios: Sequence[float]) -> str:
    return f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    sys.exit(main())
