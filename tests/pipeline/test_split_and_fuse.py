"""Partitions as models or functions: contents, refusals, equal results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.errors import UsageError
from onnxopt.graph import check_model, read_model, write_model
from onnxopt.io import load
from onnxopt.io.external import external_tensors
from onnxopt.pipeline.outlining import fuse_partition, outline, split
from onnxopt.pipeline.partition import Partition
from tests.pipeline.partitioning import X, assert_both_compute_the_same, model, propose, run_parts
from tests.runtime import outputs, plain_session


def test_a_split_has_as_few_parts_as_there_can_be() -> None:
    m = model("a = Relu(x) b = Exp(a) c = Neg(x) d = Exp(c) e = Sigmoid(b) f = Tanh(d) g = Relu(e) y = Add(f, g)")
    partitions = propose(m, "Exp")
    parts = split(m, partitions)
    assert [p.partition for p in parts] == [None, 0, 1, None]
    assert [p.name for p in parts] == ["part_000", "part_001", "part_002", "part_003"]
    assert_both_compute_the_same(m, partitions, {"x": X})


def test_an_outline_says_what_the_parts_are_without_making_them(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model("a = Relu(x) b = Exp(a) c = Neg(x) d = Exp(c) e = Sigmoid(b) f = Tanh(d) g = Relu(e) y = Add(f, g)")
    partitions = propose(m, "Exp")
    parts = split(m, partitions)
    monkeypatch.setattr("onnxopt.pipeline.outlining.submodel", None)
    found = outline(m, partitions)
    assert [vars(o) for o in found] == [{k: v for k, v in vars(p).items() if k != "proto"} for p in parts]
    assert [(p.inputs, p.outputs) for p in parts] == [
        (tuple(i.name for i in p.proto.graph.input), tuple(o.name for o in p.proto.graph.output)) for p in parts
    ]


def test_outputs_that_no_node_computes() -> None:
    m = model(
        "k = Constant <value = float[2] {1.0, 2.0}> () y = Relu(x)",
        "(float[2, 4] x) => (float[2, 4] y, float[2] k, float[3] w, float[2, 4] x)",
        "<float[3] w = {1, 2, 3}>",
        ir=10,
    )
    parts = split(m, propose(m, "Relu"))
    found = run_parts(parts, {"x": X})
    for name, value in outputs(write_model(m), {"x": X}).items():
        np.testing.assert_array_equal(found[name], value)


def test_overridable_initializers_stay_overridable() -> None:
    m = model("a = Mul(x, w) y = Relu(a)", "(float[2, 4] x, float[1] w) => (float[2, 4] y)", "<float[1] w = {3}>")
    (part,) = split(m, propose(m, "Mul", "Relu"))
    assert part.inputs == ("x",)
    for feeds in ({"x": X}, {"x": X, "w": np.float32([-1])}):
        np.testing.assert_array_equal(outputs(part.proto, feeds)["y"], outputs(write_model(m), feeds)["y"])
    fuse_partition(propose(m, "Mul", "Relu")[0], "part")
    feeds = {"x": X, "w": np.float32([-1])}
    np.testing.assert_array_equal(outputs(write_model(m), feeds)["y"], np.maximum(-X, 0))


def test_parts_of_a_file_hold_their_data_and_no_more(tmp_path: Path) -> None:
    """Weights beside the model come into its parts, those of Constant nodes too; functions without calls do not."""
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[2, 512] x) => (float[2, 512] y)
        { a = Mul(x, w) k = Constant <value = float[4] {0}> () b = Add(a, k) y = own.F(b) }
        <domain: "own", opset_import: ["" : 17]> F (a) => (b) { b = Relu(a) }
    """)
    weights = np.arange(512, dtype=np.float32)
    for tensor in (proto.graph.initializer.add(), proto.graph.node[1].attribute[0].t):
        tensor.CopyFrom(numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, convert_attribute=True)
    m = load(tmp_path / "m.onnx")
    assert [t.name for t in external_tensors(m.proto)] == ["w", "w"]
    parts = split(m, propose(m, "Mul"))
    assert not [t for p in parts for t in external_tensors(p.proto)]
    assert [len(p.proto.functions) for p in parts] == [0, 1]
    x = np.random.default_rng(0).standard_normal((2, 512)).astype(np.float32)
    np.testing.assert_array_equal(run_parts(parts, {"x": x})["y"], np.maximum(x * weights + weights, 0))


def test_partitions_that_cannot_be_split() -> None:
    m = model("a = Relu(x) b = Exp(a) c = Neg(x) d = Exp(c) e = Add(b, c) f = Add(a, d) y = Mul(e, f)")
    relu, exp, neg, exp2, add, *_ = m.graph
    with pytest.raises(UsageError, match="two partitions"):
        split(m, [Partition(0, (relu, exp)), Partition(1, (exp,))])
    with pytest.raises(UsageError, match="in a circle, among them 0"):
        split(m, [Partition(0, (relu, exp2)), Partition(1, (neg, exp))])
    with pytest.raises(UsageError, match="not in the main graph"):
        split(m, [Partition(0, tuple(model("y = Relu(x)").graph))])
    with pytest.raises(UsageError, match="not convex"):
        fuse_partition(Partition(0, (relu, add)), "part")
    assert not m.functions, "declined with nothing changed"
    fuse_partition(Partition(0, (relu, exp2)), "part")
    with pytest.raises(UsageError, match="not convex"):
        fuse_partition(Partition(1, (neg, exp)), "part")
    check_model(m)


def test_fusing_moves_what_depends_on_the_partition() -> None:
    m = model("a = Relu(x) b = Exp(a) c = Neg(x) d = Sigmoid(b) e = Relu(c) y = Sum(a, d, e)")
    relu, exp, neg, sigmoid, relu2, total = m.graph
    call = fuse_partition(Partition(0, (relu, relu2)), "two")
    assert list(m.graph) == [neg, call, exp, sigmoid, total]
    assert [v.name for v in call.inputs if v] == ["x", "c"]
    assert [v.name for v in call.outputs if v] == ["a", "e"]
    check_model(m)
    with pytest.raises(UsageError, match="left the graph"):
        fuse_partition(Partition(0, (relu, relu2)), "two")


def test_equal_parts_call_one_function_and_others_get_names_of_their_own() -> None:
    body = "a = Mul(x, w) b = Exp(a) c = Mul(b, v) d = Exp(c) e = Mul(d, d) y = Identity(e)"
    m = model(body, weights="<float[1] w = {0.25}, float[1] v = {0.5}>", ir=7)
    expected = outputs(write_model(m), {"x": X})["y"]
    for p in propose(m, "Mul"):
        fuse_partition(p, "mul", "my.domain")
    called = ["my.domain::mul", "Exp", "my.domain::mul", "Exp", "my.domain::mul_1"]
    assert [n.op for n in m.graph] == [*called, "Identity"]
    assert list(m.functions) == ["function my.domain::mul", "function my.domain::mul_1"]
    assert m.opsets["my.domain"] == 1
    proto = write_model(m)
    assert proto.ir_version == 8, "the first that has functions"
    fuse_partition(propose(m, *called)[0], "outer")
    assert [n.op for n in m.graph] == ["onnxopt.partition::outer", "Identity"], "functions may call functions"
    check_model(m)
    np.testing.assert_array_equal(outputs(write_model(m), {"x": X})["y"], expected)


def test_a_function_never_calls_itself() -> None:
    """Nor is a function called again that has other attributes, or another version of the operator."""
    m = read_model(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[2, 4] x) => (float[2, 4] y)
        { a = own.same (x) b = own.other (a) c = own.old (b) y = LeakyRelu <alpha = 0.5> (c) }
        <domain: "own", opset_import: ["" : 17]> same (x) => (y) { y = LeakyRelu <alpha = 0.5> (x) }
        <domain: "own", opset_import: ["" : 17]> other (x) => (y) { y = LeakyRelu <alpha = 0.25> (x) }
        <domain: "own", opset_import: ["" : 15]> old (x) => (y) { y = LeakyRelu <alpha = 0.5> (x) }
    """)
    )
    expected = outputs(write_model(m), {"x": X})["y"]
    calls = [fuse_partition(Partition(0, (list(g)[-1],)), "same", "own").op for g in (*m.functions.values(), m.graph)]
    assert calls == ["own::same_1", "own::same_2", "own::same_3", "own::same_1"]
    check_model(m)
    np.testing.assert_array_equal(outputs(write_model(m), {"x": X})["y"], expected)


ZOO = Path(__file__).parents[3] / "shared" / "zoo"


@pytest.mark.parametrize("name", ["ts/depthwise_bn", "ts/unet_transposed_dyn", "dynamo/resnet1d", "ts/ssd_nms"])
def test_real_models(name: str) -> None:
    path = ZOO / f"{name}.onnx"
    if not path.exists():
        pytest.skip("the zoo is not here")
    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.planning import make_plan
    from onnxopt.verification.inputs.values import InputMaker

    m = read_model(onnx.load(path))
    plan = make_plan(m.proto)
    feeds = InputMaker(plan, {}, 0).fill(Recipe("case"), next(plan.size_choices(), {})).feeds
    opened = plain_session(m.proto)
    try:
        opened.run(None, feeds)
    except Exception:
        feeds = InputMaker(plan, {}, 0).fill(Recipe("case"), dict.fromkeys(plan.symbols, 32)).feeds
    ops = sorted({n.op for n in m.graph})
    assert_both_compute_the_same(m, propose(m, *ops[::2]), feeds)
