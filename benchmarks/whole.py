"""Whole processes over many models, as ratios to loading and saving each with onnx: time and memory.

    python benchmarks/whole.py [FOLDER or MODEL ...] [--runs 5] [--peers]

The commands run in turn, so that all see the same machine; a figure is the median of a command's runs over that of
`load + save`, peak memory that of the largest process. Prints a Markdown table: the geometric mean over the models, the
lowest and highest, and with `--peers` for how many models each other optimizer takes longer than onnxopt. A model that
a tool fails on, or takes more than `--limit` seconds for, is left out of that tool's row.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tools import FLOOR, ONNXOPT, PEER, PEERS, ROOT

OURS = {
    "onnxopt -O0": [ONNXOPT, "optimize", "-q", "-O0", "--no-verify"],
    "onnxopt, unverified": [ONNXOPT, "optimize", "-q", "--no-verify"],
    "onnxopt, verified": [ONNXOPT, "optimize", "-q"],
}
NAME = "load + save"


@dataclass
class Runs:
    """Of one command on one model: seconds, and the bytes of its largest process."""

    seconds: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)


def run(command: Sequence[str | Path], limit: float) -> tuple[float, int] | None:
    """(seconds, peak bytes); None if it fails, or does not end in time."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    timer = threading.Timer(limit, process.send_signal, (signal.SIGKILL,))
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    return None if process.returncode else (seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def measure(model: Path, tools: dict[str, list[str]], runs: int, limit: float, folder: Path) -> dict[str, Runs]:
    """Of each tool that can; after one run of each that fills the caches."""
    commands = {name: [*tool, model, folder / f"{i}.onnx"] for i, (name, tool) in enumerate(tools.items())}
    found = {name: Runs() for name, command in commands.items() if run(command, limit) is not None}
    for _ in range(runs):
        for name in list(found):
            one = run(commands[name], limit)
            if one is None:
                del found[name]
            else:
                found[name].seconds.append(one[0])
                found[name].bytes.append(one[1])
    return found


def mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*", help="files, or folders of them (default: the sample models)")
    parser.add_argument("--runs", type=int, default=5, help="of each command (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one run (default: %(default)s)")
    parser.add_argument("--peers", action="store_true", help="the other optimizers too, from .venv-peers")
    options = parser.parse_args()
    if not hasattr(os, "wait4"):
        print("memory of a process is only to be had on Linux and macOS", file=sys.stderr)
        return 2
    tools = {NAME: FLOOR, **OURS, **(PEERS if options.peers and PEER.exists() else {})}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = options.models or [folder / "models"]
        if not options.models:
            subprocess.run([sys.executable, ROOT / "models" / "build.py", given[0]], check=True, stdout=subprocess.PIPE)
        models = sorted(m for g in given for m in (g.rglob("*.onnx") if g.is_dir() else [g]))
        results = []
        for i, model in enumerate(models):
            print(f"\r{i + 1}/{len(models)} {model.stem[:40]:40}", end="", file=sys.stderr, flush=True)
            results.append(measure(model, tools, options.runs, options.limit, folder))
        print(file=sys.stderr)
    print_table(tools, [r for r in results if NAME in r])
    return 0


def print_table(tools: dict[str, list[str]], results: list[dict[str, Runs]]) -> None:
    print(f"{len(results)} models; ratios to {NAME}: geometric mean (lowest to highest).\n")
    print("| | time | memory | models | slower than onnxopt, verified | unverified |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in list(tools)[1:]:
        able = [r for r in results if name in r]
        if not able:
            continue
        times = [median(r[name].seconds) / median(r[NAME].seconds) for r in able]
        sizes = [median(r[name].bytes) / median(r[NAME].bytes) for r in able]
        beside = [f"{slower(able, name, ours)} of {len(able)}" for ours in reversed(list(OURS)[1:])]
        if name in OURS:
            beside = ["", ""]
        print(f"| {name} | {spread(times)} | {spread(sizes)} | {len(able)} | {' | '.join(beside)} |")


def slower(results: list[dict[str, Runs]], name: str, ours: str) -> int:
    return sum(ours in r and median(r[name].seconds) > median(r[ours].seconds) for r in results)


def spread(ratios: Sequence[float]) -> str:
    return f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    sys.exit(main())
