"""A convolution in float64 by the reference evaluator equals the runtime's convolution in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxopt.verification.run import Reference
from tests.runtime import outputs

X: dict[int, list[int]] = {1: [2, 6, 11], 2: [2, 6, 11, 9], 3: [1, 6, 7, 6, 5]}
CONVS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "pointwise": ([4, 6, 1, 1], {}),
    "pointwise, every other": ([4, 6, 1, 1], {"strides": [2, 2]}),
    "of one axis": ([4, 6, 3], {"pads": [1, 2]}),
    "padded apart": ([4, 6, 3, 2], {"pads": [0, 1, 2, 1]}),
    "of three axes, dilated": ([4, 6, 2, 3, 2], {"dilations": [2, 1, 3], "strides": [1, 2, 1]}),
    "in groups": ([4, 3, 3, 3], {"group": 2, "pads": [1, 1, 1, 1]}),
    "channel by channel": ([6, 1, 3, 3], {"group": 6, "dilations": [2, 2], "auto_pad": "VALID"}),
    "of several channels each": ([12, 1, 3, 3], {"group": 6}),
    "padded to the same size": ([4, 6, 3, 3], {"auto_pad": "SAME_UPPER"}),
    "a large kernel": ([4, 6, 9, 9], {}),
}


def model(kernel: list[int], attributes: dict[str, Any], dtype: type, opset: int, *, bias: bool) -> ModelProto:
    rng = np.random.default_rng(0)
    held = [numpy_helper.from_array(rng.standard_normal(kernel).astype(dtype), "w")]
    held += [numpy_helper.from_array(rng.standard_normal(kernel[:1]).astype(dtype), "b")] if bias else []
    conv = helper.make_node("Conv", ["x", *(t.name for t in held)], ["y"], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = helper.make_tensor_value_info("x", kind, X[len(kernel) - 2])
    y = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([conv], "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("name", CONVS)
def test_float64_equals_float32(name: str, opset: int, bias: bool) -> None:
    kernel, attributes = CONVS[name]
    x = np.random.default_rng(1).standard_normal(X[len(kernel) - 2])
    narrow, wide = (model(kernel, attributes, dtype, opset, bias=bias) for dtype in (np.float32, np.float64))
    expected = outputs(narrow, {"x": x.astype(np.float32)})["y"]
    found = Reference(wide.SerializeToString()).run({"x": x})[0]
    assert found.dtype == np.float64 and found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)
