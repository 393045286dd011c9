"""Partitioning: parts of a graph that a backend can run as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from onnxopt.analysis.submodel import boundary, reads
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import of_form
from onnxopt.pipeline.boundary import check_graph
from onnxopt.pipeline.convex import convex_groups
from onnxopt.pipeline.support import Support, predicate

# Operators that only pass on, rename or reshape: no reason for a partition.
NON_COMPUTE: Final = of_form("same", "order", "permute") | {"Cast", "Constant", "Shape"}


@dataclass(frozen=True)
class Partition:
    """Nodes of a scope, in graph order, that can run as a unit: no path leaves the partition and returns.

    Inputs and outputs are computed on demand, since they change with the graph.
    """

    id: int
    nodes: tuple[Node, ...]

    @property
    def inputs(self) -> list[Value]:
        """Values produced elsewhere, without constants."""
        return boundary(self.nodes)[0]

    @property
    def constants(self) -> list[Value]:
        return boundary(self.nodes)[1]

    @property
    def outputs(self) -> list[Value]:
        """Values read elsewhere, or graph outputs."""
        return boundary(self.nodes)[2]

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"Partition({self.id}, {', '.join(n.op for n in self.nodes)})"


class CapabilityPartitioner:
    """Finds the largest convex parts of `graph` whose nodes `support` accepts.

    `support` is an `OperatorSupport`, a combination, or a function of a node. A node with bodies (If, Loop, Scan) also
    needs support for every node inside. With `allow_single_node=False` a part needs two compute nodes, or a node in
    `allowed_single_node_partition_ops`; otherwise a single compute node. `non_compute_ops` do not count as compute
    nodes.
    Constants belong to no part: each reader gets a copy.
    """

    def __init__(
        self,
        graph: Graph,
        support: Support,
        *,
        allow_single_node: bool = True,
        non_compute_ops: Iterable[str] = NON_COMPUTE,
        allowed_single_node_partition_ops: Iterable[str] = (),
    ) -> None:
        check_graph(graph, "CapabilityPartitioner")
        self.graph = graph
        self.supports = predicate(support)
        self.non_compute_ops = frozenset(non_compute_ops)
        self.alone = frozenset(allowed_single_node_partition_ops)
        self.least = 1 if allow_single_node else 2

    def propose(self) -> list[Partition]:
        """Return the parts in the order of their first nodes; the graph is not changed.

        Parts and remaining nodes form no cycle, and merging two parts joined by an edge would create a cycle.
        Near-linear time;
        on adversarial graphs a part may be smaller than possible.
        """
        nodes, predecessors = dependencies(self.graph)
        supported = [_with_bodies(n, self.supports) for n in nodes]
        groups: dict[int, list[Node]] = {}
        for node, own, group in zip(nodes, supported, convex_groups(predecessors, supported), strict=True):
            if own:
                groups.setdefault(group, []).append(node)
        kept = [g for g in groups.values() if self._is_worth_it(g)]
        return [Partition(i, tuple(g)) for i, g in enumerate(kept)]

    def _is_worth_it(self, group: list[Node]) -> bool:
        computing = [n for n in group if n.op not in self.non_compute_ops]
        return len(computing) >= self.least or any(n.op in self.alone for n in computing)


def dependencies(graph: Graph) -> tuple[list[Node], list[list[int]]]:
    """Return (nodes in order without Constants, for each the positions of nodes read by it or its bodies)."""
    nodes = [n for n in graph if not is_constant(n)]
    position = {n: i for i, n in enumerate(nodes)}
    predecessors = []
    for node in nodes:
        values = reads(node) if node.bodies else (v for v in node.inputs if v is not None)
        # Values from outer scopes and Constants have no position.
        found = dict.fromkeys(position.get(v.producer, -1) for v in values if v.producer is not None)
        found.pop(-1, None)
        predecessors.append(list(found))
    return nodes, predecessors


def is_constant(node: Node) -> bool:
    """Whether the node holds a constant, to be copied for each reader."""
    return node.op == "Constant" and all(v is None or v.constant for v in node.outputs)


def _with_bodies(node: Node, supports: Callable[[Node], bool]) -> bool:
    return supports(node) and all(is_constant(n) or supports(n) for body in node.bodies.values() for n in body.walk())
