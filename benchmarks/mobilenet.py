"""A MobileNetV2-like network with random weights, as exported without folding.

52 Convs, each with its BatchNormalization; after 35 of them a Clip with two Constant nodes as bounds; 10
residual Adds; 3.5 million parameters, 224 x 224 input, opset 17.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# expansion, output channels, repeats, stride of the first (Sandler et al. 2018, table 2)
BLOCKS = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


class _Builder:
    """Nodes and weights in order of execution; every method takes and gives back a value name."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, data: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(data.astype(np.float32), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        out = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], name=f"/{out}", **attributes))
        return out

    def scalar(self, value: float) -> str:
        return self.node("Constant", value=numpy_helper.from_array(np.array(value, np.float32)))

    def conv_bn(self, x: str, c_in: int, c_out: int, kernel: int = 1, stride: int = 1, group: int = 1) -> str:
        shape = (c_out, c_in // group, kernel, kernel)
        w = self.rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
        pads, strides = [kernel // 2] * 4, [stride] * 2
        y = self.node("Conv", x, self.weight(w), kernel_shape=[kernel] * 2, pads=pads, strides=strides, group=group)
        scale, var = self.rng.uniform(0.5, 1.5, (2, c_out))
        shift, mean = self.rng.standard_normal((2, c_out)) * 0.1
        return self.node("BatchNormalization", y, *(self.weight(v) for v in (scale, shift, mean, var)))

    def relu6(self, x: str) -> str:
        return self.node("Clip", x, self.scalar(0.0), self.scalar(6.0))

    def block(self, x: str, c_in: int, c_out: int, expansion: int, stride: int) -> str:
        """Inverted residual: expand 1x1, depthwise 3x3, project 1x1; x is added where shapes agree."""
        y, wide = x, c_in * expansion
        if expansion > 1:
            y = self.relu6(self.conv_bn(y, c_in, wide))
        y = self.relu6(self.conv_bn(y, wide, wide, 3, stride, group=wide))
        y = self.conv_bn(y, wide, c_out)
        return self.node("Add", x, y) if stride == 1 and c_in == c_out else y


def mobilenet(seed: int = 0) -> onnx.ModelProto:
    """The network, float[1, 3, 224, 224] -> float[1, 1000]."""
    b = _Builder(seed)
    channels = 32
    y = b.relu6(b.conv_bn("image", 3, channels, 3, 2))
    for expansion, c_out, repeats, first_stride in BLOCKS:
        for index in range(repeats):
            y = b.block(y, channels, c_out, expansion, first_stride if index == 0 else 1)
            channels = c_out
    y = b.relu6(b.conv_bn(y, channels, 1280))
    y = b.node("Flatten", b.node("GlobalAveragePool", y))
    dense = b.weight(b.rng.standard_normal((1000, 1280)) / math.sqrt(1280))
    y = b.node("Gemm", y, dense, b.weight(np.zeros(1000)), transB=1)
    b.nodes.append(helper.make_node("Identity", [y], ["logits"], name="/logits"))
    graph = helper.make_graph(
        b.nodes,
        "mobilenet",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1000])],
        b.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def input_model(given: Path | None, folder: Path) -> Path:
    """Returns the given model, or this network written to `folder`."""
    if given is not None:
        return given
    path = folder / "mobilenet.onnx"
    onnx.save(mobilenet(), path)
    return path
