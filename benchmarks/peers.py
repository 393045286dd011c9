"""onnxopt beside the other optimizers: nodes left, time, difference from the original, speed of the result.

    make bench-peers [MODEL="folder a.onnx"] [OPTIONS="--keep FOLDER --seconds 5 --level none --threads 2"]

Each optimizer runs with its default settings in a process of its own, which is timed whole; its result is compared with
the original in onnxruntime, graph optimizations off. Then the original and what is right run in turn in one process,
as they would be deployed. Ratios are to the original: below one is faster.

Whose result is the fastest of the others' is partly chance: that one and onnxopt's are measured anew, the two alone.
Where onnxopt's is slower, the lower end of the 95 % interval above one, it has to be so again, in four times the time:
of fifty equal pairs one or two would be, once. Exit code 1 if any is, or if onnxopt has no right result.

`--keep`: results stay in that folder, and later calls only run them; what is deleted there is made again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import onnx
from tools import ONNXOPT, PEERS, find_models

from onnxopt.comparison.latency import LEVELS, Bench, BenchOptions, bench
from onnxopt.errors import OnnxOptError
from onnxopt.verification import verify

OURS = "onnxopt"
TOOLS = {
    OURS: [ONNXOPT, "optimize", "-q"],
    "onnxopt -O3": [ONNXOPT, "optimize", "-q", "-O3"],
    **PEERS,
}


@dataclass
class Result:
    """What an optimizer left of a model; `said`: why there is nothing, `wrong`: it is not the model any more."""

    nodes: int = 0
    seconds: float = 0.0
    said: str = ""
    difference: str = ""
    wrong: bool = False


@dataclass
class Beside:
    """How long onnxopt's result runs over how long the fastest of the others' does; `failure`: why that is unknown."""

    peer: str = ""
    value: float = 0.0
    low: float = 0.0
    high: float = 0.0
    failure: str = ""

    @property
    def slower(self) -> bool:
        return self.low > 1

    def __str__(self) -> str:
        return self.failure or f"{self.peer} | {self.value:.3f} | {self.low:.3f} to {self.high:.3f}"


def count(graph: onnx.GraphProto) -> int:
    """Nodes, those of bodies too."""
    bodies = [g for n in graph.node for a in n.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]
    return len(graph.node) + sum(count(g) for g in bodies)


def nodes(path: Path) -> int:
    model = onnx.load(path, load_external_data=False)
    return count(model.graph) + sum(len(f.node) for f in model.functions)


def make(command: list[str], source: Path, target: Path, limit: float, judged: bool = False) -> Result:
    """What a command leaves of a model. `judged`: it compares with the original itself."""
    start = time.perf_counter()
    try:
        done = subprocess.run([*command, source, target], capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return Result(said=f"no answer in {limit:.0f} s")
    seconds = time.perf_counter() - start
    if done.returncode or not target.exists():
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Result(seconds=seconds, said=f"fails: {lines[-1][:70]}")
    if judged:
        return Result(nodes(target), seconds)
    try:
        found = verify(source, target)
    except OnnxOptError as e:  # another interface than the original's, or no model
        return Result(nodes(target), seconds, difference=f"**{e}**", wrong=True)
    said = ("exact" if found.exact else f"{found.worst_rel:.0e}") if found.agrees else f"**{found.message}**"
    return Result(nodes(target), seconds, difference=said, wrong=found.is_refused)


def made(
    source: Path, folder: Path, limit: float, tools: dict[str, list[str]] = TOOLS, judged: Collection[str] = ()
) -> dict[str, Result]:
    """The results of these optimizers, as NAME.onnx in `folder`, and what is known of each beside it. `judged`: those
    whose results need no verdict."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, command in tools.items():
        note = folder / f"{name}.json"
        if not note.exists():
            note.write_text(json.dumps(asdict(make(command, source, folder / f"{name}.onnx", limit, name in judged))))
        found[name] = Result(**json.loads(note.read_text()))
    return found


def beside(files: dict[str, Path], ratios: dict[str, float], options: BenchOptions) -> Beside:
    """onnxopt's and the fastest of the others', measured once more, and twice where that looks bad."""
    peer = min((name for name in ratios if name in PEERS), key=lambda name: ratios[name], default="")
    if not peer or OURS not in ratios:
        return Beside(peer, math.inf, math.inf, math.inf) if peer else Beside(failure="no other has a right result")
    for seconds in (options.seconds, 4 * options.seconds):
        found = bench([files[peer], files[OURS]], replace(options, seconds=seconds))
        if found.failure:
            return Beside(failure=found.failure)
        (ratio,) = found.ratios
        result = Beside(peer, ratio.value, ratio.low or 0.0, ratio.high or 0.0)
        if not result.slower:
            break
    return result


def report(source: Path, folder: Path, limit: float, options: BenchOptions) -> Beside:
    """Prints what is known of a model."""
    print(f"\n### {source.parent.name}/{source.stem}: {nodes(source):,} nodes\n", flush=True)
    results = made(source, folder, limit)
    right = {name: folder / f"{name}.onnx" for name, r in results.items() if not (r.said or r.wrong)}
    found = bench([source, *right.values()], options) if options.seconds else Bench(failure="not asked for")
    ratios = {name: r.value for name, r in zip(right, found.ratios)}
    print("| | nodes | seconds | difference | time |\n|---|---:|---:|---|---:|")
    for name, r in results.items():
        ratio = f"{ratios[name]:.2f}" if name in ratios else ""
        print(f"| {name} | {r.said or f'{r.nodes:,}'} | {r.seconds:.2f} | {r.difference} | {ratio} |")
    result = Beside(failure=found.failure) if found.failure else beside(right, ratios, options)
    print(f"\nonnxopt beside the fastest other: {result}", flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*", help="files, or folders of them (default: the sample models)")
    parser.add_argument("--keep", type=Path, help="folder for the results (default: a temporary one)")
    parser.add_argument("--limit", type=float, default=120, help="seconds for an optimizer (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of a measurement, 0 for none (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of the runtime (default: %(default)s)")
    parser.add_argument("--level", default="all", choices=LEVELS, help="its optimizations (default: %(default)s)")
    asked = parser.parse_args()
    options = BenchOptions(seconds=asked.seconds, threads=asked.threads, level=asked.level)
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        for model in find_models(asked.models, Path(temporary)):
            name = f"{model.parent.name}/{model.stem}"
            kept = f"{model.stem}-{zlib.crc32(model.read_bytes()):08x}"
            found[name] = report(model, (asked.keep or Path(temporary)) / kept, asked.limit, options)
    if not asked.seconds:
        return 0
    timed = {name: ratio for name, ratio in found.items() if not ratio.failure}
    slower = [name for name, ratio in timed.items() if ratio.slower]
    print("\n| model | fastest other | onnxopt's time over its | 95 % |\n|---|---|---:|---:|")
    for name in sorted(timed, key=lambda name: timed[name].value, reverse=True):
        print(f"| {name} | {timed[name]} |")
    print(f"\nNot timed: {', '.join(sorted(found.keys() - timed.keys())) or 'none'}")
    print(f"Slower than the fastest other on {len(slower)} of {len(timed)} models: {', '.join(slower) or 'none'}")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
