"""The optimizers that are compared, each with its default settings, and the models they are given.

PEERS call nothing but the optimizer: load, optimize, save. COMMANDS are the programs that some come with: these check
or tell more.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PEER: Final = ROOT / ".venv-peers" / "bin" / "python"
ONNXOPT: Final = str(Path(sys.executable).with_name("onnxopt"))
_SAVE: Final = "onnx.save(m, sys.argv[2])"

# What any tool pays that reads a model and writes it.
FLOOR: Final = [sys.executable, "-c", "import onnx, sys; onnx.save(onnx.load(sys.argv[1]), sys.argv[2])"]

PEERS: Final = {
    "onnxsim": [
        *(str(PEER), "-c"),
        f"import onnx, onnxsim, sys; m, _ = onnxsim.simplify(onnx.load(sys.argv[1])); {_SAVE}",
    ],
    "onnxslim": [str(PEER), "-c", f"import onnx, onnxslim, sys; m = onnxslim.slim(sys.argv[1]); {_SAVE}"],
    "onnxscript": [
        *(str(PEER), "-c"),
        "import onnx, sys; from onnxscript import optimizer, rewriter; "
        f"m = rewriter.rewrite(optimizer.optimize(onnx.load(sys.argv[1]))); {_SAVE}",
    ],
    "onnxoptimizer": [
        *(str(PEER), "-c"),
        "import onnx, onnxoptimizer, sys; m = onnxoptimizer.optimize("
        f"onnx.load(sys.argv[1]), onnxoptimizer.get_fuse_and_elimination_passes()); {_SAVE}",
    ],
    "onnxruntime basic": [
        *(str(PEER), "-c"),
        "import onnxruntime as rt, sys; o = rt.SessionOptions(); o.log_severity_level = 4; "
        "o.graph_optimization_level = rt.GraphOptimizationLevel.ORT_ENABLE_BASIC; "
        "o.optimized_model_filepath = sys.argv[2]; rt.InferenceSession(sys.argv[1], o)",
    ],
}

COMMANDS: Final = {
    "`onnxsim IN OUT`": [str(PEER.with_name("onnxsim"))],
    "`onnxslim IN OUT`": [str(PEER.with_name("onnxslim"))],
    "`python -m onnxoptimizer IN OUT`": [str(PEER), "-m", "onnxoptimizer"],
}


def find_models(given: Sequence[Path], folder: Path) -> list[Path]:
    """The files, and those in the folders, that are `given`; the sample models, built in `folder`, if nothing is."""
    if not given:
        given = [folder / "models"]
        subprocess.run([sys.executable, ROOT / "models" / "build.py", given[0]], check=True, stdout=subprocess.DEVNULL)
    return sorted(m for g in given for m in (g.rglob("*.onnx") if g.is_dir() else [g]))
