"""A convolution in float64, which runtimes have no kernel for, equals the runtime's convolution in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxopt.verification.pieces.doubled import as_products
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
@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("name", CONVS)
def test_products_are_the_convolution(name: str, opset: int, bias: bool) -> None:
    kernel, attributes = CONVS[name]
    x = np.random.default_rng(1).standard_normal(X[len(kernel) - 2])
    narrow, wide = (model(kernel, attributes, dtype, opset, bias=bias) for dtype in (np.float32, np.float64))
    assert as_products(wide, {}) == {}
    assert all(n.op_type != "Conv" for n in wide.graph.node)
    expected, found = outputs(narrow, {"x": x.astype(np.float32)})["y"], outputs(wide, {"x": x})["y"]
    assert found.dtype == np.float64 and found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "attributes", "opset"),
    [
        ([4, 6, 3, 3], {"auto_pad": "SAME_UPPER"}, 17),
        ([4, 6, 3, 3], {"auto_pad": "VALID", "pads": [1, 1, 1, 1]}, 17),
        ([4, 6, 3, 3], {"pads": [-1, 0, 0, 0]}, 17),
        ([4, 6, 3, 3], {"pads": [1, 1]}, 17),
        ([4, 6, 9, 9], {}, 17),
        ([4, 6, 3, 3], {}, 10),
    ],
    ids=[
        "sizes say the padding",
        "two words about it",
        "cut",
        "of other axes",
        "a large kernel",
        "opset 10",
    ],
)
def test_convolutions_that_are_not_rewritten(kernel: list[int], attributes: dict[str, Any], opset: int) -> None:
    found = model(kernel, attributes, np.float64, opset, bias=False)
    before = found.SerializeToString()
    as_products(found, {})
    assert found.SerializeToString() == before


def test_only_unread_weights_are_removed() -> None:
    found = model([4, 6, 3, 3], {}, np.float64, 17, bias=True)
    weights = {t.name: numpy_helper.to_array(t) for t in found.graph.initializer}
    assert as_products(found, weights).keys() == {"b"}
    assert "w" not in {t.name for t in found.graph.initializer}
    found = model([4, 6, 3, 3], {}, np.float64, 17, bias=True)
    branch = onnx.parser.parse_graph("t () => (z) { z = Identity (w) }")
    condition = numpy_helper.from_array(np.array(True), "c")
    found.graph.initializer.append(condition)
    found.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    found.graph.output.add(name="z").type.tensor_type.elem_type = TensorProto.DOUBLE
    assert as_products(found, weights).keys() == {"w", "b"}
