"""Calls of a function that lost inputs or outputs are analysed with the changed function."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnxopt import get_pass
from onnxopt.analysis.submodel import submodel
from onnxopt.analysis.types import infer
from onnxopt.graph import Model, read_model
from tests.runtime import outputs

_CALLED = """
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2,3] x, float[5] w) => (float[2,3] y)
    {
      p, q = local.both (w, x)
      y = Relu (q)
    }
    <domain: "local", opset_import: ["" : 17]>
    both (a, b) => (c, d)
    {
      e = Neg (a)
      c = Cast <to = 7> (e)
      d = Neg (b)
    }
"""


def without_its_ends() -> Model:
    """The call has one input and one output, the second of each; nothing has been asked of it."""
    model = read_model(onnx.parser.parse_model(_CALLED))
    get_pass("dead-code")()(model)
    (call,) = (n for n in model.graph if n.domain == "local")
    assert len(call.inputs) == len(call.outputs) == 1
    return model


def test_types_are_those_of_what_is_left() -> None:
    """They were those of the output that went, of the input that went: integers."""
    model = without_its_ends()
    infer(model)
    (call,) = (n for n in model.graph if n.domain == "local")
    assert (call.outputs[0].dtype, call.outputs[0].shape) == (TensorProto.FLOAT, (2, 3))


def test_a_model_of_the_call_has_what_is_left() -> None:
    model = without_its_ends()
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    (call,) = (n for n in model.graph if n.domain == "local")
    part = submodel(model.graph, [call])
    (found,) = outputs(part, {"x": x}).values()
    np.testing.assert_array_equal(found, -x)
