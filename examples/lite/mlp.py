"""A small model to try this on: python mlp.py model.onnx"""

import sys

import numpy as np
import onnx
from onnx import numpy_helper, parser

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
mlp (float[N, 4] x) => (float[N, 2] y)
<float[4, 8] w1, float[8] b1, float[8, 8] w2, float[8] b2, float[8, 2] w3>
{
  m1 = MatMul (x, w1)  a1 = Add (m1, b1)  r1 = Relu (a1)
  m2 = MatMul (r1, w2)  a2 = Add (b2, m2)  t = Tanh (a2)
  m3 = MatMul (t, w3)  r3 = Relu (m3)  y = Softmax (r3)
}
"""


def write(path):
    """The model, with random weights."""
    model = parser.parse_model(TEXT)
    random = np.random.default_rng(1)
    for info in model.graph.value_info:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape).astype("f"), info.name))
    del model.graph.value_info[:]
    onnx.save(model, path)


if __name__ == "__main__":
    write(sys.argv[1])
