"""Partitioning: parts of a graph that a backend can run as a whole, by node support or by pattern."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from onnxopt.analysis.submodel import boundary, reads
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import of_form
from onnxopt.pipeline.context import analysis
from onnxopt.pipeline.convex import convex_groups
from onnxopt.pipeline.decorators import check_graph
from onnxopt.rewriting.diagnose import refuse_unknown
from onnxopt.rewriting.example import Source
from onnxopt.rewriting.pattern import Call, Either
from onnxopt.rewriting.rule import Rule
from onnxopt.rewriting.subgraph import SubgraphMatcher

# -- supported nodes of a backend ---------------------------------------------------------------------------------


@runtime_checkable
class NodeSupport(Protocol):
    """Any object with `is_node_supported`."""

    def is_node_supported(self, node: Node) -> bool: ...


Support = NodeSupport | Callable[[Node], bool]


class OperatorSupport:
    """Supports the nodes that call an operator in `ops`: qualified names, `Conv` or `com.microsoft::Gelu`.

    Override `is_node_supported` to check attributes, types or shapes as well.
    """

    def __init__(self, ops: Iterable[str] = ()) -> None:
        if isinstance(ops, str):
            raise TypeError(f"OperatorSupport takes a collection of operators, not the string {ops!r}")
        self.ops = frozenset(op.removeprefix("ai.onnx::") for op in ops)

    def is_node_supported(self, node: Node) -> bool:
        """Whether the backend runs this call. Called for nodes in bodies, too."""
        return node.op in self.ops


class _Combined:
    def __init__(self, decide: Callable[[Iterable[bool]], bool], supports: tuple[Support, ...]) -> None:
        self._decide = decide
        self._predicates = [predicate(s) for s in supports]

    def is_node_supported(self, node: Node) -> bool:
        return self._decide(p(node) for p in self._predicates)


def chain(*supports: Support) -> NodeSupport:
    """Return a support for nodes accepted by all `supports`, evaluated in order until the first rejection."""
    return _Combined(all, supports)


def any_chain(*supports: Support) -> NodeSupport:
    """Return a support for nodes accepted by any of `supports`, evaluated in order until the first acceptance."""
    return _Combined(any, supports)


def predicate(support: Support) -> Callable[[Node], bool]:
    """Return `support` as a plain function. Raises TypeError unless it is a support or callable."""
    if isinstance(support, type):
        raise TypeError(f"{support.__name__} is a class: {support.__name__}(…) makes a support of it")
    asked = support.is_node_supported if isinstance(support, NodeSupport) else support
    if not callable(asked):
        raise TypeError(f"{support!r} has no method is_node_supported and is not a function of a node")
    try:
        inspect.signature(asked).bind(None)
    except TypeError:
        name = getattr(asked, "__qualname__", repr(support))
        raise TypeError(f"{name} is called with one node, and nothing else: is_node_supported(self, node)") from None
    except ValueError:  # C functions may have no signature
        pass
    return asked


# -- the largest parts --------------------------------------------------------------------------------------------

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
    nodes. Constants belong to no part: each reader gets a copy.
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
        Near-linear time; on adversarial graphs a part may be smaller than possible.
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
        values = reads(node) if node.bodies else node.operands
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


# -- parts by pattern ---------------------------------------------------------------------------------------------


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
    for matcher in [_matcher(p, exact, graph.model) for p in patterns]:
        for anchor in matcher.anchors(graph):
            nodes = next(_free(matcher, anchor, taken), None) if anchor not in taken else None
            if nodes is not None and not cycles.closed_by(nodes):
                found.append(nodes)
                taken.update((n, nodes) for n in nodes)
    position = {n: i for i, n in enumerate(graph)}
    for nodes in found:
        nodes.sort(key=position.__getitem__)
    found.sort(key=lambda nodes: position[nodes[0]])
    return [Partition(i, tuple(nodes)) for i, nodes in enumerate(found)]


def create_pattern_support(patterns: Iterable[Source], *, exact: bool | None = None) -> NodeSupport:
    """Return a support for nodes in matches of `patterns` (see `pattern_partitions`), for use in a partitioner."""
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


def _matcher(pattern: Source, exact: bool | None, model: Model) -> SubgraphMatcher:
    """Return the matcher of a pattern. Raises UsageError for unknown operators, except of a rule: `register` warned."""
    if exact is None:
        exact = not isinstance(pattern, str)
    matcher = SubgraphMatcher(pattern, exact=exact and not isinstance(pattern, (Rule, Call, Either)))
    if not isinstance(pattern, Rule):
        refuse_unknown(matcher.example.results, model)
    return matcher


def _free(matcher: SubgraphMatcher, anchor: Node, taken: dict[Node, list[Node]]) -> Iterator[list[Node]]:
    """Yield the covered nodes of each match at `anchor`, anchor first, if all are free and in the same scope."""
    for m in matcher.at(anchor):
        nodes = list(dict.fromkeys(n for n, _ in m.bindings.covered if not is_constant(n)))
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
