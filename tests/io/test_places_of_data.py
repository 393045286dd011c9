"""External data go along with the model wherever a tensor names a file, and are read beside the model only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnxopt.errors import ModelError
from onnxopt.io import load, save
from onnxopt.io.external import external_tensors
from onnxopt.io.staging import is_data_of
from tests.samples import parsed

WEIGHTS = np.arange(512, dtype=np.float32)
HEAD = '<ir_version: 10, opset_import: ["" : 21, "f" : 1, "c" : 1]> g (float[256] x) => (float[256] y) { '


def stored(location: str) -> TensorProto:
    """The second half of the weights."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[256], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "1024"), ("length", "1024")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def in_a_default(tensor: TensorProto) -> onnx.ModelProto:
    """Of a function, what is taken where its caller says nothing."""
    model = parsed(HEAD + "y = f.F (x) }")
    constant = helper.make_node("Constant", [], ["w"])
    constant.attribute.add(name="value", ref_attr_name="given", type=AttributeProto.TENSOR)
    nodes = [constant, helper.make_node("Add", ["x", "w"], ["y"])]
    function = helper.make_function("f", "F", ["x"], ["y"], nodes, [helper.make_opsetid("", 21)])
    function.attribute_proto.add(name="given", type=AttributeProto.TENSOR).t.CopyFrom(tensor)
    model.functions.append(function)
    return model


def in_sparse_tensors(tensor: TensorProto) -> onnx.ModelProto:
    model = parsed(HEAD + "a = c.Custom (x)  y = Neg (a) }")
    sparse = model.graph.node[0].attribute.add(name="s", type=AttributeProto.SPARSE_TENSORS).sparse_tensors.add()
    sparse.dims.append(512)
    sparse.values.CopyFrom(tensor)
    sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(256)))
    return model


PLACES = [in_a_default, in_sparse_tensors]


@pytest.mark.parametrize("external", ["auto", "copy", "inline"])
@pytest.mark.parametrize("place", PLACES)
def test_data_goes_along(place: Callable[[TensorProto], onnx.ModelProto], external: str, tmp_path: Path) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "in" / "w").write_bytes(WEIGHTS.tobytes())
    onnx.save(place(stored("w")), tmp_path / "in" / "m.onnx")
    out = tmp_path / "out" / "m.onnx"
    save(load(tmp_path / "in" / "m.onnx"), out, external)
    result = onnx.load(out, load_external_data=False)
    if external == "inline":
        assert not external_tensors(result)
        assert WEIGHTS[256:].tobytes() in out.read_bytes()
        return
    (tensor,) = external_tensors(result)
    entries = {e.key: e.value for e in tensor.external_data}
    assert is_data_of("m.onnx", entries["location"])
    data = (tmp_path / "out" / entries["location"]).read_bytes()
    assert data[int(entries["offset"]) :][:1024] == WEIGHTS[256:].tobytes()


@pytest.mark.parametrize("place", PLACES)
def test_data_elsewhere_is_refused(place: Callable[[TensorProto], onnx.ModelProto], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "w").write_bytes(WEIGHTS.tobytes())
    onnx.save(place(stored("../w")), tmp_path / "in" / "m.onnx")
    with pytest.raises(ModelError, match="outside the model's folder"):
        save(load(tmp_path / "in" / "m.onnx"), tmp_path / "out.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "w"]
