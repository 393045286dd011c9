"""Tensors of more dims than numpy compares (32), and as many as it holds (64)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxopt import optimize
from onnxopt.analysis.shapes.sizes import broadcast_shape, broadcast_together
from tests.runtime import plain_session
from tests.samples import parsed


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        [()],
        [(3,), ()],
        [(2, 1), (1, 3)],
        [(4, 1, 2), (3, 1)],
        [(0,), (1,)],
        [(0, 2), (2,)],
        [(1, 1), (1,)],
        [(2,)] * 3,
    ],
)
def test_as_numpy_has_it(shapes: list[tuple[int, ...]]) -> None:
    assert broadcast_shape(*shapes) == np.broadcast_shapes(*shapes)
    arrays = [np.ones(shape) for shape in shapes]
    for ours, theirs in zip(broadcast_together(*arrays), np.broadcast_arrays(*arrays), strict=True):
        assert ours.shape == theirs.shape


@pytest.mark.parametrize("shapes", [[(2,), (3,)], [(0,), (2,)], [(2, 2), (2, 3)]])
def test_what_does_not_fit(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        broadcast_shape(*shapes)


@pytest.mark.parametrize("rank", [31, 33, 64])
@pytest.mark.parametrize(
    "body",
    [
        "a = Mul (x, one) b = Mul (a, two) y = Mul (b, one)",
        "a = Add (one, two) b = Expand (a, shape) y = Add (x, b)",
        "a = Add (x, one) b = Mul (a, two) c = Add (b, one) y = Mul (c, two)",
        "a = Mul (i, j) b = Add (a, j) e = Equal (a, b) w = Where (e, a, b) f = Cast <to = 1> (w) y = Mul (x, f)",
        "a = Concat <axis = 0> (one, two) b = Relu (a) y = Mul (x, b)",
        "a = Transpose (x) b = Mul (a, two) y = Transpose (b)",
        "a = Div (x, two) b = Div (a, two) c = Sub (b, one) d = Max (c, two) y = Max (d, one)",
        "a = ReduceSum (x, axis) b = Squeeze (a) c = Unsqueeze (b, axis) y = Add (c, two)",
        "a = Slice (x, zero, last, axis) b = Tile (a, shape) y = Gather <axis = 1> (b, zero)",
    ],
)
def test_rules_and_folds_take_them(body: str, rank: int) -> None:
    model = parsed(f"g (float[2] x) => (float[] y) {{ {body} }}")
    ones = [1] * rank
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, [2, *ones[1:]]))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    constants = {
        "one": np.ones(ones, np.float32),
        "two": np.full([2, *ones[1:]], 2, np.float32),
        "i": np.full(ones, 3),
        "j": np.full([2, *ones[1:]], 4),
        "shape": np.array(ones),
        "axis": np.array([0]),
        "zero": np.array([0]),
        "last": np.array([9]),
    }
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    result = optimize(onnx.ModelProto.FromString(model.SerializeToString()), level=3, verify=False).model
    try:
        session = plain_session(model)
        feeds = {"x": np.full([2, *ones[1:]], 0.5, np.float32)}
        expected = session.run(None, feeds)[0]
    except Exception:  # onnxruntime has no kernel for so many dims
        return
    np.testing.assert_allclose(plain_session(result).run(None, feeds)[0], expected, rtol=1e-6)
