"""How long `onnxopt optimize` takes, verification included, against onnxsim without its check.

    make bench-onnxsim [MODEL=...]         # installs onnxsim into .venv-peers first
    python benchmarks/against_onnxsim.py [MODEL] [--onnxsim PROGRAM] [--limit 0.5]

onnxsim compares nothing unless it is given a number of checks, so `onnxsim IN OUT` is its run without a
check. Both are whole processes, run in turn.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mobilenet import input_model
from pairs import arguments, compare, onnxopt
from tools import PEER


def main() -> int:
    parser = arguments(__doc__, runs=7, limit=0.5)
    onnxsim = str(PEER.with_name("onnxsim"))
    parser.add_argument("--onnxsim", default=onnxsim, help="the onnxsim program (default: .venv-peers)")
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
