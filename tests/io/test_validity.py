"""The origin of a failing pass: the model, if onnx's checker rejects it for more than a missing shape."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import onnx
import pytest

from onnxopt.errors import ModelError
from onnxopt.io.load import blaming

OUTPUTS_OF_NO_SHAPE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 4] x) => (float[] y, z)
<float[2, 4] w = {1, 2, 3, 4, 5, 6, 7, 8}> { h = Add (x, w) y = Neg (h) z = Abs (h) }"""


def made(external: bool, folder: Path) -> onnx.ModelProto | Path:
    model = onnx.parser.parse_model(OUTPUTS_OF_NO_SHAPE)
    if not external:
        return model
    weight = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(model.graph.initializer[0]), "w")
    model.graph.initializer[0].CopyFrom(weight)
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.onnx"


@pytest.mark.parametrize("external", [False, True])
def test_outputs_without_a_shape_are_no_fault_of_the_model(external: bool, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), blaming(made(external, tmp_path)):
        raise ZeroDivisionError


def test_what_else_is_wrong_with_such_a_model_is_said() -> None:
    model = made(False, Path())
    assert isinstance(model, onnx.ModelProto)
    model.graph.node.append(onnx.helper.make_node("Loop", ["", ""], ["nothing"]))
    with pytest.raises(ModelError, match="Required attribute 'body' is missing"), blaming(model):
        raise ZeroDivisionError


def test_inputs_without_a_type_are_a_fault() -> None:
    model = onnx.parser.parse_model(OUTPUTS_OF_NO_SHAPE)
    model.graph.input[0].ClearField("type")
    with pytest.raises(ModelError, match="not a valid model"), blaming(model):
        raise ZeroDivisionError


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a file's name is text")
def test_a_name_that_is_no_text_is_no_fault_of_the_model(tmp_path: Path) -> None:
    """onnx's checker takes no such path."""
    odd = tmp_path / os.fsdecode(b"odd\xff.onnx")
    made(True, tmp_path)
    (tmp_path / "m.onnx").rename(odd)
    with pytest.raises(ZeroDivisionError), blaming(odd):
        raise ZeroDivisionError
