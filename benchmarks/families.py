"""Models of any length, a family for each way in which a graph can be large: long, wide, deep, of one kind.

Each function takes the number of nodes (or values, functions, bodies) and returns a model that onnxruntime runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper

Family = Callable[[int], ModelProto]
CHANNELS = 4


class Builder:
    """A graph that grows node by node, by protobuf's own `add`: a million nodes stay affordable."""

    def __init__(self, name: str) -> None:
        self.graph = GraphProto(name=name)
        self.opset = [helper.make_opsetid("", 17)]
        self.functions: list[onnx.FunctionProto] = []

    def node(self, op: str, inputs: Iterable[str], output: str | Sequence[str], **attributes: object) -> str:
        outputs = [output] if isinstance(output, str) else output
        node = self.graph.node.add(op_type=op, input=inputs, output=outputs)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        return outputs[0]

    def constant(self, name: str, data: object, dtype: type = np.float32) -> str:
        array = np.asarray(data, dtype)
        kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.INT64
        self.graph.initializer.add(name=name, data_type=kind, dims=array.shape, raw_data=array.tobytes())
        return name

    def input(self, name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> str:
        self.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> None:
        self.graph.output.append(helper.make_tensor_value_info(name, kind, shape or None))

    def model(self) -> ModelProto:
        return helper.make_model(self.graph, opset_imports=self.opset, ir_version=8, functions=self.functions)


def chain(nodes: int) -> ModelProto:
    """Conv(1x1, 4 channels), BatchNormalization, Relu, Identity, again and again; every weight is different."""
    b, rng = Builder("chain"), np.random.default_rng(0)
    x = b.input("x", 1, CHANNELS, 2, 2)
    count = max(nodes // 4, 1)
    for i in range(count):
        w = b.constant(f"w{i}", rng.standard_normal((CHANNELS, CHANNELS, 1, 1), np.float32))
        rows = rng.uniform(0.5, 1.5, (4, CHANNELS)).astype(np.float32)
        names = [b.constant(f"{kind}{i}", row) for kind, row in zip(("scale", "shift", "mean", "var"), rows)]
        x = b.node("Conv", [x, w], f"conv{i}")
        x = b.node("BatchNormalization", [x, *names], f"bn{i}")
        x = b.node("Relu", [x], f"relu{i}")
        x = b.node("Identity", [x], "y" if i == count - 1 else f"identity{i}")
    b.output("y", 1, CHANNELS, 2, 2)
    return b.model()


def adds(nodes: int) -> ModelProto:
    """A chain of Adds of constants, which become one."""
    b = Builder("adds")
    x = b.input("x", 4)
    for i in range(nodes):
        x = b.node("Add", [x, b.constant(f"c{i}", [i % 7, 1, 2, 3])], f"add{i}")
    b.output(x, 4)
    return b.model()


def readers(nodes: int) -> ModelProto:
    """One value read by all nodes: Mul by constants, further operators, and a sum at the end."""
    b = Builder("readers")
    x = b.node("Sqrt", [b.input("x", 4)], "root")
    ends = []
    for i in range(nodes // 2):
        y = b.node("Mul", [x, b.constant(f"c{i}", [i + 1, 1, 2, 3])], f"mul{i}")
        ends.append(b.node("Neg" if i % 2 else "Identity", [y], f"end{i}"))
    b.node("Sum", ends, "y")
    b.output("y", 4)
    return b.model()


def functions(nodes: int) -> ModelProto:
    """Functions of two nodes each that nothing calls, but for the first."""
    b = Builder("functions")
    b.opset.append(helper.make_opsetid("local", 1))
    for i in range(max(nodes // 2, 1)):
        f = onnx.FunctionProto(name=f"f{i}", domain="local", input=["a"], output=["b"])
        f.opset_import.extend(b.opset[:1])
        f.node.add(op_type="Relu", input=["a"], output=["t"])
        f.node.add(op_type="Neg", input=["t"], output=["b"])
        b.functions.append(f)
    b.graph.node.add(op_type="f0", domain="local", input=[b.input("x", 4)], output=["y"])
    b.output("y", 4)
    return b.model()


def siblings(nodes: int) -> ModelProto:
    """Ifs side by side, three nodes each with bodies that read outer values."""
    b = Builder("siblings")
    x, c = b.input("x", 4), b.input("c", kind=TensorProto.BOOL)
    for i in range(max(nodes // 3, 1)):
        bodies = {}
        for branch, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
            body = GraphProto(name=f"{branch}{i}")
            body.node.add(op_type=op, input=[x], output=[f"{op}{i}"])
            body.output.append(helper.make_tensor_value_info(f"{op}{i}", TensorProto.FLOAT, [4]))
            bodies[branch] = body
        x = b.node("If", [c], f"if{i}", **bodies)
    b.output(x, 4)
    return b.model()


def residual(nodes: int) -> ModelProto:
    """Blocks of Conv, Relu, Conv, Add around what came in, and a Relu."""
    b, rng = Builder("residual"), np.random.default_rng(0)
    x = b.input("x", 1, CHANNELS, 2, 2)
    for i in range(max(nodes // 5, 1)):
        w, v = rng.standard_normal((2, CHANNELS, CHANNELS, 1, 1), np.float32) / CHANNELS
        y = b.node("Relu", [b.node("Conv", [x, b.constant(f"w{i}", w)], f"first{i}")], f"relu{i}")
        y = b.node("Conv", [y, b.constant(f"v{i}", v)], f"second{i}")
        x = b.node("Relu", [b.node("Add", [y, x], f"add{i}")], f"block{i}")
    b.output(x, 1, CHANNELS, 2, 2)
    return b.model()


def transformer(nodes: int) -> ModelProto:
    """Layers of attention and a feed-forward part as exporters write them, of 32 nodes."""
    b, rng = Builder("transformer"), np.random.default_rng(0)
    size, heads = 8, 2
    x = b.input("x", "batch", "length", size)
    b.constant("two", 2.0)
    b.constant("epsilon", 1e-5)
    b.constant("half", 0.5)
    b.constant("one", 1.0)
    b.constant("sqrt2", 2.0**0.5)
    b.constant("root", (size / heads) ** 0.5)
    b.constant("heads", [0, 0, heads, size // heads], np.int64)
    b.constant("flat", [0, 0, size], np.int64)

    def weight(name: str, *shape: int) -> str:
        return b.constant(name, rng.standard_normal(shape, np.float32) / size)

    for i in range(max(nodes // 32, 1)):
        p = f"layer{i}."
        mean = b.node("ReduceMean", [x], p + "mean", axes=[-1])
        centred = b.node("Sub", [x, mean], p + "centred")
        variance = b.node("ReduceMean", [b.node("Pow", [centred, "two"], p + "square")], p + "variance", axes=[-1])
        deviation = b.node("Sqrt", [b.node("Add", [variance, "epsilon"], p + "safe")], p + "deviation")
        y = b.node("Div", [centred, deviation], p + "normal")
        y = b.node("Mul", [y, weight(p + "gamma", size)], p + "scaled")
        y = b.node("Add", [y, weight(p + "beta", size)], p + "shifted")
        parts = []
        for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            z = b.node("MatMul", [y, weight(p + part + ".w", size, size)], p + part + ".product")
            z = b.node("Add", [z, weight(p + part + ".b", size)], p + part + ".sum")
            z = b.node("Reshape", [z, "heads"], p + part + ".heads")
            parts.append(b.node("Transpose", [z], p + part, perm=order))
        scores = b.node("Div", [b.node("MatMul", parts[:2], p + "scores"), "root"], p + "scaled_scores")
        z = b.node("MatMul", [b.node("Softmax", [scores], p + "weights", axis=-1), parts[2]], p + "context")
        z = b.node("Reshape", [b.node("Transpose", [z], p + "back", perm=[0, 2, 1, 3]), "flat"], p + "joined")
        z = b.node("MatMul", [z, weight(p + "out.w", size, size)], p + "out")
        x = b.node("Add", [x, z], p + "residual")
        z = b.node("MatMul", [x, weight(p + "up.w", size, size)], p + "up")
        z = b.node("Relu", [z], p + "relu")
        z = b.node("MatMul", [z, weight(p + "down.w", size, size)], p + "down")
        x = b.node("Add", [x, z], p + "layer")
    b.output(x, "batch", "length", size)
    return b.model()


def shapes(nodes: int) -> ModelProto:
    """Shape, Gather, Concat, Reshape, Relu: sizes of earlier values, queried again and again."""
    b = Builder("shapes")
    x = b.input("x", "batch", 4)
    zero, rest = b.constant("zero", [0], np.int64), b.constant("rest", [-1], np.int64)
    for i in range(max(nodes // 5, 1)):
        batch = b.node("Gather", [b.node("Shape", [x], f"shape{i}"), zero], f"batch{i}")
        sizes = b.node("Concat", [batch, rest], f"sizes{i}", axis=0)
        x = b.node("Relu" if i % 2 else "Neg", [b.node("Reshape", [x, sizes], f"reshape{i}")], f"y{i}")
    b.output(x, "batch", 4)
    return b.model()


def layouts(nodes: int) -> ModelProto:
    """Transpose and Reshape in turn, without inverse pairs."""
    b = Builder("layouts")
    x = b.input("x", 2, 3, 4)
    shapes_ = [b.constant(f"to{k}", s, np.int64) for k, s in enumerate(([2, 3, 4], [4, 2, 3], [3, 4, 2]))]
    for i in range(nodes // 2):
        x = b.node("Reshape", [b.node("Transpose", [x], f"t{i}", perm=[1, 2, 0]), shapes_[i % 3]], f"r{i}")
    b.output(x, 4, 2, 3)
    b.graph.output[0].type.tensor_type.ClearField("shape")
    return b.model()


def casts(nodes: int) -> ModelProto:
    """Casts to half and back: each rounds, so none may go but the repetitions."""
    b = Builder("casts")
    x = b.input("x", 4)
    for i in range(nodes):
        x = b.node("Cast", [x], f"cast{i}", to=(TensorProto.FLOAT16, TensorProto.FLOAT)[i % 2])
    b.output(b.node("Cast", [x], "y", to=TensorProto.FLOAT), 4)
    return b.model()


def parts(nodes: int) -> ModelProto:
    """One Split into as many parts as nodes, a Relu for each, one Concat."""
    b = Builder("parts")
    sizes = b.constant("sizes", np.ones(nodes), np.int64)
    pieces = [f"part{i}" for i in range(nodes)]
    b.node("Split", [b.input("x", nodes), sizes], pieces, axis=0)
    b.node("Concat", [b.node("Relu" if i % 2 else "Abs", [p], f"out{i}") for i, p in enumerate(pieces)], "y", axis=0)
    b.output("y", nodes)
    return b.model()


def constants(nodes: int) -> ModelProto:
    """Half as many Adds as weights, of which half hold the same; nothing merges, each sum is Tanh'ed."""
    b = Builder("constants")
    x = b.input("x", 4)
    for i in range(nodes // 2):
        c = b.constant(f"c{i}", [i % 2 and i, 1, 2, 3])
        x = b.node("Tanh", [b.node("Add", [x, c], f"add{i}")], f"y{i}")
    b.output(x, 4)
    return b.model()


def interfaces(nodes: int) -> ModelProto:
    """An input and an output for every node."""
    b = Builder("interfaces")
    for i in range(nodes):
        b.output(b.node("Relu" if i % 2 else "Identity", [b.input(f"x{i}", 4)], f"y{i}"), 4)
    return b.model()


FAMILIES: dict[str, Family] = {
    f.__name__: f
    for f in (
        chain,
        adds,
        readers,
        functions,
        siblings,
        residual,
        transformer,
        shapes,
        layouts,
        casts,
        parts,
        constants,
        interfaces,
    )
}
