"""Proposed partitions: supported nodes, and their parts."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.errors import UsageError
from onnxopt.graph import Node, check_model, write_model
from onnxopt.pipeline.outlining import fuse_partition
from onnxopt.pipeline.partition import CapabilityPartitioner, OperatorSupport, any_chain, chain
from tests.pipeline.partitioning import X, assert_both_compute_the_same, model, operators, propose
from tests.runtime import outputs


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
    expected = outputs(write_model(m), {"x": X})["y"]
    fuse_partition(p, "exp")
    check_model(m)
    np.testing.assert_array_equal(outputs(write_model(m), {"x": X})["y"], expected)


def test_some_operators_may_be_a_part_alone() -> None:
    m = model("a = Relu (x) b = Sigmoid (a) c = Mul (b, b) d = Sigmoid (c) y = Relu (d)")
    alone = {"allow_single_node": False, "allowed_single_node_partition_ops": ["Mul"]}
    assert operators(propose(m, "Relu", "Mul")) == [["Relu"], ["Mul"], ["Relu"]]
    assert operators(propose(m, "Relu", "Mul", allow_single_node=False)) == []
    assert operators(propose(m, "Relu", "Mul", **alone)) == [["Mul"]]
