"""How long `onnxopt optimize` takes, verification included, against onnxsim without its check.

    make bench-onnxsim [MODEL=...]         # installs onnxsim into .venv-peers first
    python benchmarks/against_onnxsim.py [MODEL] [--onnxsim PROGRAM] [--limit 0.5]

onnxsim compares nothing unless it is given a number of checks, so `onnxsim IN OUT` is its run without a
check. Both are whole processes, run in turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from mobilenet import input_model
from pairs import compare, onnxopt

ONNXSIM = Path(__file__).resolve().parents[1] / ".venv-peers" / "bin" / "onnxsim"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="ONNX file (default: a generated MobileNetV2)")
    parser.add_argument("--onnxsim", default=str(ONNXSIM), help="the onnxsim program (default: .venv-peers)")
    parser.add_argument("--runs", type=int, default=7, help="runs of each command (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=0.5, help="exit 1 above this ratio (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = str(input_model(options.model, Path(folder)))
        ours, theirs = str(Path(folder, "onnxopt.onnx")), str(Path(folder, "onnxsim.onnx"))
        commands = {
            "onnxopt": onnxopt("optimize", source, ours),
            "onnxsim": [options.onnxsim, source, theirs],
        }
        return compare(commands, options.runs, options.limit)


if __name__ == "__main__":
    sys.exit(main())
