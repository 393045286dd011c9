"""Weights stored in fewer bits stay so; masks of truth values are no weights."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

import onnxopt
from tests.samples import parsed

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[200, 200] x) => (float[200, 200] y)
{ f = Cast <to = 1> (w)  y = Add (x, f) }"""


@pytest.mark.parametrize(("kind", "left"), [("bool", 1), ("int8", 2), ("float16", 2), ("int32", 1)])
def test_only_weights_stay_narrow(kind: str, left: int) -> None:
    model = parsed(TEXT)
    numbers = np.arange(40_000).reshape(200, 200) % 2
    model.graph.initializer.append(numpy_helper.from_array(numbers.astype(kind), "w"))
    assert len(onnxopt.optimize(model, verify=False).model.graph.node) == left
