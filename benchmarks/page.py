"""Runs every table, and writes docs/benchmarks.md with them and what they were measured on.

    make bench-all [MODEL=folder] [OPTIONS=--sparse]

Takes hours, on a machine that does nothing else. A table alone: see the scripts.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tools import PEER, ROOT

HERE = Path(__file__).parent

LARGE = """\
Time and memory of onnxopt grow linearly with the number of nodes and bytes, whatever the structure of the graph.
`make bench-scale` measures the growth: graphs of thirteen families from 20,000 to 500,000 nodes through `onnxopt
optimize --no-verify`, all other commands on a chain, and weights of 20 GiB. `report` without `--from` and `why`
repeat the optimization; `find` prints each of 50,000 matches.

Graphs are measured in processor seconds, weights in elapsed seconds. Growth is the time per node (or byte) of the
larger model divided by the time per node of the smaller model, without the time of a four-node model. The comparisons
are `cp` for weights, and onnxruntime's offline optimizer on the larger model, with all optimizations (for weights
with basic ones).
"""

FAMILIES = """\
The families:

| family | graph |
|---|---|
| chain | Conv, BatchNormalization, Relu, Identity, each with separate weights |
| adds | Adds of constants, all merged into one |
| readers | one value read by half the nodes, and a Sum of their results |
| functions | functions without calls |
| siblings | Ifs next to each other |
| residual | residual blocks of convolutions |
| transformer | layers of attention, as exporters write them |
| shapes | Shape, Gather, Concat, Reshape, repeated |
| layouts | alternating Transpose and Reshape |
| casts | Casts to float16 and back |
| parts | one Split into as many parts as nodes, and one Concat |
| constants | a weight for every second node, half of them equal |
| interfaces | a graph input and an output for every node |

Limits: protobuf cannot hold 20 GiB inside a model, so `--external inline` is an error before any work. Protobuf
limits nesting to 100 levels of messages, about 30 nested Ifs.
"""


def table(script: str, *arguments: str) -> str:
    command = [sys.executable, str(HERE / script), *arguments]
    print(" ".join([script, *arguments]), file=sys.stderr, flush=True)
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def machine() -> str:
    """Processor, memory, system and versions."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    names = ("onnx", "onnxruntime", "numpy", "protobuf")
    ours = ", ".join(f"{name} {version(name)}" for name in names)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{found[1] if found else platform.processor() or platform.machine()}, {os.cpu_count()} processors, "
        f"{memory:.0f} GiB; {platform.system()} {platform.release()}, Python {platform.python_version()}, {ours}"
    )


def peers() -> str:
    if not PEER.exists():
        return "none installed"
    ask = "from importlib.metadata import version as v; print(', '.join(f'{n} {v(n)}' for n in %r))"
    names = ("onnxruntime", "onnxsim", "onnxslim", "onnxscript", "onnxoptimizer")
    return subprocess.run([PEER, "-c", ask % (names,)], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def sections(models: list[str], runs: str, rest: list[str]) -> Iterator[str]:
    yield f"""# Benchmarks

Time and memory of onnxopt and other optimizers: the tables of `make bench-all`, on {machine()}. Other tools: {peers()}.
"""
    yield f"""## Whole processes

Time and memory of the whole process, from start to end, on models as exporters write them, relative to
`onnx.save(onnx.load(IN), OUT)`. Medians of {runs} runs. `verified`: the result was compared with the original; no other
tool compares. Other tools run as a script with load, optimize and save, and (last rows) as their own command with
additional checks and output.

{table("whole.py", *models, "--peers", "--runs", runs)}
"""
    yield f"""## Many models in one call

The standard's operator tests, two at a time, read, optimized and written by reused processes:

{table("batch.py")}
"""
    yield f"""## Large models

{LARGE}
{table("scale.py", *rest)}

{FAMILIES}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--models", nargs="*", default=[], help="files, or folders of them (default: the sample models)"
    )
    parser.add_argument("--runs", default="5", help="of whole processes (default: %(default)s)")
    options, rest = parser.parse_known_args()
    written: list[str] = []
    for section in sections(options.models, options.runs, rest):  # each is on the page when it is there
        written.append(section)
        (ROOT / "docs" / "benchmarks.md").write_text("\n".join(written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
