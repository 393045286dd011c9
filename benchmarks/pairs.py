"""Whole-process timing of commands side by side.

A machine slows down and speeds up while a benchmark runs, so two commands are compared by alternating them,
and by medians. Start-up, imports and file access count: they are what a user waits for.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tools import ONNXOPT

Command = Sequence[str]


@dataclass(frozen=True)
class Timing:
    """Wall-clock seconds of the runs of one command."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    def __str__(self) -> str:
        low, high = min(self.seconds), max(self.seconds)
        spread = f"{low:.3f} to {high:.3f}, {len(self.seconds)} runs"
        return f"{self.name:<12} median {self.median:7.3f} s  ({spread})"


def onnxopt(*arguments: str) -> list[str]:
    """The console script of the running interpreter's environment: what users call."""
    return [ONNXOPT, *arguments]


def arguments(page: str | None, runs: int, limit: float) -> argparse.ArgumentParser:
    """What two commands on a model are compared by; the `page` is of the benchmark that does."""
    parser = argparse.ArgumentParser(description=(page or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="ONNX file (default: a generated MobileNetV2)")
    parser.add_argument("--runs", type=int, default=runs, help="runs of each command (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=limit, help="exit 1 above this ratio (default: %(default)s)")
    return parser


def run(command: Command) -> float:
    """Seconds one run of `command` takes; ends the benchmark with the command's messages if it fails."""
    start = time.perf_counter()
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise SystemExit(f"{command[0]}: {error.strerror}") from error
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return seconds


def alternate(commands: Mapping[str, Command], runs: int) -> list[Timing]:
    """Time the commands in turn, `runs` times each, after one run of each that fills the caches."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        run(command)
    for _ in range(runs):
        for name, command in commands.items():
            seconds[name].append(run(command))
    return [Timing(name, tuple(taken)) for name, taken in seconds.items()]


def compare(commands: Mapping[str, Command], runs: int, limit: float) -> int:
    """Print two commands' medians and the first's ratio to the second's; 1 if it is over `limit`, else 0."""
    first, second = alternate(commands, runs)
    ratio = first.median / second.median
    print(first)
    print(second)
    print(f"ratio        {ratio:.2f}  (limit {limit:g}): {'ok' if ratio <= limit else 'TOO SLOW'}")
    return int(ratio > limit)
