"""Partitioning: which parts of a graph can be handed to a backend as a whole."""

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

# Operators that only hand on, rename or reshape: no part is worth having for them alone.
NON_COMPUTE: Final = of_form("same", "order", "permute") | {"Cast", "Constant", "Shape"}


@dataclass(frozen=True)
class Partition:
    """Nodes of one scope, in graph order, that can run as one: no path leaves them and comes back.

    What it reads and writes is looked up when asked for: it changes when the graph does.
    """

    id: int
    nodes: tuple[Node, ...]

    @property
    def inputs(self) -> list[Value]:
        """Values made elsewhere, constants apart."""
        return boundary(self.nodes)[0]

    @property
    def constants(self) -> list[Value]:
        return boundary(self.nodes)[1]

    @property
    def outputs(self) -> list[Value]:
        """Values read elsewhere, or outputs of the graph."""
        return boundary(self.nodes)[2]

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"Partition({self.id}, {', '.join(n.op for n in self.nodes)})"


class CapabilityPartitioner:
    """The largest convex parts of `graph` whose nodes `support` accepts.

    `support` is an `OperatorSupport`, a combination, or a function of a node. A node with bodies (If, Loop, Scan) also
    needs the support of every node inside. With `allow_single_node=False` a part needs two compute nodes, or one of
    `allowed_single_node_partition_ops`, otherwise one; `non_compute_ops` are no compute nodes. Constants belong to no
    part: whoever reads them gets a copy.
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
        """The parts in the order of their first nodes; the graph is not changed.

        Parts and remaining nodes form no cycle, and merging two parts that an edge joins would make one. Near-linear
        time; on a graph built to defeat the merging, a part may stay smaller than it could be.
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
    """The nodes in order, Constants apart, and for each the positions of the nodes it (or a body of it) reads."""
    nodes = [n for n in graph if not is_constant(n)]
    position = {n: i for i, n in enumerate(nodes)}
    predecessors = []
    for node in nodes:
        values = reads(node) if node.bodies else (v for v in node.inputs if v is not None)
        # What comes from a surrounding scope, or from a Constant, has no position.
        found = dict.fromkeys(position.get(v.producer, -1) for v in values if v.producer is not None)
        found.pop(-1, None)
        predecessors.append(list(found))
    return nodes, predecessors


def is_constant(node: Node) -> bool:
    """Does the node hold a constant, which every reader can have for itself?"""
    return node.op == "Constant" and all(v is None or v.constant for v in node.outputs)


def _with_bodies(node: Node, supports: Callable[[Node], bool]) -> bool:
    return supports(node) and all(is_constant(n) or supports(n) for body in node.bodies.values() for n in body.walk())


__all__ = ["NON_COMPUTE", "CapabilityPartitioner", "Partition", "dependencies", "is_constant"]
