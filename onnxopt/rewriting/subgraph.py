"""Finds and replaces subgraphs given by example (like torch.fx's SubgraphMatcher and replace_pattern)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from onnxopt.errors import UsageError
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node, present
from onnxopt.graph.value import Value
from onnxopt.plaintext import an
from onnxopt.proto.messages import numpy_dtype
from onnxopt.rewriting.example import Example, Source, example
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.matcher import Bindings, matches
from onnxopt.rewriting.pattern import Call, Const, Literal, Pattern, Var, names, walk
from onnxopt.rewriting.replace import commit
from onnxopt.rewriting.rule import Declined

Filter = Callable[["SubgraphMatch"], bool]


@dataclass(frozen=True, eq=False)
class SubgraphMatch:
    """A match: `anchor` produces the first result; `nodes` and `values` are bound to the pattern's names.

    Calls without a name are called `Conv_1`, `Conv_2`, … in order of appearance. `results`: the values matched by the
    pattern's results.
    """

    anchor: Node
    nodes: dict[str, Node]
    values: dict[str, Value | None]
    results: tuple[Value, ...]
    bindings: Bindings = field(repr=False)


@dataclass(frozen=True, eq=False)
class Replaced:
    """A replacement: the (removed) node of the first result, the matched nodes by name, and the new nodes."""

    anchor: Node
    nodes: dict[str, Node]
    new_nodes: list[Node]


class SubgraphMatcher:
    """Searches for a pattern: ONNX text, an expression, a function over `op`, a call pattern, a FunctionProto,
    ModelProto, GraphProto or Graph.

    `match_outputs`: every result is a graph output. `match_placeholder`: every variable is a graph input.
    `overlapping`:
    matches may share nodes with earlier ones. `ignore_literals`: attributes and constants are not compared;
    `tolerance`:
    their relative tolerance for floats. `exact`: omitted attributes have their defaults. `shared`: inner results may
    have other readers. Raises UsageError for an invalid pattern.
    """

    def __init__(
        self,
        pattern: Source,
        *,
        match_outputs: bool = False,
        match_placeholder: bool = False,
        overlapping: bool = False,
        ignore_literals: bool = False,
        tolerance: float = 0.0,
        exact: bool = True,
        shared: bool = False,
    ) -> None:
        self.example: Example = example(
            pattern, exact=exact, ignore_literals=ignore_literals, tolerance=tolerance, shared=shared
        )
        self.match_outputs = match_outputs
        variables = [p.name for r in self.example.results for p in walk(r) if isinstance(p, Var)]
        self._placeholders = variables if match_placeholder else []
        self.overlapping = overlapping
        self._rows = self.example.calls()

    def match(self, where: Model | Graph) -> list[SubgraphMatch]:
        """Return all matches, scope by scope, in the order of nodes."""
        used: set[Node] = set()
        return [m for graph in scopes_of(where) for anchor in self.anchors(graph) for m in self._fresh(anchor, used)]

    def anchors(self, graph: Graph) -> list[Node]:
        """Return the nodes that may produce the first result."""
        ops = dict.fromkeys(o for roots in self._rows for o in roots[0].ops)
        found = [n for o in ops for n in graph.by_op.get(o, ())]
        if len(ops) == 1:
            return found
        wanted = set(found)
        return [n for n in graph if n in wanted]

    def at(self, anchor: Node) -> Iterator[SubgraphMatch]:
        """Yield every match in which `anchor` produces the first result."""
        for roots in self._rows:
            for b in matches(roots, anchor):
                if isinstance(b, Bindings) and (found := self._accepted(roots, anchor, b)) is not None:
                    yield found

    def _accepted(self, roots: Sequence[Call], anchor: Node, b: Bindings) -> SubgraphMatch | None:
        """Return a match of different nodes whose results exist, with the outputs and inputs asked for; else None."""
        if len({node for node, _ in b.covered}) < len(b.covered):
            return None
        values = tuple(present([node.outputs[root.output] for node, root in zip(b.roots, roots)]))
        if len(values) < len(roots) or (self.match_outputs and not all(v.is_output for v in values)):
            return None
        if not all((v := b.values.get(name)) is None or v.is_input for name in self._placeholders):
            return None
        return SubgraphMatch(anchor, dict(b.nodes), dict(b.values), values, b)

    def _fresh(self, anchor: Node, used: set[Node]) -> Iterator[SubgraphMatch]:
        for m in self.at(anchor):
            covered = [node for node, _ in m.bindings.covered]
            if self.overlapping:
                yield m
            elif not used.intersection(covered):
                used.update(covered)
                yield m
                return


def scopes_of(where: Model | Graph) -> list[Graph]:
    if isinstance(where, Graph):
        return [where]
    if not isinstance(where, Model):
        hint = "onnxopt.load(PATH) gives one, onnxopt.read_model(PROTO) another"
        raise UsageError(f"patterns are looked for in a model or graph, not in {an(type(where).__name__)}", hint)
    return list(where.open_scopes())


def replace_pattern(
    where: Model | Graph,
    pattern: Source,
    replacement: Source,
    filters: Sequence[Filter] = (),
    *,
    match_outputs: bool = False,
    match_placeholder: bool = False,
    ignore_literals: bool = False,
    tolerance: float = 0.0,
    exact: bool = True,
) -> list[Replaced]:
    """Replace every match of `pattern` by `replacement`, once: new nodes are not matched again.

    The replacement reads the pattern's variables by name and has as many results. A call with the name of a call in the
    pattern keeps the matched node's attributes. All `filters` must accept a SubgraphMatch. With several results, the
    replacement needs a place in the node order behind all operands of the match and before all readers of its results;
    matches without are skipped. Raises UsageError if pattern and replacement do not fit.
    """
    matcher = SubgraphMatcher(
        pattern,
        match_outputs=match_outputs,
        match_placeholder=match_placeholder,
        ignore_literals=ignore_literals,
        tolerance=tolerance,
        exact=exact,
    )
    new = example(replacement, exact=False)
    unknown = {n for p in new.results for n in names(p)} - {n for p in matcher.example.results for n in names(p)}
    if unknown or len(new.results) != len(matcher.example.results):
        what = f"reads `{min(unknown)}`" if unknown else f"results in {len(new.results)} values"
        raise UsageError(
            f"the replacement {what}, which the pattern does not", "both have the same variables and results"
        )
    return [done for graph in scopes_of(where) for done in _replace_in(graph, matcher, new, filters)]


def _replace_in(graph: Graph, matcher: SubgraphMatcher, new: Example, filters: Sequence[Filter]) -> list[Replaced]:
    """Replace the first accepted match at each anchor of a scope."""
    done: list[Replaced] = []
    made: set[Node] = set()
    order = _Order(graph) if len(new.results) > 1 else None
    for anchor in matcher.anchors(graph):
        for m in matcher.at(anchor) if anchor.graph is not None else ():
            if made.isdisjoint(n for n, _ in m.bindings.covered) and all(f(m) for f in filters):
                nodes = _replace(m, new, order)
                if nodes is not None:
                    made.update(nodes)
                    done.append(Replaced(m.anchor, m.nodes, nodes))
                    break
    return done


def _replace(found: SubgraphMatch, new: Example, order: _Order | None) -> list[Node] | None:
    """Return the new nodes; None if the replacement does not fit."""
    m = Match(found.bindings, found.anchor)
    m.results = list(found.results)
    if order is not None:
        place = order.place(found)
        if place is None:
            return None
        (m.before,) = place
    try:
        commit(m, _Instance(m, new).values())
    except Declined:
        return None
    nodes = [n for n in m.new_nodes if n.graph is not None]
    if order is not None:
        order.insert(nodes)
    return nodes


class _Instance:
    """A replacement's calls as new nodes; a call used twice becomes a single node."""

    def __init__(self, m: Match, new: Example) -> None:
        self.m = m
        self.new = new
        self.made: dict[object, tuple[Value, ...]] = {}
        self.outputs: dict[object, int] = {}
        for p in (p for r in new.results for p in walk(r)):
            if isinstance(p, Call):
                self.outputs[p.key] = max(self.outputs.get(p.key, 1), p.output + 1)

    def values(self) -> tuple[Value | None, ...]:
        return tuple(self.build(r) for r in self.new.results)

    def build(self, p: Pattern, kind: int = 0) -> Value | None:
        """Return the value of a pattern. `kind`: element type of plain numbers; by default the type of the replaced
        value."""
        m = self.m
        if p is None:
            return None
        if isinstance(p, (Var, Const)):
            return m.bindings.values[p.name]
        if isinstance(p, Literal):
            return m.const(p.array)
        if isinstance(p, (int, float)):
            assert m.results is not None
            kind = kind or m.dtype(m.results[0])
            m.require(kind, "the type of a number is unknown")
            return m.const(numpy_dtype(kind).type(p))
        if not isinstance(p, Call):
            raise UsageError("a replacement has no alternatives", "write the one that is meant")
        if p.key not in self.made:
            self.made[p.key] = self._call(p)
        return self.made[p.key][p.output]

    def _call(self, p: Call) -> tuple[Value, ...]:
        """Return the results of a new node. Plain numbers have the type of the first operand with a known type."""
        m = self.m
        bound = [m.bindings.values[q.name] for q in p.inputs if isinstance(q, (Var, Const))]
        kind = next((t for v in bound if v is not None and (t := m.dtype(v))), 0)
        inputs = [self.build(q, kind) for q in p.inputs]
        domain, _, op_type = p.ops[0].rpartition("::")
        like, count = m.bindings.nodes.get(p.name or ""), self.outputs[p.key]
        attributes = {name: v.array if isinstance(v, Literal) else v for name, v in p.attributes}
        made = m.op[op_type](*inputs, domain=domain, like=like, outputs=count, **attributes)
        return made if isinstance(made, tuple) else (made,)


class _Order:
    """Positions of a graph's nodes, maintained during replacements; positions may be shared, but never wrong."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position: dict[Node, float] = {node: float(i) for i, node in enumerate(graph)}

    def place(self, m: SubgraphMatch) -> tuple[Node | None] | None:
        """Return (node behind the place, None at the end) for a place behind all operands of the match and before all
        readers of its results; None without a place."""
        inside = {node for node, _ in m.bindings.covered}
        read = dict.fromkeys(v for node in inside for v in node.operands if v.graph is self.graph)
        sources = [v.producer for v in read if v.producer is not None and v.producer not in inside]
        users = [u for v in m.results for u in v.users if u not in inside]
        first = min((self._at(u) for u in users), default=float("inf"))
        last = max(sources, key=self._at, default=None)
        if last is None:
            return (self.graph.first,)
        return (last.next,) if self._at(last) < first else None

    def _at(self, node: Node) -> float:
        at = node.around_in(self.graph)  # a reader in a body counts at the position of the body's owner
        assert at is not None
        return self.position[at]

    def insert(self, nodes: Sequence[Node]) -> None:
        """Give inserted nodes positions between their neighbours'."""
        for node in nodes:
            previous, following = node.prev, node.next
            while following is not None and following not in self.position:
                following = following.next
            low = self.position[previous] if previous is not None else -1.0
            high = self.position[following] if following is not None else low + 2.0
            self.position[node] = (low + high) / 2
