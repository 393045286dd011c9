"""Partitions by pattern: every place where one matches, or the largest parts that patterns and operators cover."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.pipeline.analyses import analysis
from onnxopt.pipeline.boundary import check_graph
from onnxopt.pipeline.partition import CapabilityPartitioner, Partition, dependencies, is_constant
from onnxopt.pipeline.support import NodeSupport, Support, any_chain
from onnxopt.rewriting.example import Source, example
from onnxopt.rewriting.matcher import Bindings, match, match_roots
from onnxopt.rewriting.pattern import Call, Either
from onnxopt.rewriting.rule import Rule


def pattern_partitions(graph: Graph, patterns: Iterable[Source], *, exact: bool | None = None) -> list[Partition]:
    """A partition for each match of a pattern, in graph order, without overlaps.

    A pattern is whatever SubgraphMatcher takes. Attributes that are not written: of text they may be anything, as for
    `onnxopt find`, of other examples they have their defaults; `exact` decides for both. Rules, and patterns over `op`,
    say of attributes what they say in rules. Where matches compete for a node, the earlier pattern wins, then the
    earlier place. Matches whose fusion would make a cycle are left out. Raises UsageError for what is not a pattern.
    """
    check_graph(graph, "pattern_partitions")
    taken: dict[Node, list[Node]] = {}
    found: list[list[Node]] = []
    cycles = _Cycles(graph, taken)
    for variants in [_variants(p, exact) for p in patterns]:
        anchors = {o for roots in variants for o in roots[0].ops}
        for anchor in graph:
            if anchor.op in anchors and anchor not in taken:
                nodes = next(_matches(variants, anchor, taken), None)
                if nodes is not None and not cycles.closed_by(nodes):
                    found.append(nodes)
                    taken.update((n, nodes) for n in nodes)
    position = {n: i for i, n in enumerate(graph)}
    for nodes in found:
        nodes.sort(key=position.__getitem__)
    found.sort(key=lambda nodes: position[nodes[0]])
    return [Partition(i, tuple(nodes)) for i, nodes in enumerate(found)]


def create_pattern_support(patterns: Iterable[Source], *, exact: bool | None = None) -> NodeSupport:
    """Supports the nodes that a match of one of `patterns` covers (see `pattern_partitions`), to be given to a
    partitioner, alone or in `chain` and `any_chain`."""
    return _PatternSupport(tuple(patterns), exact)


def generate_pattern_op_partitions(
    graph: Graph,
    patterns: Iterable[Source],
    op_support: Support | None = None,
    *,
    exact: bool | None = None,
    **options: Any,
) -> list[Partition]:
    """The largest parts of `graph` whose nodes a match of one of `patterns` covers, or `op_support` accepts.

    `options` are those of CapabilityPartitioner.
    """
    support = create_pattern_support(patterns, exact=exact)
    both = support if op_support is None else any_chain(support, op_support)
    return CapabilityPartitioner(graph, both, **options).propose()


class _PatternSupport:
    def __init__(self, patterns: tuple[Source, ...], exact: bool | None) -> None:
        self.patterns = patterns
        self.exact = exact

    def is_node_supported(self, node: Node) -> bool:
        return node.graph is not None and node in analysis(self.covered, node.graph)

    def covered(self, graph: Graph) -> set[Node]:
        return {n for p in pattern_partitions(graph, self.patterns, exact=self.exact) for n in p.nodes}


def _variants(pattern: Source, exact: bool | None) -> list[tuple[Call, ...]]:
    """Plain patterns, one call for each result."""
    if exact is None:
        exact = not isinstance(pattern, str)
    return example(pattern, exact=exact and not isinstance(pattern, (Rule, Call, Either))).variants()


def _matches(variants: list[tuple[Call, ...]], anchor: Node, taken: dict[Node, list[Node]]) -> Iterator[list[Node]]:
    """The covered nodes of each match at `anchor`, anchor first, where all are free and of one scope."""
    for roots in variants:
        bindings = match(roots[0], anchor) if len(roots) == 1 else match_roots(roots, anchor)
        if isinstance(bindings, Bindings):
            nodes = list(dict.fromkeys(n for n, _ in bindings.covered if not is_constant(n)))
            if nodes and all(n not in taken and n.graph is anchor.graph for n in nodes):
                yield nodes


class _Cycles:
    """Matches that only the anchor's results leave cannot make a cycle, however many there are. Once another kind is
    among them, every further one has to be looked at."""

    def __init__(self, graph: Graph, taken: dict[Node, list[Node]]) -> None:
        self.graph = graph
        self.taken = taken
        self.leaking = False
        self._readers: dict[Node, list[Node]] | None = None

    def closed_by(self, nodes: list[Node]) -> bool:
        """Does fusing `nodes` (anchor first), besides those taken, close a cycle?"""
        inside = set(nodes)
        leaks = any(
            v is not None and (v.is_output or not inside.issuperset(v.users)) for n in nodes[1:] for v in n.outputs
        )
        if not leaks and not self.leaking:
            return False
        if self._reach(nodes, inside):
            return True
        self.leaking = self.leaking or leaks
        return False

    def _reach(self, nodes: list[Node], inside: set[Node]) -> bool:
        """Does a path leave `nodes` and come back, through the fused others too?"""
        readers = self._all_readers()
        stack = [r for n in nodes for r in readers[n] if r not in inside]
        seen = set(stack)
        while stack:
            node = stack.pop()
            for member in self.taken.get(node, [node]):
                for reader in readers[member]:
                    if reader in inside:
                        return True
                    if reader not in seen:
                        seen.add(reader)
                        stack.append(reader)
        return False

    def _all_readers(self) -> dict[Node, list[Node]]:
        if self._readers is None:
            nodes, predecessors = dependencies(self.graph)
            self._readers = {n: [] for n in nodes}
            for node, before in zip(nodes, predecessors, strict=True):
                for p in before:
                    self._readers[nodes[p]].append(node)
        return self._readers


__all__ = ["create_pattern_support", "generate_pattern_op_partitions", "pattern_partitions"]
