"""How long `onnxopt optimize --no-verify` takes against loading and saving the model with onnx alone.

    python benchmarks/startup.py [MODEL] [--limit 2.0]

The floor is `python -c "import onnx; onnx.save(onnx.load(IN), OUT)"`. Both are whole processes, run in turn.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mobilenet import input_model
from pairs import arguments, compare, onnxopt
from tools import FLOOR


def main() -> int:
    options = arguments(__doc__, runs=9, limit=2.0).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = str(input_model(options.model, Path(folder)))
        ours, floor = str(Path(folder, "optimized.onnx")), str(Path(folder, "saved.onnx"))
        commands = {
            "onnxopt": onnxopt("optimize", source, ours, "--no-verify"),
            "load + save": [*FLOOR, source, floor],
        }
        return compare(commands, options.runs, options.limit)


if __name__ == "__main__":
    sys.exit(main())
