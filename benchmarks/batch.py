"""Many small models in one call: models a second, what each takes of the processor, and memory; verified and not.

    python benchmarks/batch.py [--models 1000] [--jobs 2]

The models are the operator tests of the standard, which the onnx package makes. What all processes together take of
the processor says more than the clock where others work on the same machine: as many quiet cores as there are jobs do
`jobs * 1000 / milliseconds` models a second. Memory is that of the largest process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from shutil import rmtree
from typing import Final

import onnx
from costs import cost
from onnx.backend.test.case.node import collect_testcases
from tools import ONNXOPT

_VERDICTS: Final = ("exit code 1", "exit code 2", "exit code 3")  # on single models


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="at once (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name, "in"), Path(name, "out")
        source.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of onnx's own generators
            chosen = collect_testcases("")[: options.models]
        for case in chosen:
            onnx.save(case.model, source / f"{case.name}.onnx")
        print("| | models | seconds | models a second | processor, ms a model | MB |\n|---|---:|---:|---:|---:|---:|")
        for label, flags in (("unverified", ["--no-verify"]), ("verified", [])):
            command = [ONNXOPT, "optimize", *source.glob("*.onnx"), "--out-dir", target, "--jobs", str(options.jobs)]
            taken = cost([str(part) for part in (*command, *flags)])
            made = len(list(target.glob("*.onnx")))
            each = 1000 * taken.busy / len(chosen)
            figures = f"{taken.seconds:.1f} | {len(chosen) / taken.seconds:.0f} | {each:.1f} | {taken.megabytes:.0f}"
            print(f"| {label} | {made} | {figures} |", flush=True)
            if taken.failed and taken.failed not in _VERDICTS:
                print(f"{label}: {taken.failed}", file=sys.stderr)
                return 1
            rmtree(target, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
