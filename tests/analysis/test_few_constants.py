"""Constants without a kernel in onnxruntime: a few of them start no process."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

import onnxopt
from onnxopt.worker.service import Sandbox

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (bfloat16[2] x) => (bfloat16[2] y) <float[2] w = {0.5, 2.0}>
{ b = Cast <to = 16> (w) y = Add (x, b) }"""


def test_no_process_is_started_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    call = Sandbox.call
    monkeypatch.setattr(Sandbox, "call", lambda self, name, *args: (asked.append(name), call(self, name, *args))[1])
    graph = onnxopt.optimize(parser.parse_model(MODEL), verify=False).model.graph
    assert [n.op_type for n in graph.node] == ["Add"]
    assert [onnx.numpy_helper.to_array(t).astype("float32").tolist() for t in graph.initializer] == [[0.5, 2.0]]
    assert not asked
