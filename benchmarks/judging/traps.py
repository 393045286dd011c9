"""Models that tempt a judge to accuse a right rewrite: deep ones, amplified rounding, ranks near ties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

GAIN: Final = 3.0


def amplified(model: ModelProto) -> ModelProto | None:
    """Returns the model with three times the gain of each normalization; None without normalizations."""
    copy = ModelProto()
    copy.CopyFrom(model)
    gains = {n.input[1] for n in copy.graph.node if "Normalization" in n.op_type and len(n.input) > 1}
    gains |= set(_written_out(copy))
    tensors = [t for t in copy.graph.initializer if t.name in gains]
    for node in copy.graph.node:
        if node.op_type == "Constant" and node.output[0] in gains:
            tensors += [a.t for a in node.attribute if a.name == "value"]
    for t in tensors:
        array = numpy_helper.to_array(t)
        t.CopyFrom(numpy_helper.from_array((array * GAIN).astype(array.dtype), t.name))
    return copy if tensors else None


def _written_out(model: ModelProto) -> Iterator[str]:
    """Returns vectors multiplied with a quotient: gains of normalizations written out."""
    quotients = {n.output[0] for n in model.graph.node if n.op_type == "Div"}
    vectors = {t.name for t in model.graph.initializer if len(t.dims) == 1 and t.dims[0] > 1}
    for node in model.graph.node:
        if node.op_type == "Mul" and not quotients.isdisjoint(node.input):
            yield from vectors.intersection(node.input)


class _Builder:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, data: Any) -> str:
        array = np.asarray(data)
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array.astype("f") if array.dtype.kind == "f" else array, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        out = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], name=f"/{out}", **attributes))
        return out

    def conv_bn(self, x: str, w: Any, gain: float = 1.0) -> str:
        pads = [w.shape[2] // 2] * 4
        y = self.node("Conv", x, self.weight(w), kernel_shape=list(w.shape[2:]), pads=pads)
        scale, var = self.rng.uniform(0.5, 1.5, (2, len(w)))
        shift, mean = self.rng.standard_normal((2, len(w))) * 0.1
        return self.node("BatchNormalization", y, *(self.weight(v) for v in (scale * gain, shift, mean, var)))

    def random(self, *shape: int) -> Any:
        return self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))

    def model(self, name: str, shape: list[int], outputs: dict[str, tuple[int, int]]) -> ModelProto:
        """`outputs`: type and rank of each."""
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(o, t, [None] * rank) for o, (t, rank) in outputs.items()],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def deep_convolutions(depth: int = 200) -> ModelProto:
    b = _Builder(1)
    y = "image"
    for i in range(depth):
        y = b.node("Relu" if i % 2 else "Tanh", b.conv_bn(y, b.random(8, 8, 3, 3), GAIN))
    return b.model("deep_convolutions", [1, 8, 8, 8], {y: (TensorProto.FLOAT, 4)})


def deep_layers(depth: int = 200) -> ModelProto:
    """MatMul, scale, LayerNormalization as exporters wrote it out."""
    b = _Builder(2)
    y = "image"
    two, epsilon = b.weight(2.0), b.weight(1e-5)
    for _ in range(depth):
        y = b.node("Mul", b.node("MatMul", y, b.weight(b.random(16, 16))), b.weight(0.7))
        y = b.node("Add", y, b.weight(b.rng.standard_normal(16) * 0.1))
        centred = b.node("Sub", y, b.node("ReduceMean", y, axes=[-1]))
        var = b.node("ReduceMean", b.node("Pow", centred, two), axes=[-1])
        y = b.node("Div", centred, b.node("Sqrt", b.node("Add", var, epsilon)))
        y = b.node("Tanh", b.node("Mul", y, b.weight(b.rng.uniform(0.5, 1.5, 16) * GAIN)))
    return b.model("deep_layers", [4, 16], {y: (TensorProto.FLOAT, 2)})


def _scores(b: _Builder, classes: int, size: int = 8) -> str:
    """[1, classes, size * size]: each even class has a twin with neighbouring floats as weights."""
    y = "image"
    for width in (3, 8, 8):
        y = b.node("Relu", b.conv_bn(y, b.random(8, width, 3, 3)))
    w = b.random(classes // 2, 8, 1, 1).astype(np.float32)
    twin = np.nextafter(w, np.where(b.rng.integers(0, 2, w.shape), 9, -9).astype(np.float32))
    y = b.node("Conv", y, b.weight(np.stack([w, twin], 1).reshape(classes, 8, 1, 1)))
    y = b.node("BatchNormalization", y, *(b.weight(np.full(classes, v)) for v in (1.3, 0.1, 0.05, 0.7)))
    return b.node("Reshape", y, b.weight(np.array([1, classes, size * size])))


def ranking_twins() -> ModelProto:
    b = _Builder(3)
    y = _scores(b, 16)
    b.nodes.append(helper.make_node("TopK", [y, b.weight(np.array([5]))], ["best", "which"], axis=1, name="/topk"))
    largest = b.node("ArgMax", y, axis=1)
    outputs = {"best": (TensorProto.FLOAT, 3), "which": (TensorProto.INT64, 3), largest: (TensorProto.INT64, 3)}
    return b.model("ranking_twins", [1, 3, 8, 8], outputs)


def ranking_steps() -> ModelProto:
    """Scores rounded to a few distinct values, some of them from halfway between two, and then ranked."""
    b = _Builder(4)
    steps = b.weight(2.0**15)
    y = b.node("Mul", b.node("Sigmoid", _scores(b, 16, 32)), steps)
    y = b.node("Div", b.node("Round", y), steps)
    b.nodes.append(helper.make_node("TopK", [y, b.weight(np.array([200]))], ["best", "which"], axis=2, name="/topk"))
    return b.model("ranking_steps", [1, 3, 32, 32], {"best": (TensorProto.FLOAT, 3), "which": (TensorProto.INT64, 3)})


def suppressing_twins() -> ModelProto:
    """Overlapping boxes with nearly equal scores; and the larger of two twins."""
    b = _Builder(5)
    scores = b.node("Sigmoid", _scores(b, 4))
    y = b.node("Reshape", scores, b.weight(np.array([1, 2, 128])))
    corners = np.tile(b.rng.uniform(0, 1, (1, 64, 2)), (1, 2, 1))
    boxes = b.weight(np.concatenate([corners, corners + b.rng.uniform(0.2, 0.3, (1, 128, 2))], 2))
    limits = [b.weight(np.array([v])) for v in (10, 0.5, 0.1)]
    chosen = b.node("NonMaxSuppression", boxes, y, *limits)
    first, second = (b.node("Gather", scores, b.weight(np.array(k)), axis=1) for k in ([0, 2], [1, 3]))
    kept = b.node("NonZero", b.node("Greater", first, second))
    outputs = {chosen: (TensorProto.INT64, 2), kept: (TensorProto.INT64, 2)}
    return b.model("suppressing_twins", [1, 3, 8, 8], outputs)


def traps() -> list[ModelProto]:
    made = [deep_convolutions(), deep_layers(), ranking_twins(), ranking_steps(), suppressing_twins()]
    for model in made:
        onnx.checker.check_model(model, full_check=True)
    return made
