"""An operator runs with the demanded rank, and fails with one axis more or less: in onnxruntime, too."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.analysis.shapes.required_ranks import required_rank, running
from onnxopt.graph import read_model
from tests.runtime import plain_session
from tests.samples import build_text

CALLS = {
    "Conv (x, w)": 3,
    "ConvTranspose (x, w)": 3,
    "Transpose <perm = [1, 2, 0, 3]> (x)": 4,
    "MaxPool <kernel_shape = [2, 2]> (x)": 4,
    "AveragePool <kernel_shape = [2]> (x)": 3,
    "LpPool <kernel_shape = [2, 2]> (x)": 4,
    "LSTM <hidden_size = 4> (x, r, r)": 3,
    "LSTM <hidden_size = 4> (t, r, r, , , x, h)": 3,
    "LSTM <hidden_size = 4> (t, r, r, , , h, x)": 3,
    "GRU <hidden_size = 4> (x, g, g)": 3,
    "GRU <hidden_size = 4> (t, g, g, , , x)": 3,
    "RNN <hidden_size = 4> (x, h4, h4)": 3,
    "RNN <hidden_size = 4> (t, h4, h4, , , x)": 3,
    "Add (f, x)  z = Mul (y, y)  u = Max (z, z)  v = Transpose <perm = [0, 2, 1]> (u)": 3,
    "Softmax (x)  z = MatMul (y, m)  u = Clip (z)  v = Transpose <perm = [0, 2, 1]> (u)": 3,
    "MatMul (x, m)  v = Transpose <perm = [0]> (y)": 1,
    "Pad (x, pads)  z = LayerNormalization (y, f)  v = Transpose <perm = [1, 0]> (z)": 2,
    "Relu (x)  z = Unsqueeze (y, two)  v = Transpose <perm = [0, 1, 2]> (z)": 1,
    "Relu (x)  z = Squeeze (y, two)  v = Transpose <perm = [1, 0, 2]> (z)": 5,
}
NOTHING = (
    "Transpose (x)",
    "Softmax (x)",
    "MatMul (t, x)",
    "Relu (x)  u = Transpose <perm = [0, 1]> (y)",
    "Squeeze (x)  u = Transpose <perm = [0, 1]> (y)",
    "Add (x, h)  v = Transpose <perm = [0, 2, 1]> (y)",
    "Unsqueeze (x, one)  z = Add (y, h)  v = Transpose <perm = [0, 2, 1]> (z)",
    "Add (x, a)  v = Transpose <perm = [0, 2, 1]> (y)",
    "MatMul (m, x)  v = Transpose <perm = [0, 2, 1]> (y)",
    "MatMul (x, h)  v = Transpose <perm = [0, 2, 1]> (y)",
    "Unsqueeze (x, same)  u = Transpose <perm = [0, 1]> (y)",
)


def text(call: str, result: str) -> str:
    return f"""# weights: normal w r g h4 m f
<ir_version: 8, opset_import: ["" : 17]>
g (float[S, N, 4] t, float x, float[one, N, 4] h, float a) => (float {result})
<
  float[4, 4, 1] w, float[1, 16, 4] r, float[1, 12, 4] g, float[1, 4, 4] h4, int64[2] two = {{0, 1}},
  int64[2] same = {{0, -1}}, int64[1] one = {{0}}, float[4, 4] m, float[4] f, int64[4] pads = {{0, 0, 0, 0}}
>
{{ y = {call} }}"""


@pytest.mark.parametrize("call", CALLS)
def test_another_number_of_axes_is_an_error(call: str) -> None:
    asked = CALLS[call]
    proto = build_text(text(call, "v" if "v =" in call else "y"))
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    del proto.graph.input[3:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = read_model(proto)
    assert required_rank(model.graph.inputs[1], running(model.graph)) == asked
    session = plain_session(proto)
    ran = []
    for rank in range(1, asked + 3):
        dims = {1: [4], 2: [3, 4], 3: [1, 3, 4]}.get(rank, [1, 1, *[4] * (rank - 2)])
        if asked == 3 and "(x" in call and "onv" in call:
            dims = [1, 4, *[4] * (rank - 2)][:rank]
        feeds = {"t": np.zeros((2, 3, 4)), "x": np.zeros(dims), "h": np.zeros((1, 3, 4))}
        try:
            session.run(None, {k: v.astype(np.float32) for k, v in feeds.items()})
        except Exception:
            continue
        ran.append(rank)
    assert ran == [asked]


@pytest.mark.parametrize("call", NOTHING)
def test_nothing_is_asked(call: str) -> None:
    proto = build_text(text(call, "v" if "v =" in call else "y"))
    for i in (1, 3):
        proto.graph.input[i].type.tensor_type.ClearField("shape")
    model = read_model(proto)
    assert required_rank(model.graph.inputs[1], running(model.graph)) is None
