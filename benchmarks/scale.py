"""What large models take, in one table in Markdown: graphs of many nodes, commands on them, weights of many gigabytes.

    python benchmarks/scale.py > table.md
    python benchmarks/scale.py --only nodes --families adds readers --nodes 20000 200000
    python benchmarks/scale.py --only weights --gib 1 20 --sparse --folder /mnt/disk

Whole processes, unverified unless it is said; on Linux and macOS. Of graphs the seconds of the processor count, which
other work on the machine disturbs least, of weights those of the clock, medians of --runs. Growth is time per node (per
byte) in the larger over that in the smaller model, less what a model of four nodes takes. `cp` copies the weights.
onnxruntime's offline optimizer, with all optimizations (of weights basic ones), has the larger model (not with
weights of more than --runtime-gib, which it would load), and is ended after --runtime-seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
from costs import Cost, cost
from families import FAMILIES
from pairs import onnxopt
from weights import measured, runtime

_GAP = 10  # times between sizes of commands that look at a model, and those that verify it


def model(family: str, nodes: int, folder: Path) -> Path:
    path = folder / f"{family}_{nodes}.onnx"
    if not path.exists():
        onnx.save(FAMILIES[family](nodes), path)
    return path


def growth(costs: tuple[Cost, Cost], sizes: tuple[float, float], start: float) -> float:
    small, large = (max(c.busy - start, 1e-3) / n for c, n in zip(costs, sizes))
    return large / small


def row(name: str, costs: tuple[Cost, Cost], ratio: float, cp: str = "", theirs: str = "", busy: bool = True) -> str:
    small, large = (c.text(busy=busy) for c in costs)
    grown = f"{ratio:.2f}" if ratio and not any(c.failed for c in costs) else ""
    peak = "" if costs[1].failed else f"{costs[1].megabytes:,.0f} MB"
    return f"| {name} | {small} | {large} | {grown} | {peak} | {cp} | {theirs} |"


def head(what: str, small: str, large: str) -> str:
    return f"| **{what}** | **{small}** | **{large}** | | | | |"


def graphs(options: argparse.Namespace, steep: list[str]) -> Iterator[str]:
    """`optimize` of each family."""
    sizes = (options.nodes[0], options.nodes[-1])
    yield head("`optimize`", *(f"{n:,} nodes" for n in sizes))
    for family in options.families:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)

            def run(nodes: int, family: str = family, folder: Path = folder) -> Cost:
                source = str(model(family, nodes, folder))
                return cost(onnxopt("optimize", source, str(folder / "o.onnx"), "--no-verify", "-q"), options.seconds)

            run(4)  # fills the caches
            start = run(4).busy
            costs = run(sizes[0]), run(sizes[1])
            ratio = growth(costs, sizes, start)
            theirs = "-"
            if options.runtime_seconds:
                command = runtime(model(family, sizes[1], folder), folder / "r.onnx", "ORT_ENABLE_ALL")
                theirs = cost(command, options.runtime_seconds).text(busy=True, memory=True)
            yield row(family, costs, ratio, theirs=theirs)
            if ratio > options.max_growth or any(c.failed for c in costs):
                steep.append(family)


def looks(options: argparse.Namespace, steep: list[str]) -> Iterator[str]:
    """The other commands, on a chain."""
    large = max(min(options.nodes[-1], 200_000), _GAP)
    sizes = (large // _GAP, large)
    yield head("on a chain", *(f"{n:,} nodes" for n in sizes))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)

        def commands(nodes: int) -> dict[str, list[str]]:
            source, result, record = (str(folder / f"{stem}_{nodes}.{end}") for stem, end in _FILES)
            pages = onnxopt("report", source, result, "-o", f"{source}.html", "-q", "--no-verify")
            return {
                "": onnxopt("optimize", source, result, "--no-verify", "-q", "--report", record),
                "`report`": pages,
                "`report --from`": [*pages, "--from", record],
                "`why`": onnxopt("why", source, "fold_conv_bn"),
                "`find`": onnxopt("find", source, "Relu(BatchNormalization(Conv(x, w), ...))"),
                "`stats`": onnxopt("stats", source),
                "`partition`": onnxopt("partition", source, "--ops", "Conv,Relu"),
            }

        found: dict[str, list[Cost]] = {}
        for nodes in (4, *sizes):
            model("chain", nodes, folder)
            for what, command in commands(nodes).items():
                found.setdefault(what, []).append(cost(command, options.seconds))
        for what, (start, *costs) in found.items():
            if what:
                ratio = growth((costs[0], costs[1]), sizes, start.busy)
                yield row(what, (costs[0], costs[1]), ratio)
                if ratio > options.max_growth or any(c.failed for c in costs):
                    steep.append(what)
        large = max(large // _GAP, _GAP)
        small = large // _GAP
        verified = [
            cost(onnxopt("optimize", str(model("chain", n, folder)), str(folder / "o.onnx"), "-q"), options.seconds)
            for n in (4, small, large)
        ]
        yield head("verified", f"{small:,} nodes", f"{large:,} nodes")
        costs = verified[1], verified[2]
        yield row("`optimize`", costs, growth(costs, (small, large), verified[0].busy))


_FILES = (("chain", "onnx"), ("result", "onnx"), ("record", "json"))


def weights(options: argparse.Namespace, steep: list[str]) -> Iterator[str]:
    """Each `--external`, beside `cp`."""
    sizes = (options.gib[0], options.gib[-1])
    told = ", holes" if options.sparse else ""
    yield head("weights" + told, *(f"{n:g} GiB" for n in sizes))
    limits = [options.runtime_seconds if n <= options.runtime_gib else 0.0 for n in sizes]
    small, large = (
        measured(n, options.sparse, options.folder, options.runs, options.seconds, limit)
        for n, limit in zip(sizes, limits)
    )
    beside = [(n, c["onnxruntime"]) for n, c in zip(sizes, (small, large)) if "onnxruntime" in c]
    cp, theirs = large["cp"].text(), "; ".join(f"{n:g} GiB: {c.text(memory=True)}" for n, c in beside[-1:])
    for name in (n for n in small if n.startswith("`")):
        costs = small[name], large[name]
        ratio = costs[1].seconds / costs[0].seconds * sizes[0] / sizes[1]
        yield row(name, costs, ratio, cp, theirs, busy=False)


_PARTS = {"nodes": graphs, "commands": looks, "weights": weights}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=_PARTS, nargs="+", default=list(_PARTS), help="parts of the table")
    parser.add_argument("--nodes", type=int, nargs=2, default=[20_000, 500_000], help="default: %(default)s")
    parser.add_argument("--families", nargs="+", choices=sorted(FAMILIES), default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--gib", type=float, nargs=2, default=[1.0, 20.0], help="of weights (default: %(default)s)")
    parser.add_argument("--sparse", action="store_true", help="holes for weights, where the disk is too small")
    parser.add_argument("--folder", type=Path, help="where to write: on the file system to be measured")
    parser.add_argument("--runs", type=int, default=3, help="of what is compared with cp (default: %(default)s)")
    parser.add_argument("--max-growth", type=float, default=2.0, help="per node (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=900.0, help="for one run of ours (default: %(default)s)")
    parser.add_argument("--runtime-gib", type=float, default=4.0, help="up to which onnxruntime is run")
    parser.add_argument("--runtime-seconds", type=float, default=300.0, help="for onnxruntime; 0: leave it out")
    options = parser.parse_args()
    steep: list[str] = []
    print("| | small | large | growth | peak memory | `cp` | onnxruntime, offline |")
    print("|---" * 7 + "|")
    for part in options.only:
        for line in _PARTS[part](options, steep):
            print(line, flush=True)
    verdict = f"NOT FLAT: {', '.join(steep)}" if steep else "ok"
    print(f"growth per node (limit {options.max_growth:g}): {verdict}", file=sys.stderr)
    return int(bool(steep))


if __name__ == "__main__":
    sys.exit(main())
