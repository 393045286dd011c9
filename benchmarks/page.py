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

{table("scale.py", *rest)}
"""


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
