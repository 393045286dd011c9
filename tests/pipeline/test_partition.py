"""Partitioning: the parts are convex, maximal and together acyclic; split and fused models compute the same."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as rt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper, parser

from onnxopt.errors import UsageError
from onnxopt.graph import Model, Node, Value, check_model, read_model, write_model
from onnxopt.io import load
from onnxopt.io.external import external_tensors
from onnxopt.pipeline import convex
from onnxopt.pipeline.convex import convex_groups
from onnxopt.pipeline.fuse import fuse_partition
from onnxopt.pipeline.partition import CapabilityPartitioner, Partition
from onnxopt.pipeline.pattern_partition import (
    create_pattern_support,
    generate_pattern_op_partitions,
    pattern_partitions,
)
from onnxopt.pipeline.split import Part, outline, split
from onnxopt.pipeline.support import OperatorSupport, any_chain, chain
from onnxopt.rewriting import Match, op, rewrite, var
from tests.steps import lines_executed

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
SIGNATURE = "(float[2, 4] x) => (float[2, 4] y)"


def model(body: str, signature: str = SIGNATURE, weights: str = "", ir: int = 8) -> Model:
    return read_model(
        parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : 17]> g {signature} {weights} {{ {body} }}')
    )


def propose(m: Model, *ops: str, **options: Any) -> list[Partition]:
    return CapabilityPartitioner(m.graph, OperatorSupport(ops), **options).propose()


def operators(partitions: list[Partition]) -> list[list[str]]:
    return [[n.op for n in p.nodes] for p in partitions]


def session(proto: onnx.ModelProto) -> Any:
    options = rt.SessionOptions()
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return rt.InferenceSession(proto.SerializeToString(), options)


def run(proto: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    opened = session(proto)
    return dict(zip([o.name for o in opened.get_outputs()], opened.run(None, feeds)))


def run_parts(parts: list[Part], feeds: dict[str, Any]) -> dict[str, Any]:
    values = dict(feeds)
    for part in parts:
        onnx.checker.check_model(part.proto)
        given = run(part.proto, {name: values[name] for name in part.inputs})
        assert tuple(given) == part.outputs
        values |= given
    return values


def assert_both_compute_the_same(m: Model, partitions: list[Partition], feeds: dict[str, Any]) -> None:
    """Split, then fused: the outputs are those of the model, bit for bit."""
    expected = run(write_model(m), feeds)
    found = run_parts(split(m, partitions), feeds)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    for p in partitions:
        fuse_partition(p, "part")
    check_model(m)
    proto = write_model(m)
    onnx.checker.check_model(proto, full_check=True)
    check_model(read_model(onnx.ModelProto.FromString(proto.SerializeToString())))
    for name, value in run(proto, feeds).items():
        np.testing.assert_array_equal(value, expected[name])


# -- support -------------------------------------------------------------------------------------------------


def test_supports_combine() -> None:
    class FirstInput(OperatorSupport):
        def is_node_supported(self, node: Node) -> bool:
            return super().is_node_supported(node) and node.inputs[0] is not None and node.inputs[0].is_input

    m = model("a = Relu(x) b = Relu(a) y = Neg(b)")
    relu, b, neg = m.graph
    both = chain(FirstInput(["Relu", "Neg"]), lambda n: n.op != "Neg")
    assert [both.is_node_supported(n) for n in (relu, b, neg)] == [True, False, False]
    one = any_chain(OperatorSupport(["Neg"]), both)
    assert [one.is_node_supported(n) for n in (relu, b, neg)] == [True, False, True]
    assert operators(CapabilityPartitioner(m.graph, one).propose()) == [["Relu"], ["Neg"]]
    assert OperatorSupport(["ai.onnx::Relu"]).is_node_supported(relu)
    with pytest.raises(TypeError, match="not the string"):
        OperatorSupport("Relu")
    with pytest.raises(TypeError, match="is_node_supported"):
        chain(3)  # type: ignore[arg-type]


# -- proposing -----------------------------------------------------------------------------------------------


def test_an_unsupported_node_on_a_side_path_keeps_parts_apart() -> None:
    m = model("a = Relu(x) b = Sigmoid(a) y = Add(a, b)")
    assert operators(propose(m, "Relu", "Add")) == [["Relu"], ["Add"]]


def test_parts_of_different_stages_merge_where_nothing_lies_between() -> None:
    m = model("a = Relu(x) b = Sigmoid(x) y = Add(a, b)")
    assert operators(propose(m, "Relu", "Add")) == [["Relu", "Add"]]


def test_small_parts_and_parts_that_compute_nothing_are_dropped() -> None:
    m = model("a = Identity(x) b = Sigmoid(a) c = Relu(b) d = Identity(c) e = Sigmoid(d) f = Neg(e) y = Relu(f)")
    ops = ("Identity", "Relu", "Neg")
    assert operators(propose(m, *ops)) == [["Relu", "Identity"], ["Neg", "Relu"]]
    assert operators(propose(m, *ops, allow_single_node=False)) == [["Neg", "Relu"]]
    assert len(propose(m, *ops, non_compute_ops=())) == 3
    assert [p.id for p in propose(m, *ops)] == [0, 1]


def test_constants_are_in_no_part() -> None:
    m = model("k = Constant <value = float {2.0}> () a = Mul(x, k) b = Sigmoid(a) y = Mul(b, k)")
    partitions = propose(m, "Mul", "Constant", non_compute_ops=())
    assert operators(partitions) == [["Mul"], ["Mul"]]
    assert [v.name for v in partitions[1].inputs] == ["b"]
    assert [v.name for v in partitions[1].constants] == ["k"]
    assert [v.name for v in partitions[1].outputs] == ["y"]
    assert_both_compute_the_same(m, partitions, {"x": X})


IF = """
    c = Relu(x) s = ReduceSum <keepdims = 0> (c) b = Cast <to = 9> (s)
    z = If (b) <then_branch = t () => (t1) { t1 = %s(c) }, else_branch = e () => (e1) { e1 = Neg(c) }>
    y = Relu(z)
"""


def test_bodies_count_for_support_and_for_edges() -> None:
    m = model(IF % "Exp")
    assert operators(propose(m, "Relu", "If", "Neg")) == [["Relu"], ["Relu"]]
    assert operators(propose(m, "Relu", "If", "Neg", "Exp")) == [["Relu"], ["If", "Relu"]], "c is read by the If"
    assert operators(propose(m, "Relu", "ReduceSum", "If", "Neg", "Exp")) == [["Relu", "ReduceSum"], ["If", "Relu"]]
    partitions = propose(m, "Relu", "ReduceSum", "If", "Neg", "Exp")
    with pytest.raises(UsageError, match="reads outer values"):
        fuse_partition(partitions[1], "part")
    assert not m.functions, "declined with nothing changed"
    assert_both_compute_the_same(m, partitions[:1], {"x": X})


def test_bodies_can_be_partitioned_themselves() -> None:
    m = model(IF % "Exp")
    body = next(n for n in m.graph if n.op == "If").bodies["then_branch"]
    (p,) = CapabilityPartitioner(body, OperatorSupport(["Exp"])).propose()
    expected = run(write_model(m), {"x": X})["y"]
    fuse_partition(p, "exp")
    check_model(m)
    np.testing.assert_array_equal(run(write_model(m), {"x": X})["y"], expected)


def _quotient(predecessors: list[list[int]], group: list[int]) -> dict[int, set[int]]:
    after: dict[int, set[int]] = {g: set() for g in group}
    for n, before in enumerate(predecessors):
        for p in before:
            if group[p] != group[n]:
                after[group[p]].add(group[n])
    return after


def _reachable(after: dict[int, set[int]]) -> dict[int, set[int]]:
    """Everything behind each group; fails on a cycle."""
    found: dict[int, set[int]] = {}

    def visit(g: int, path: frozenset[int]) -> set[int]:
        assert g not in path, "a cycle"
        if g not in found:
            found[g] = set().union(*({s} | visit(s, path | {g}) for s in after[g]))
        return found[g]

    for g in after:
        visit(g, frozenset())
    return found


@st.composite
def dags(draw: st.DrawFn) -> tuple[list[list[int]], list[bool]]:
    count = draw(st.integers(1, 16))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = set(draw(st.lists(st.sampled_from(pairs), max_size=40))) if pairs else set()
    predecessors = [[a for a in range(b) if (a, b) in edges] for b in range(count)]
    return predecessors, draw(st.lists(st.booleans(), min_size=count, max_size=count))


@pytest.mark.parametrize("gap", [2, 1 << 32])  # 2: labels run out at once
@settings(max_examples=400, deadline=None)
@given(dag=dags())
def test_groups_are_acyclic_and_maximal(gap: int, dag: tuple[list[list[int]], list[bool]]) -> None:
    predecessors, supported = dag
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convex, "_GAP", gap)
        group = convex_groups(predecessors, supported)
    for n, own in enumerate(supported):
        assert own == supported[group[n]]
        assert own or group.count(group[n]) == 1
    after = _quotient(predecessors, group)
    behind = _reachable(after)
    for a in after:
        for b in after[a]:
            if supported[a] and supported[b]:
                assert any(b in behind[c] for c in after[a] - {b}), f"{a} and {b} could be merged"


@settings(max_examples=40, deadline=None)
@given(dag=dags(), allow_single_node=st.booleans())
def test_random_graphs_split_and_fuse(dag: tuple[list[list[int]], list[bool]], allow_single_node: bool) -> None:
    predecessors, supported = dag
    nodes = [
        helper.make_node(("Sum" if own else "Mean"), [f"v{p}" for p in before] or ["x"], [f"v{n}"])
        for n, (before, own) in enumerate(zip(predecessors, supported))
    ]
    outputs = [helper.make_tensor_value_info(f"v{n}", 1, [2, 4]) for n in {len(nodes) - 1, len(nodes) // 2}]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [2, 4])], outputs)
    m = read_model(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))
    partitions = [p for p in propose(m, "Sum", allow_single_node=allow_single_node) if p.outputs]
    assert all(n.op == "Sum" for p in partitions for n in p.nodes)
    assert_both_compute_the_same(m, partitions, {"x": X})


# -- time ----------------------------------------------------------------------------------------------------

COUNT = 4_000


def _chain(n: int) -> list[int]:
    return [n - 1]


def _ladder(n: int) -> list[int]:
    return [n - 1, max(0, n - 7)]


def _wide(n: int) -> list[int]:
    """140 branches that one node gathers."""
    return [max(0, n - 140)] if n < COUNT - 1 else list(range(n - 140, n))


def _nested_skips(n: int) -> list[int]:
    """Like a U-Net: each node of the second half also reads its mirror image."""
    return [n - 1] + ([COUNT - 1 - n] if n > COUNT // 2 else [])


SHAPES = {
    "chain": (_chain, lambda n: True),
    "alternating": (_chain, lambda n: n % 2 == 0),
    "ladder": (_ladder, lambda n: n % 3 > 0),
    "wide": (_wide, lambda n: (n + n // 140) % 2 == 0),
    "random wide": (_wide, lambda n: random.Random(n).random() < 0.6),
    "nested skips": (_nested_skips, lambda n: n % 4 != 1),
}


def _shape(name: str, count: int) -> Model:
    before, own = SHAPES[name]
    nodes = [
        helper.make_node("Sum" if own(n) else "Mean", [f"v{p}" for p in before(n)] if n else ["x"], [f"v{n}"])
        for n in range(count)
    ]
    info = [helper.make_tensor_value_info(v, 1, [2, 4]) for v in ("x", f"v{count - 1}")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_steps_per_node_stay_flat(name: str) -> None:
    """Ten times the nodes, ten times the work; `benchmarks/partition.py` says how long that takes."""
    small, large = _shape(name, COUNT // 10), _shape(name, COUNT)
    large_steps, small_steps = (lines_executed(partial(propose, m, "Sum")) for m in (large, small))
    assert large_steps / small_steps < 20, "a quadratic algorithm takes a hundred times as many"
    partitions, own = propose(large, "Sum"), SHAPES[name][1]
    assert sum(len(p) for p in partitions) == sum(own(n) for n in range(COUNT))
    assert name != "chain" or len(partitions) == 1


# -- patterns ------------------------------------------------------------------------------------------------


@rewrite(op.Relu(op.Neg(var("x"))))
def relu_of_neg(m: Match, x: Value) -> Value:
    """Relu(Neg(x)), for a backend that has it as one kernel."""
    return m.op.Relu(x)


def test_patterns_make_partitions_that_do_not_overlap() -> None:
    m = model("a = Neg(x) b = Relu(a) c = Neg(b) d = Relu(c) e = Exp(d) f = Add(d, e) y = Relu(f)")
    both = pattern_partitions(m.graph, [op.Neg(op.Relu(var("x"))), relu_of_neg])
    assert operators(both) == [["Relu", "Neg"]], "the earlier pattern wins, and leaves no Neg with its Relu"
    partitions = pattern_partitions(m.graph, [relu_of_neg, op.Add(var("x"), op.Exp(var("z")))])
    assert operators(partitions) == [["Neg", "Relu"], ["Neg", "Relu"], ["Exp", "Add"]]
    assert_both_compute_the_same(m, partitions, {"x": X})
    with pytest.raises(UsageError, match="results in operators"):
        pattern_partitions(m.graph, [var("x")])


def test_a_match_that_would_close_a_cycle_is_left_out() -> None:
    pattern = op.Add(op.Relu(var("x"), shared=True), var("z"))
    m = model("a = Relu(x) b = Sigmoid(a) y = Add(a, b)")
    assert pattern_partitions(m.graph, [pattern]) == []
    m = model("a = Relu(x) b = Sigmoid(x) c = Add(a, b) y = Mul(a, c)")
    partitions = pattern_partitions(m.graph, [pattern])
    assert operators(partitions) == [["Relu", "Add"]]
    assert_both_compute_the_same(m, partitions, {"x": X})
    # Alone each would do; fused both, each would wait for the other.
    m = model("a = Relu(x) b = Exp(x) c = Add(a, x) d = Sub(b, x) e = Add(c, b) f = Sub(d, a) y = Mul(e, f)")
    crossed = [op.Add(op.Add(op.Relu(var("x"), shared=True), var("y")), var("z"))]
    crossed += [op.Sub(op.Sub(op.Exp(var("x"), shared=True), var("y")), var("z"))]
    partitions = pattern_partitions(m.graph, crossed)
    assert operators(partitions) == [["Relu", "Add", "Add"]]
    assert_both_compute_the_same(m, partitions, {"x": X})


# -- splitting and fusing ------------------------------------------------------------------------------------


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
    monkeypatch.setattr("onnxopt.pipeline.split.submodel", None)
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
    for name, value in run(write_model(m), {"x": X}).items():
        np.testing.assert_array_equal(found[name], value)


def test_overridable_initializers_stay_overridable() -> None:
    m = model("a = Mul(x, w) y = Relu(a)", "(float[2, 4] x, float[1] w) => (float[2, 4] y)", "<float[1] w = {3}>")
    (part,) = split(m, propose(m, "Mul", "Relu"))
    assert part.inputs == ("x",)
    for feeds in ({"x": X}, {"x": X, "w": np.float32([-1])}):
        np.testing.assert_array_equal(run(part.proto, feeds)["y"], run(write_model(m), feeds)["y"])
    fuse_partition(propose(m, "Mul", "Relu")[0], "part")
    feeds = {"x": X, "w": np.float32([-1])}
    np.testing.assert_array_equal(run(write_model(m), feeds)["y"], np.maximum(-X, 0))


def test_parts_of_a_file_hold_their_data_and_no_more(tmp_path: Path) -> None:
    """External data comes into them, of Constant nodes too; functions that nothing calls there do not."""
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[2, 4] x) => (float[2, 4] y)
        { a = Mul(x, w) k = Constant <value = float[4] {0}> () b = Add(a, k) y = own.F(b) }
        <domain: "own", opset_import: ["" : 17]> F (a) => (b) { b = Relu(a) }
    """)
    for tensor in (proto.graph.initializer.add(), proto.graph.node[1].attribute[0].t):
        tensor.CopyFrom(numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, convert_attribute=True)
    m = load(tmp_path / "m.onnx")
    assert len(external_tensors(m.proto)) == 2
    parts = split(m, propose(m, "Mul"))
    assert not [t for p in parts for t in external_tensors(p.proto)]
    assert [len(p.proto.functions) for p in parts] == [0, 1]
    expected = np.maximum(X * np.arange(4, dtype=np.float32) + np.arange(4, dtype=np.float32), 0)
    np.testing.assert_array_equal(run_parts(parts, {"x": X})["y"], expected)


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


def test_functions_get_names_of_their_own() -> None:
    m = model("a = Relu(x) b = Exp(a) c = Relu(b) y = Identity(c)", ir=7)
    for p in propose(m, "Relu"):
        fuse_partition(p, "relu", "my.domain")
    assert [n.op for n in m.graph] == ["my.domain::relu", "Exp", "my.domain::relu_1", "Identity"]
    assert list(m.functions) == ["function my.domain::relu", "function my.domain::relu_1"]
    assert m.opsets["my.domain"] == 1
    proto = write_model(m)
    assert proto.ir_version == 8, "the first that has functions"
    fuse_partition(propose(m, "my.domain::relu", "Exp", "my.domain::relu_1")[0], "outer")
    assert [n.op for n in m.graph] == ["onnxopt.partition::outer", "Identity"], "functions may call functions"
    check_model(m)
    np.testing.assert_allclose(run(write_model(m), {"x": X})["y"], np.exp(np.maximum(X, 0)), rtol=1e-6)


ZOO = Path(__file__).parents[3] / "shared" / "zoo"


@pytest.mark.parametrize("name", ["ts/depthwise_bn", "ts/unet_transposed_dyn", "dynamo/resnet1d", "ts/ssd_nms"])
def test_real_models(name: str) -> None:
    path = ZOO / f"{name}.onnx"
    if not path.exists():
        pytest.skip("the zoo is not here")
    from onnxopt.verification.cases import Recipe
    from onnxopt.verification.inputs import InputMaker
    from onnxopt.verification.plan import make_plan

    m = read_model(onnx.load(path))
    plan = make_plan(m.proto)
    feeds = InputMaker(plan, {}, 0).fill(Recipe("case"), next(plan.size_choices(), {})).feeds
    opened = session(m.proto)
    try:
        opened.run(None, feeds)
    except Exception:
        feeds = InputMaker(plan, {}, 0).fill(Recipe("case"), dict.fromkeys(plan.symbols, 32)).feeds
    ops = sorted({n.op for n in m.graph})
    assert_both_compute_the_same(m, propose(m, *ops[::2]), feeds)


def test_some_operators_may_be_a_part_alone() -> None:
    m = model("a = Relu (x) b = Sigmoid (a) c = Mul (b, b) d = Sigmoid (c) y = Relu (d)")
    alone = {"allow_single_node": False, "allowed_single_node_partition_ops": ["Mul"]}
    assert operators(propose(m, "Relu", "Mul")) == [["Relu"], ["Mul"], ["Relu"]]
    assert operators(propose(m, "Relu", "Mul", allow_single_node=False)) == []
    assert operators(propose(m, "Relu", "Mul", **alone)) == [["Mul"]]


def test_patterns_are_a_support() -> None:
    graph = model("a = Neg (x) b = Relu (a) c = Mul (b, b) d = Relu (c) y = Mul (d, d)").graph
    pattern, mul = "Relu(Neg(x))", OperatorSupport(["Mul"])
    assert operators(CapabilityPartitioner(graph, create_pattern_support([pattern])).propose()) == [["Neg", "Relu"]]
    both = generate_pattern_op_partitions(graph, [pattern], mul)
    assert operators(both) == [["Neg", "Relu", "Mul"], ["Mul"]]
    assert CapabilityPartitioner(graph, any_chain(create_pattern_support([pattern]), mul)).propose() == both
    assert generate_pattern_op_partitions(graph, [pattern], mul, allow_single_node=False) == both[:1]


def test_a_pattern_s_support_follows_the_graph() -> None:
    neg, relu, _ = model("a = Neg (x) b = Relu (a) y = Abs (b)").graph
    support = create_pattern_support(["Relu(Neg(x))"])
    assert support.is_node_supported(relu)
    neg.op = "Exp"
    assert not support.is_node_supported(relu)
