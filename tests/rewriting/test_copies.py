"""A constant with many readers is not copied for each: a small file never becomes a large one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxopt import optimize
from onnxopt.passes.basics import constant_folding

MANY, FEW = 9, 8


def copies(nodes: str, readers: int, size: int = 512) -> onnx.ModelProto:
    """`nodes`, so many times, each with an input `x`, a result `y` and a number `k` of its own, and one weight `w`."""
    graph = onnx.GraphProto(name="g")
    for i in range(readers):
        body = onnx.parser.parse_graph(f"b (float[N, {size}] x) => (float[N, M] y) {{ {nodes} }}")
        own = {n for node in body.node for n in (*node.input, *node.output)} - {"w"}
        for node in body.node:
            node.input[:] = [f"{n}{i}" if n in own else n for n in node.input]
            node.output[:] = [f"{n}{i}" for n in node.output]
        graph.node.extend(body.node)
        graph.input.append(helper.make_tensor_value_info(f"x{i}", onnx.TensorProto.FLOAT, ["N", size]))
        graph.output.append(helper.make_tensor_value_info(f"y{i}", onnx.TensorProto.FLOAT, None))
        graph.initializer.append(numpy_helper.from_array(np.float32(i + 2), f"k{i}"))
    weight = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "nodes",
    [
        "p = Gemm (x, w) y = Mul (p, k)",
        "p = Mul (x, w) y = Mul (p, k)",
        "p = Add (x, w) q = Add (p, k) y = Identity (q)",
        "p = Max (x, w) y = Max (p, k)",
        "p = Mul (x, w) q = Neg (p) y = Sigmoid (q)",
    ],
    ids=["weights", "factors", "terms", "bounds", "signs"],
)
def test_a_small_file_stays_small(nodes: str) -> None:
    model = copies(nodes, MANY)
    assert optimize(model, level=3, verify=False).model.ByteSize() < 2 * model.ByteSize()


def test_few_readers_get_their_own() -> None:
    model = copies("p = Gemm (x, w) y = Mul (p, k)", FEW)
    assert [n.op_type for n in optimize(model, verify=False).model.graph.node] == ["Gemm"] * FEW


def test_small_constants_are_copied_for_all() -> None:
    model = copies("p = Gemm (x, w) y = Mul (p, k)", 3 * MANY, 64)
    assert [n.op_type for n in optimize(model, verify=False).model.graph.node] == ["Gemm"] * 3 * MANY


def with_weights(model: onnx.ModelProto, size: int, readers: int) -> onnx.ModelProto:
    """Weights `v` of their own for as many readers, and `w` is one row that all of them share."""
    del model.graph.initializer[-1]
    arrays = {f"v{i}": np.full((size, size), i + 1, np.float32) for i in range(readers)}
    arrays["w"] = np.linspace(1, 2, size, dtype=np.float32).reshape(1, size)
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    return model


def test_weights_of_their_own_make_room_for_what_they_become() -> None:
    model = with_weights(copies("p = Gemm (x, v) y = Mul (p, w)", MANY), 512, MANY)
    result = optimize(model, verify=False).model
    assert [n.op_type for n in result.graph.node] == ["Gemm"] * MANY
    assert result.ByteSize() <= model.ByteSize()


def test_weights_that_something_else_reads_make_no_room() -> None:
    nodes = "p = Gemm (x, v) s = ReduceMax <keepdims = 0> (v) q = Mul (p, w) y = Add (q, s)"
    model = with_weights(copies(nodes, MANY), 512, MANY)
    result = optimize(model, pipeline="conv-add-folding", verify=False).model
    assert sum(n.op_type == "Mul" for n in result.graph.node) == MANY


def test_folds_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_folding, "_MAX_GROWTH", 1 << 20)
    model = copies("p = Mul (w, k) y = Add (x, p)", MANY, 256)
    result = optimize(model, level=1, config={"constant-folding.max_bytes": 1 << 19}, verify=False)
    assert sum(n.op_type == "Mul" for n in result.model.graph.node) == MANY - 4
