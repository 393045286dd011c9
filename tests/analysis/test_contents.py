"""Equal constants are found, each hashed once; incomparable constants equal themselves only."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.analysis.constants import Contents
from onnxopt.graph import Model, read_model
from onnxopt.pipeline import PassContext, get_pass


def equal(model: Model, contents: Contents | None = None) -> dict[str, str]:
    """The initializers that have an equal before them, with that."""
    contents = contents or Contents()
    found = {v.name: contents.first_like(v).name for v in model.graph.initializers.values()}
    return {name: first for name, first in found.items() if name != first}


def test_equal_are_type_dims_and_bytes() -> None:
    model = read_model(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y)'
            "<float[1] a = {1}, float[1] b = {2}, float[1] c = {1}, float d = {1}, float[1, 1] e = {1},"
            " int32[1] f = {1065353216}, float[0] g = {}, float[0] h = {}, string[1] i = {'a'}, string[1] j = {'a'},"
            " bool k = {1}, bool l = {1}, float16[1] m = {1}, bfloat16[1] n = {1}, bfloat16[1] o = {1},"
            " float[1] p = {2}> { y = Identity (x) }".replace("'", '"')
        )
    )
    assert equal(model) == {"c": "a", "h": "g", "l": "k", "o": "n", "p": "b"}
    assert equal(model, Contents(max_bytes=3)) == {"h": "g", "l": "k", "o": "n"}


def test_data_outside_the_file_is_not_read() -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y)'
        "<float[1] a = {1}, float[1] b = {1}> { y = Add (x, a) }"
    )
    for tensor in proto.graph.initializer:
        tensor.ClearField("float_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="nowhere")
    assert equal(read_model(proto)) == {}
    tensor = proto.graph.initializer[0]
    function = helper.make_function(
        "local", "f", [], ["y"], [helper.make_node("Constant", [], ["y"], value=tensor)], [helper.make_opsetid("", 17)]
    )
    proto.functions.append(function)
    model = read_model(proto)
    (constant,) = next(iter(model.functions.values()))
    assert Contents().first_like(constant.output) is constant.output


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is hashed."""
    found: list[int] = []
    sha256 = hashlib.sha256

    def counting(data: Any) -> Any:
        found.append(len(data))
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", counting)
    return found


@pytest.mark.parametrize(("size", "times"), [(128, 0), (8192, 100)])
def test_what_is_large_is_hashed_once_and_only_where_another_is_of_its_kind(
    hashed: list[int], size: int, times: int
) -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [size])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [size])
    arrays = [np.full(size, i // 2, np.float32) for i in range(100)]
    weights = [numpy_helper.from_array(a, f"w{i}") for i, a in enumerate([*arrays, np.float32(1)])]
    nodes = [helper.make_node("Add", ["x" if i == 0 else f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(101)]
    nodes.append(helper.make_node("Identity", ["v101"], ["y"]))
    model = read_model(
        helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)])
    )
    for _ in range(2):
        get_pass("common-subexpressions")()(model)
        get_pass("deduplicate-constants")()(model)
    assert len(model.graph.initializers) == 51
    assert hashed == [4 * size] * times


def test_constants_are_looked_into_only_where_nodes_read_the_same() -> None:
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(np.full(4, 1, np.float32), f"w{i}") for i in range(4)]
    reads = (("x", "w0", "a"), ("w1", "x", "b"), ("a", "w2", "c"), ("b", "c", "d"), ("d", "w3", "y"))
    nodes = [helper.make_node("Add", names[:2], names[2:]) for names in reads]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    values = dict(model.graph.initializers)
    get_pass("common-subexpressions")()(model)
    assert model.node_count() == 4, "x + w0 is w1 + x"
    assert [v._array is not None for v in values.values()] == [True, False, False, False], "w1 is read no more"


def test_what_layers_turn_alike_is_computed_once_and_not_hashed(hashed: list[int]) -> None:
    perms = [[2, 1, 0], [2, 1, 0], [0, 2, 1], [2, 1, 0], [0, 2, 1]]
    w = np.arange(32**3, dtype=np.float32).reshape(32, 32, 32)
    nodes = [helper.make_node("Transpose", ["w"], [f"t{i}"], perm=perm) for i, perm in enumerate(perms)]
    nodes += [helper.make_node("Add", ["x" if i == 0 else f"v{i}", f"t{i}"], [f"v{i + 1}"]) for i in range(5)]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, w.shape) for name in ("x", "v5")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    with PassContext(opt_level=1):  # above, a weight is not stored in two layouts
        get_pass("constant-folding")()(model)
    turned = [model.graph.initializers[f"t{i}"] for i in range(5)]
    assert all(np.array_equal(v.array, w.transpose(perm)) for v, perm in zip(turned, perms))
    assert [turned.index(next(v for v in turned if v.array is t.array)) for t in turned] == [0, 0, 2, 0, 2]
    assert equal(model) == {"t0": "t3", "t1": "t3", "t2": "t4"}
    assert hashed == []
    turned[3].array = w  # is no longer what the others hold
    assert equal(model) == {"t3": "w", "t0": "t1", "t2": "t4"}
