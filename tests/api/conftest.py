"""A model, and a plugin whose rule is wrong."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

WRONG = '''
from onnxopt import PassInfo, RewritePass, op, register, rewrite, var

@rewrite(op.Sin(var("x")))
def sine_is_cosine(m, x):
    """Sin(x) = Cos(x), which is wrong."""
    return m.op.Cos(x)

@register
class Wrong(RewritePass):
    info = PassInfo("wrong", opt_level=0)
    rules = (sine_is_cosine,)
'''
SINES = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (float[2, 4] y)
    { a = Identity (x) b = Sin (a) y = Neg (b) }"""


@pytest.fixture
def sines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry_as_it_was: None) -> onnx.ModelProto:
    """A model, which is also in m.onnx, and a plugin with a wrong rule in wrong.py, in the current folder."""
    monkeypatch.chdir(tmp_path)
    proto = onnx.parser.parse_model(SINES)
    onnx.save(proto, "m.onnx")
    Path("wrong.py").write_text(WRONG)
    return proto
