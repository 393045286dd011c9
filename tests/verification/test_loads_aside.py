"""A copy of the worker loads results with onnxruntime's optimizations; what it cannot load, the worker loads again."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no other system copies processes")

LOADS = """
import sys
from onnxopt.verification.aside import Aside

good, bad = sys.argv[1:]
few, aside = Aside(), Aside()
few.prepare(good, 2)
few.begin(good)
print(few.loads())
aside.prepare(good, 100)
for path in (bad, good, good):
    aside.begin(path)
    print(aside.loads())
aside.begin(bad)
aside.begin(good)
print(aside.loads(), aside.loads())
aside._copy._worker._process.kill()
aside.begin(good)
print(aside.loads())
aside.begin(good)
print(aside.loads())
"""


def test_only_what_was_loaded_counts(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (y) {y = Exp(x)}'
    onnx.save(onnx.parser.parse_model(text), good)
    bad.write_bytes(b"no model")
    done = subprocess.run([sys.executable, "-c", LOADS, good, bad], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True", "True", "True", "False", "False", "True"]
