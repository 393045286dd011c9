"""MACs of convolutions and products, as `onnxopt stats` counts them and as onnx-tool does.

    python benchmarks/against_onnx_tool.py [MODEL.onnx ...]

onnx-tool is installed in .venv-peers (make bench-macs). Compared are the operators that both call MACs by the same
definition: products and convolutions. What onnx-tool counts for the rest is its own: four for each element of a
BatchNormalization; for a ConvTranspose the products with the zeros between its inputs too. Exits with 1 if a sum
differs by more than 1 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from onnxopt.api.analyses import stats

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / ".venv-peers" / "bin" / "python"
PRODUCTS = ("Conv", "Gemm", "MatMul")
COUNT = """
import json, sys
import onnx_tool
model = onnx_tool.Model(sys.argv[1], {"verbose": False})
model.graph.shape_infer(None)
model.graph.profile()
macs = {}
for node in model.graph.nodemap.values():
    macs[node.op_type] = macs.get(node.op_type, 0) + float(node.macs[0])
print(json.dumps(macs))
"""


def peer_macs(path: Path) -> dict[str, float] | str:
    """Returns MACs by operator, or the last line of onnx-tool's error."""
    done = subprocess.run([PEER, "-c", COUNT, path], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1][:60]
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        models = [Path(a) for a in sys.argv[1:]]
        if not models:
            subprocess.run(
                [sys.executable, ROOT / "models" / "network.py", "densenet121", f"{folder}/d.onnx"], check=True
            )
            models = [Path(folder) / "d.onnx"]
        worst = 0.0
        for path in models:
            work = stats(path, work=True).work
            assert work is not None
            ours = {op: work.macs_by_operator.get(op, 0) for op in PRODUCTS}
            theirs = peer_macs(path)
            if isinstance(theirs, str):
                print(f"{path.stem:28} onnx-tool: {theirs}")
                continue
            mine, other = sum(ours.values()), sum(theirs.get(op, 0.0) for op in PRODUCTS)
            off = abs(mine - other) / other if other else float(mine > 0)
            note = f"  ({work.inexact} nodes of unknown sizes)" if work.inexact else ""
            worst = max(worst, 0.0 if work.inexact else off)
            print(f"{path.stem:28} onnxopt {mine:>15,}  onnx-tool {other:>15,.0f}  {off:7.3%}{note}")
    return worst > 0.01


if __name__ == "__main__":
    sys.exit(main())
