"""Many small models in one call: models a second, verified and not.

    python benchmarks/batch.py [--models 1000] [--jobs 2]

The models are the operator tests of the standard, which the onnx package makes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from shutil import rmtree
from subprocess import run
from time import perf_counter

import onnx
from onnx.backend.test.case.node import collect_testcases
from tools import ONNXOPT


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
        print("| | models | seconds | models a second |\n|---|---:|---:|---:|")
        for label, flags in (("unverified", ["--no-verify"]), ("verified", [])):
            command = [ONNXOPT, "optimize", *source.glob("*.onnx"), "--out-dir", target, "--jobs", str(options.jobs)]
            start = perf_counter()
            done = run([*command, *flags], capture_output=True, text=True, check=False)
            seconds = perf_counter() - start
            made = len(list(target.glob("*.onnx")))
            print(f"| {label} | {made} | {seconds:.1f} | {len(chosen) / seconds:.0f} |", flush=True)
            if done.returncode not in (0, 1, 2, 3):
                print(done.stderr[-500:], file=sys.stderr)
                return 1
            rmtree(target, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
