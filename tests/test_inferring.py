"""onnx infers each operator once; repeated queries have the same answer, and nobody can change it."""

from __future__ import annotations

from unittest.mock import patch

import onnx
import pytest
from onnx import helper, shape_inference

from onnxopt.proto.inference import InferenceError, infer_call

RESHAPE = helper.make_node("Reshape", ["x", "t"], ["y"])
TYPES = {"x": helper.make_tensor_type_proto(1, (2, 3)), "t": helper.make_tensor_type_proto(7, (1,))}
SCHEMA = onnx.defs.get_schema("Reshape", 17)


def target(*dims: int) -> dict[str, onnx.TensorProto]:
    return {"t": helper.make_tensor("t", 7, [len(dims)], dims)}


def test_the_same_call_is_asked_once_and_others_are_others() -> None:
    with patch.object(shape_inference, "infer_node_outputs", wraps=shape_inference.infer_node_outputs) as asked:
        for size in (6, 6, 3):
            types = {**TYPES, "x": helper.make_tensor_type_proto(1, (size, 911))}
            found = infer_call(SCHEMA, RESHAPE, types, target(-1), 17)
            assert found == {"y": helper.make_tensor_type_proto(1, (size * 911,))}
            found["y"].Clear()
        assert infer_call(SCHEMA, RESHAPE, types, target(911, 3), 17)["y"].tensor_type.shape.dim[0].dim_value == 911
    assert asked.call_count == 3


def test_what_is_large_is_not_kept() -> None:
    call = helper.make_node("Reshape", ["x", "t"], ["y"], name="long " * 2000)
    with patch.object(shape_inference, "infer_node_outputs", wraps=shape_inference.infer_node_outputs) as asked:
        for _ in range(2):
            assert infer_call(SCHEMA, call, TYPES, target(6), 17) == {"y": helper.make_tensor_type_proto(1, (6,))}
    assert asked.call_count == 2


def test_what_is_refused_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(InferenceError):
            infer_call(SCHEMA, RESHAPE, TYPES, target(4, -1), 17)
