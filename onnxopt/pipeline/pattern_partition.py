"""Partitions by pattern: every match, or the largest parts covered by patterns and operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.pipeline.analyses import analysis
from onnxopt.pipeline.boundary import check_graph
from onnxopt.pipeline.partition import CapabilityPartitioner, Partition, dependencies, is_constant
from onnxopt.pipeline.support import NodeSupport, Support, any_chain
from onnxopt.rewriting.example import Source, example
from onnxopt.rewriting.matcher import Bindings, match, match_roots
from onnxopt.rewriting.pattern import Call, Either
from onnxopt.rewriting.rule import Rule
from onnxopt.rewriting.unknown import refuse_unknown


def pattern_partitions(graph: Graph, patterns: Iterable[Source], *, exact: bool | None = None) -> list[Partition]:
    """Return a partition for each match of a pattern, in graph order, without overlaps.

    A pattern is any argument of SubgraphMatcher. Omitted attributes may have any value in text, as for `onnxopt find`;
    in other examples they have their defaults; `exact` decides for both. Rules, and patterns over `op`, treat
    attributes as rules do. Of matches competing for a node, the earlier pattern wins, then the earlier position.
    Matches whose fusion would create a cycle are left out. Raises UsageError for invalid patterns, and for
    operators unknown to the standard and the model.
    """
    check_graph(graph, "pattern_partitions")
    taken: dict[Node, list[Node]] = {}
    found: list[list[Node]] = []
    cycles = _Cycles(graph, taken)
    for variants in [_variants(p, exact, graph.model) for p in patterns]:
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
    """Return a support for nodes covered by a match of `patterns` (see `pattern_partitions`).

    For use in a partitioner, alone or in `chain` and `any_chain`.
    """
    return _PatternSupport(tuple(patterns), exact)


def generate_pattern_op_partitions(
    graph: Graph,
    patterns: Iterable[Source],
    op_support: Support | None = None,
    *,
    exact: bool | None = None,
    **options: Any,
) -> list[Partition]:
    """Return the largest parts of `graph` whose nodes are covered by a match of `patterns` or accepted by `op_support`.

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


def _variants(pattern: Source, exact: bool | None, model: Model) -> list[tuple[Call, ...]]:
    """Return plain patterns, a call for each result. Raises UsageError for unknown operators; of a rule, `register`
    warned of them."""
    if exact is None:
        exact = not isinstance(pattern, str)
    found = example(pattern, exact=exact and not isinstance(pattern, (Rule, Call, Either)))
    if not isinstance(pattern, Rule):
        refuse_unknown(found.results, model)
    return found.variants()


def _matches(variants: list[tuple[Call, ...]], anchor: Node, taken: dict[Node, list[Node]]) -> Iterator[list[Node]]:
    """Yield the covered nodes of each match at `anchor`, anchor first, if all are free and in the same scope."""
    for roots in variants:
        bindings = match(roots[0], anchor) if len(roots) == 1 else match_roots(roots, anchor)
        if isinstance(bindings, Bindings):
            nodes = list(dict.fromkeys(n for n, _ in bindings.covered if not is_constant(n)))
            if nodes and all(n not in taken and n.graph is anchor.graph for n in nodes):
                yield nodes


class _Cycles:
    """Detects matches whose fusion would create a cycle.

    Matches left only by the anchor's results never create a cycle. Once a match of another kind is taken, every further
    match is searched.
    """

    def __init__(self, graph: Graph, taken: dict[Node, list[Node]]) -> None:
        self.graph = graph
        self.taken = taken
        self.leaking = False
        self._readers: dict[Node, list[Node]] | None = None

    def closed_by(self, nodes: list[Node]) -> bool:
        """Whether fusing `nodes` (anchor first), besides the taken ones, closes a cycle."""
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
        """Whether a path leaves `nodes` and returns, also through fused matches."""
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
