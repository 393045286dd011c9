"""How long results run, beside the original and the best of the other optimizers' results: the table, worst first.

    python benchmarks/latency.py FOLDER-or-MODEL ... [--dims DIMS.json] [--keep FOLDER] [--seconds 5] [--no-peers]

Results are those of onnxopt at -O2, -O3 and with --target onnxruntime, and of the others with their default settings;
what is wrong is left out. All of a model's run in turn, one thread, processor time; a ratio is to the original, below
one is faster. Where onnxopt's is slower than the original, or than the best other, beyond the 95 % interval, the pair
is measured once more in four times the time; what is so again is told, with the operators that take more time, and the
exit code is 1.

Inputs: MODEL.json beside a model says of each its shape and bounds; --dims gives sizes by model, and by the dim's name
or INPUT:AXIS (INPUT may end in *); others are as `onnxopt bench` chooses them. Masks are ones, token types
zeros, positions count up.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from peers import Result, made
from tools import ONNXOPT, PEER, PEERS, find_models

from onnxopt.comparison.latency import BenchOptions, Ratio, bench
from onnxopt.errors import OnnxOptError

OURS = {
    "-O2": [ONNXOPT, "optimize", "-q", "-O2"],
    "-O3": [ONNXOPT, "optimize", "-q", "-O3"],
    "target": [ONNXOPT, "optimize", "-q", "--target", "onnxruntime"],
}


@dataclass
class Row:
    """What was measured of a model. `ratios`: to the original, by result; `beside`: of ours to the best other's;
    `slower`: what is, in words."""

    model: str
    ratios: dict[str, Ratio] = field(default_factory=dict)
    peer: str = ""
    beside: dict[str, Ratio] = field(default_factory=dict)
    slower: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def worst(self) -> float:
        found = [*(self.ratios[name] for name in OURS if name in self.ratios), *self.beside.values()]
        return max((r.low or r.value for r in found), default=0.0)


def sizes(dims: dict[str, int], name: str, shape: list[Any]) -> list[int] | None:
    """None where a size is not given."""
    found = []
    for axis, dim in enumerate(shape):
        starred = (n for key, n in dims.items() if key.endswith(f"*:{axis}") and name.startswith(key.partition("*")[0]))
        size = dim if isinstance(dim, int) else dims.get(f"{name}:{axis}", next(starred, dims.get(dim)))
        if size is None:
            return None
        found.append(size)
    return found


def drawn(path: Path, dims: dict[str, int], folder: Path) -> dict[str, str]:
    """The files of inputs whose sizes are given, by name."""
    graph, rng = onnx.load(path, load_external_data=False).graph, np.random.default_rng(0)
    beside = path.with_suffix(".json")
    said = {i["name"]: i for i in json.loads(beside.read_text())["inputs"]} if beside.exists() else {}
    weights = {t.name for t in graph.initializer}
    files = {}
    for i, given in enumerate(v for v in graph.input if v.name not in weights):
        kind, shape = given.type.tensor_type.elem_type, given.type.tensor_type.shape.dim
        how = said.get(given.name, {})
        own = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in shape]
        size = how["shape"] if "shape" in how else sizes(dims, given.name, own)
        if size is None:
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        if dtype.kind in "iu":
            low, high = int(how.get("low", 3)), int(how.get("high", 80))
            array = rng.integers(low, max(high, low + 1), size)
            if not how and "mask" in given.name:
                array = np.ones(size)
            elif not how and "type" in given.name:
                array = np.zeros(size)
            elif not how and "position" in given.name:
                array = np.broadcast_to(np.arange(size[-1]) + dims.get("position", 0), size)
        elif dtype.kind == "b":
            array = np.ones(size)
        elif how and how.get("dist") != "normal":
            array = rng.uniform(how.get("low", -1), how.get("high", 1), size)
        else:
            array = rng.standard_normal(size)
        file = folder / f"{i}.npy"
        np.save(file, np.array(array, dtype))
        files[given.name] = str(file)
    return files


def measure(source: Path, folder: Path, limit: float, options: BenchOptions, tools: dict[str, list[str]]) -> Row:
    row = Row(f"{source.parent.name}/{source.stem}")
    results: dict[str, Result] = made(source, folder, limit, tools, OURS)
    right = {name: folder / f"{name}.onnx" for name, r in results.items() if not (r.said or r.wrong)}
    if missing := [f"{name} {results[name].said or 'is wrong'}" for name in OURS if name not in right]:
        row.slower.append("; ".join(missing))
    found = bench([source, *right.values()], options)
    if found.failure:
        row.failure = found.failure
        return row
    row.ratios = dict(zip(right, found.ratios))
    others = [name for name in row.ratios if name not in OURS]
    row.peer = min(others, key=lambda name: row.ratios[name].value, default="")
    for name in (n for n in OURS if n in row.ratios):
        if (row.ratios[name].low or 0) > 1:
            again(row, row.ratios, name, (source, right[name]), options, "the original")
        if row.peer:
            beside(row, name, right, options)
    return row


def beside(row: Row, name: str, right: dict[str, Path], options: BenchOptions) -> None:
    """Returns the result compared with the best peer's: measured alone if it may be slower."""
    ours, other = row.ratios[name], row.ratios[row.peer]
    row.beside[name] = Ratio(ours.value / other.value, None, None, "same")
    if ours.value > other.value:
        (row.beside[name],) = bench([right[row.peer], right[name]], options).ratios
        if (row.beside[name].low or 0) > 1:
            again(row, row.beside, name, (right[row.peer], right[name]), options, row.peer)


def again(
    row: Row, ratios: dict[str, Ratio], name: str, pair: tuple[Path, Path], options: BenchOptions, than: str
) -> None:
    """Measure apparently slower results once more, and name the slow operators."""
    found = bench(pair, replace(options, seconds=4 * options.seconds, operators=True))
    if found.failure:
        return
    (ratios[name],) = found.ratios
    if (found.ratios[0].low or 0) > 1:
        more = sorted(found.operators, key=lambda o: o.seconds[0] - o.seconds[1])[:3]
        where = ", ".join(f"{o.operator} {(o.seconds[1] - o.seconds[0]) * 1e3:+.3f} ms" for o in more)
        row.slower.append(f"{name} than {than}, {told(found.ratios[0])}: {where}")


def told(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio.value:.3f}" + (f" ({ratio.low:.3f} to {ratio.high:.3f})" if ratio.low is not None else "")


def table(rows: list[Row]) -> Iterator[str]:
    """Worst first: the highest lower end of an interval."""
    yield f"| model | {' | '.join(OURS)} | best other | {' | '.join(f'{name} over it' for name in OURS)} |"
    yield "|---|" + "---:|" * (2 * len(OURS) + 1)
    for row in sorted(rows, key=lambda row: row.worst, reverse=True):
        best = f"{row.peer} {row.ratios[row.peer].value:.3f}" if row.peer else ""
        ours = [told(row.ratios.get(name)) for name in OURS]
        yield f"| {row.model} | {' | '.join([*ours, best, *(told(row.beside.get(name)) for name in OURS)])} |"
    for row in rows:
        yield from (f"\n{row.model}: slower: {line}" for line in row.slower)
        if row.failure:
            yield f"\n{row.model}: not measured: {row.failure}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*", help="files, or folders of them (default: the sample models)")
    parser.add_argument("--dims", type=Path, help="JSON with sizes of dynamic dims by model")
    parser.add_argument("--keep", type=Path, help="folder for the results (default: a temporary one)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for an optimizer (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of a measurement (default: %(default)s)")
    parser.add_argument("--no-peers", action="store_true", help="onnxopt's results alone")
    asked = parser.parse_args()
    dims = json.loads(asked.dims.read_text()) if asked.dims else {}
    tools = OURS | ({} if asked.no_peers or not PEER.exists() else PEERS)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for model in find_models(asked.models, folder):
            kept = (asked.keep or folder) / f"{model.stem}-{zlib.crc32(model.read_bytes()):08x}"
            inputs = drawn(model, dims.get(model.stem, {}), folder)
            options = BenchOptions(seconds=asked.seconds, threads=1, clock="processor", inputs=inputs)
            try:
                rows.append(measure(model, kept, asked.limit, options, tools))
            except OnnxOptError as e:
                rows.append(Row(model.stem, failure=e.message))
            ours = ", ".join(f"{name} {told(rows[-1].ratios.get(name))}" for name in OURS)
            print(f"{model.stem}: {rows[-1].failure or ours}", file=sys.stderr, flush=True)
    print("\n".join(table(rows)))
    return int(any(row.slower for row in rows))


if __name__ == "__main__":
    sys.exit(main())
