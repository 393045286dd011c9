"""Matches patterns at an anchor node; rules are selected by the kinds of its operands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, final

import numpy as np

from onnxopt.analysis.constants import kind_of_initializer
from onnxopt.analysis.types import rank
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.schema import attribute_default
from onnxopt.graph.value import Value
from onnxopt.proto.element_types import element_kind, is_float
from onnxopt.proto.messages import attribute_value, element_type
from onnxopt.rewriting.pattern import About, Call, Const, Either, Literal, Pattern, Var, alternatives
from onnxopt.rewriting.rule import Rule, canonical_operands

_KEPT: Final = 256  # a few for each pass: bisection runs a pass with many subsets of rules
_MAX_CHOICES: Final = 8  # choices with other options tried
_FOUND: Final = object()  # key of the candidates, behind the kinds of inputs

Asked = list[tuple[int, frozenset[str]]]
Orders = Sequence[tuple[Pattern, ...]]
Candidates = Sequence[tuple[Rule, Sequence[tuple[tuple[Call], Orders]]]]
# The option taken at each choice of a pattern, and the number of options: of alternatives, orders of operands, or nodes
# for a further result.
Path = list[list[int]]


def _levels() -> defaultdict[Hashable, Any]:
    return defaultdict(_levels)


class RuleSet:
    """Rules in order, by anchor operator. `depth`: number of levels of the deepest pattern."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.all = rules
        self.by_anchor: dict[str, list[Rule]] = {}
        self.depth = 1
        for rule in rules:
            self.depth = max(self.depth, rule.depth)
            for anchor in sorted(rule.anchors):
                self.by_anchor.setdefault(anchor, []).append(rule)
        # by operator: see `_asked_of`, and candidates by the number and the kinds of the inputs
        self._asked: dict[str, tuple[int, frozenset[str], Asked, dict[Hashable, Any]]] = {}

    def candidates(self, node: Node) -> Candidates:
        """Return the rules, in order, with the calls whose form matches at `node`.

        Most patterns fail by their form, and most anchors have operands of equal kinds: the answer is cached by these.
        """
        op, inputs = node._op, node.inputs
        if op not in self._asked:
            self._asked[op] = *self._asked_of(op), _levels()
        most, reads, asked, level = self._asked[op]
        count = len(inputs)
        level = level[count if count < most else most]
        for index, ops in asked:
            if index >= count:
                break
            v = inputs[index]
            if v is None:
                kind: Hashable = None
            elif (maker := v.producer) is not None and maker._op in ops:
                kind = (maker._op,) if v.constant else maker._op
            else:
                kind = v.constant
            level = level[kind]
        if reads:
            level = level[
                reads.intersection([v.producer._op for v in inputs if v is not None and v.producer is not None])
            ]
        if _FOUND not in level:
            level[_FOUND] = self._fitting(node)
        found: Candidates = level[_FOUND]
        return found

    def _asked_of(self, op: str) -> tuple[int, frozenset[str], Asked]:
        """Return the least count of inputs beyond all patterns of `op`, operators that patterns read at any input, and
        operators of producers that patterns name, by input."""
        roots = [root for rule in self.by_anchor.get(op, ()) for root in rule.roots if op in root.ops]
        found: dict[int, set[str]] = {}
        for index, p in (place for root in roots for inputs in root.orders for place in enumerate(inputs)):
            for q in alternatives(p):
                if isinstance(q, Call):
                    found.setdefault(index, set()).update(q.ops)
                elif _is_constant(q):
                    found.setdefault(index, set())
        most = 1 + max((len(root.inputs) for root in roots), default=0)
        reads = frozenset[str]().union(*(root.reads for root in roots))
        return most, reads, [(index, frozenset(ops)) for index, ops in sorted(found.items())]

    def _fitting(self, node: Node) -> Candidates:
        # The operator may be missing if a rule changed it, against the contract.
        op, inputs = node._op, node.inputs
        found: list[tuple[Rule, list[tuple[tuple[Call], Orders]]]] = []
        for rule in self.by_anchor.get(op, ()):
            roots = [c for c in rule.roots if op in c.ops and (c.variadic or len(inputs) <= len(c.inputs))]
            roots = [c for c in roots if not c.reads or reads_one_of(c.reads, inputs)]
            if fitting := [((c,), orders) for c in roots if (orders := possible_orders(c, inputs))]:
                found.append((rule, fitting))
        return found


@lru_cache(_KEPT)
def rule_set(rules: tuple[Rule, ...]) -> RuleSet:
    """Return the cached rule set, shared between rounds and models."""
    return RuleSet(rules)


def possible_orders(p: Call, inputs: Sequence[Value | None]) -> Orders:
    """Return the orders of a call's operands that may match, by the producers of the inputs, and by constants."""
    return [order for order in p.orders if False not in map(_may_be, order, inputs)]


def _may_be(p: Pattern, v: Value | None) -> bool:
    if type(p) is Var:  # most operands
        return p.constant is not True or p.optional or (v is not None and v.constant)
    if type(p) is Call:
        return v is not None and v.producer is not None and v.producer._op in p.ops
    if type(p) is Either:
        return any(map(_may_be, p.choices, repeat(v)))
    return (v is not None and v.constant) or not _is_constant(p)


def _is_constant(p: Pattern) -> bool:
    """Whether a pattern needs a constant. A `Const` does not count, so that the matcher can give a reason."""
    if type(p) is Var:
        return p.constant is True and not p.optional
    return type(p) is not Const and p is not None


# -- a pattern at an anchor ---------------------------------------------------------------------------------------


def change(path: Path) -> bool:
    """Take another option at the last choice that has any left. Returns False, with an empty path, if no choice has."""
    while path and path[-1][0] + 1 == path[-1][1]:
        path.pop()
    if path:
        path[-1][0] += 1
    return bool(path)


def paths() -> Iterator[Path]:
    """Yield the paths through the choices of a pattern; each is extended by the match along it."""
    path: Path = []
    yield path
    while change(path):
        yield path


@final
class Bindings:
    """Result of a match: values by name, nodes by name, and every covered node (anchor first)."""

    __slots__ = ("_at", "_path", "constants", "covered", "literals", "nodes", "roots", "values")

    def __init__(self, path: Path | None = None) -> None:
        self._path = [] if path is None else path
        self._at = 0
        self.values: dict[str, Value | None] = {}
        self.constants: dict[str, None] = {}  # names in `values` required to be constant
        self.nodes: dict[str, Node] = {}
        self.covered: list[tuple[Node, Call]] = []
        self.literals: list[tuple[Node, Value]] = []
        self.roots: tuple[Node, ...] = ()  # producers of the results, which may be used elsewhere

    def choose(self, count: int) -> int:
        """Return the option of the next choice, out of `count`; the first at a new choice."""
        if self._at == len(self._path):
            if self._at == _MAX_CHOICES:
                return 0
            self._path.append([0, count])
        self._at += 1
        return self._path[self._at - 1][0]


def matches(roots: Sequence[Call], anchor: Node) -> Iterator[Bindings | str]:
    """Yield each match of a pattern, whose first result `anchor` produces: Bindings, or a reason if only a condition
    fails."""
    return (found for path in paths() if (found := match(roots, anchor, path)) is not None)


def match(roots: Sequence[Call], anchor: Node, path: Path, orders: Orders = ()) -> Bindings | str | None:
    """Return the match along a path, which is extended by further choices: Bindings; None if the structure differs; a
    reason if only a condition fails.

    `orders`: those of the operands of `anchor` that may match, if known. Producers of further results are searched
    among readers of bound values in the scope of `anchor`.
    """
    b = Bindings(path)
    if not _match_node(roots[0], anchor, b, orders):
        return None
    b.roots = (anchor,)
    for root in roots[1:]:
        nodes = [n for n in _producers(root, b) if n.graph is anchor.graph]
        if not nodes or not _match_node(root, node := nodes[b.choose(len(nodes))], b):
            return None
        b.roots += (node,)
    return _refusal(b) or b


def _producers(p: Call, b: Bindings) -> list[Node]:
    """Return the possible nodes for `p`: the bound node, or readers of bound values."""
    if p.name in b.nodes:
        return [b.nodes[p.name]]
    for q in (choice for operand in p.inputs for choice in alternatives(operand)):
        values: list[Value | None] = []
        if isinstance(q, (Var, Const)):
            values = [b.values.get(q.name)]
        elif isinstance(q, Call):
            values = [n.outputs[q.output] for n in _producers(q, b) if q.output < len(n.outputs)]
        users = dict.fromkeys(user for v in values if v is not None for user in v.users if user.op in p.ops)
        if users:
            return list(users)
    return []


def _match_node(p: Call, node: Node, b: Bindings, orders: Orders = ()) -> bool:
    if node._op not in p.ops:  # hottest test: the property would double its cost
        return False
    if p.name is not None and p.name in b.nodes:
        return b.nodes[p.name] is node
    inputs = node.inputs
    absent = p.arity - len(inputs)
    if absent > 0:
        inputs = canonical_operands(node)
        absent = p.arity - len(inputs)
        inputs = [*inputs, *repeat(None, absent)]
    if absent < 0 and not p.variadic:
        return False
    if p.reads and not reads_one_of(p.reads, inputs):
        return False
    for name, expected in p.attributes:
        if not attribute_fits(expected, node.attr(name)):
            return False
    if p.exact and not has_defaults(node, p):
        return False
    b.covered.append((node, p))
    if p.name is not None:
        b.nodes[p.name] = node
    patterns = p.inputs
    if p.commutes:
        orders = orders or possible_orders(p, inputs)
        if not orders:
            return False
        patterns, *others = orders
        if others:
            patterns = orders[b.choose(len(orders))]
    values = b.values
    for q, v in zip(patterns, inputs):
        if type(q) is Either:
            q = q.choices[b.choose(len(q.choices))]
        if type(q) is Var:  # inlined: most operands are Var or Const
            if v is None:
                if not q.optional or q.constant is not None:
                    return False
            elif q.constant is not None and (v.constant is not q.constant or (q.when is not None and not q.when(v))):
                return False
            if q.name not in values:
                values[q.name] = v
            elif values[q.name] is not v:
                return False
        elif type(q) is Const:
            if (v is None and not q.optional) or values.setdefault(q.name, v) is not v:
                return False
            b.constants[q.name] = None
        elif type(q) is Call:
            if v is None or (maker := v.producer) is None or v.index != q.output or not _match_node(q, maker, b):
                return False
        elif q is None:
            if v is not None:
                return False
        elif v is None or not v.constant:
            return False
        elif type(q) is not Literal:
            if not value_equals(v, q):
                return False
            b.literals.append((node, v))
        elif not holds(v, q):
            return False
    return True


def reads_one_of(ops: frozenset[str], values: Sequence[Value | None]) -> bool:
    """Whether any value is a result of any of these operators."""
    for v in values:
        if v is not None and v.producer is not None and v.producer._op in ops:
            return True
    return False


def attribute_fits(expected: Any, actual: Any) -> bool:
    """Whether an attribute's value satisfies the pattern's predicate or equals its value."""
    if callable(expected):
        return bool(expected(actual))
    return bool(actual == (list(expected) if isinstance(expected, tuple) else expected))


def same(a: object, b: object) -> bool:
    """Whether two attribute values are equal; tensors by elements."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)
    return a == b


def holds(value: Value, p: Literal) -> bool:
    """Whether a constant has the literal's type, shape and elements."""
    if value.constant_type() != (element_type(p.array), p.array.shape):
        return False
    if p.tolerance and is_float(p.array):
        return bool(np.allclose(value.array, p.array, p.tolerance, 0.0, equal_nan=True))
    return value.array.tobytes() == p.array.tobytes()


def has_defaults(node: Node, p: Call) -> bool:
    """Whether every attribute omitted in the pattern has its default."""
    written = {name for name, _ in p.attributes}
    opset = node.scope.opset(node.domain)
    return all(
        name in written or (not a.ref_attr_name and same(attribute_value(a), attribute_default(node.op, opset, name)))
        for name, a in node.attributes.items()
    )


def value_equals(value: Value, literal: object) -> bool:
    """Whether the constant is exactly this number (1 + 1e-6 is not 1), or within the tolerance of an About."""
    _, dims = value.constant_type()
    if any(d != 1 for d in dims):
        return False
    element = value.array.reshape(-1)[0]
    if isinstance(literal, About):
        return element_kind(value.array) not in "Sb" and literal(float(element))
    if isinstance(literal, bool) or element_kind(value.array) == "b":
        return isinstance(literal, bool) and element_kind(value.array) == "b" and bool(element) == literal
    return element_kind(value.array) != "S" and bool(element == literal)


def _refusal(b: Bindings) -> str | None:
    """Return why a structural match may not be rewritten, or None; cheap conditions first."""
    (root, _), *others = b.covered
    graph = root.graph
    assert graph is not None
    model = graph.model
    if model.functions and graph.root.is_function and any(node.has_references for node, _ in b.covered):
        return "an attribute is a reference, its value unknown inside the function"
    if model.functions or "" not in model.opsets or model.opsets[""] < 7:  # `Scope.opset` would cost more than the rest
        if graph.opset() < 7 and any("broadcast" in node.attributes for node, _ in b.covered):
            return "an attribute says which axes broadcast, before opset 7"
    for name in b.constants:
        value = b.values[name]
        if value is not None and not value.constant:
            return f"{name} is not constant" + (f": {stored}" if (stored := kind_of_initializer(value)) else "")
    if others:
        nodes = {node for node, _ in b.covered}
        for node, p in others:
            if not p.shared and node not in b.roots and (why := _read_outside(node, graph, nodes)):
                return why
    for node, literal in b.literals:
        if _may_raise_rank(literal, node):
            return "the constant may raise the rank of the result"
    return None


def _read_outside(node: Node, graph: Graph, nodes: set[Node]) -> str:
    """Return why a matched node must stay: another scope than `graph`, a reader outside of `nodes`; else empty."""
    if node.graph is not graph:
        return f"{node.op} is in another scope"
    for output in node.results:
        if output.output_count:
            return f"{node.op} output is a graph output"
        if not nodes.issuperset(output.users):
            return f"{node.op} output used elsewhere"
    return ""


def _may_raise_rank(literal: Value, node: Node) -> bool:
    """Whether the constant operand may have a higher rank than all other operands."""
    _, dims = literal.constant_type()
    others = [rank(v) or 0 for v in node.operands if v is not literal]
    return bool(dims) and max(others, default=0) < len(dims)
