"""How long `onnxopt optimize --no-verify` takes against loading and saving the model with onnx alone.

    python benchmarks/startup.py [MODEL] [--limit 2.0]

The floor is `python -c "import onnx; onnx.save(onnx.load(IN), OUT)"`. Both are whole processes, run in turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from mobilenet import input_model
from pairs import compare, onnxopt

LOAD_AND_SAVE = "import onnx, sys; onnx.save(onnx.load(sys.argv[1]), sys.argv[2])"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="ONNX file (default: a generated MobileNetV2)")
    parser.add_argument("--runs", type=int, default=9, help="runs of each command (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=2.0, help="exit 1 above this ratio (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = str(input_model(options.model, Path(folder)))
        ours, floor = str(Path(folder, "optimized.onnx")), str(Path(folder, "saved.onnx"))
        commands = {
            "onnxopt": onnxopt("optimize", source, ours, "--no-verify"),
            "load + save": [sys.executable, "-c", LOAD_AND_SAVE, source, floor],
        }
        return compare(commands, options.runs, options.limit)


if __name__ == "__main__":
    sys.exit(main())
