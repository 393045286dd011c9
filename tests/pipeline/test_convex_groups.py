"""On random graphs: the parts are convex, maximal and together acyclic; split and fused, they compute the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from onnxopt.graph import read_model
from onnxopt.pipeline.convex import convex_groups
from tests.pipeline.partitioning import X, assert_both_compute_the_same, propose


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


@settings(max_examples=400, deadline=None)
@given(dag=dags())
def test_groups_are_acyclic_and_maximal(dag: tuple[list[list[int]], list[bool]]) -> None:
    predecessors, supported = dag
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
