"""Functions made by a pass are not its own input; malformed parts are refused."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from onnxopt import (
    CapabilityPartitioner,
    Fixpoint,
    OperatorSupport,
    SubgraphMatcher,
    fuse_partition,
    generate_pattern_op_partitions,
    graph_pass,
    pattern_partitions,
    read_model,
    replace_pattern,
    write_model,
)
from onnxopt.errors import UsageError


def test_a_graph_pass_does_not_enter_what_it_made(model: Any) -> None:
    @graph_pass
    def fuse_pairs(graph: Any, ctx: Any) -> None:
        """Relu and Neg become a call."""
        for part in pattern_partitions(graph, ["Neg(Relu(x))"]):
            if ctx.spend("pairs", at=part.nodes[-1]):
                fuse_partition(part, "pair", domain="acme")

    @graph_pass
    def count_nodes(graph: Any, ctx: Any) -> None:
        """Another sees all of it."""
        ctx.count("nodes", len(graph))

    m = model()
    report = Fixpoint([fuse_pairs, count_nodes])(m)
    assert (report.of("fuse-pairs").hits, [*m.functions]) == (1, ["function acme::pair"])
    assert count_nodes(m).of("count-nodes").hits == 4
    again = read_model(write_model(m))
    fuse_pairs(again)
    assert (again.version, [*again.functions]) == (0, ["function acme::pair"]), "nor in another run"
    onnx.checker.check_model(write_model(again))


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (lambda m: CapabilityPartitioner(m, OperatorSupport(["Relu"])), UsageError, "takes a graph, not a Model"),
        (lambda m: CapabilityPartitioner(m.graph, OperatorSupport), TypeError, "OperatorSupport is a class"),
        (lambda m: CapabilityPartitioner(m.graph, FxSupport()), TypeError, "is_node_supported is called with one node"),
        (lambda m: CapabilityPartitioner(m.graph, lambda: True), TypeError, "is called with one node"),
        (lambda m: pattern_partitions(m, ["Relu(x)"]), UsageError, "pattern_partitions takes a graph, not a Model"),
        (lambda m: generate_pattern_op_partitions(m, ["Relu(x)"]), UsageError, "takes a graph, not a Model"),
        (lambda m: fuse_partition([], "f"), UsageError, "fuse_partition takes one partition, not a list"),
        (lambda m: SubgraphMatcher("Relu(x)").match(m.proto), UsageError, "in a model or graph, not in a ModelProto"),
        (lambda m: replace_pattern("m.onnx", "Relu(x)", "Abs(x)"), UsageError, "in a model or graph, not in a str"),
    ],
)
def test_what_fx_would_take_is_refused_in_a_line(model: Any, given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as e:
        given(model())
    assert says in str(e.value)


class FxSupport(OperatorSupport):
    """As FX has it."""

    def is_node_supported(self, submodules: Any, node: Any) -> bool:  # type: ignore[override]
        return False
