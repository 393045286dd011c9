"""Matches patterns at an anchor node; a decision tree selects the rules to try."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from onnxopt.analysis.constants import kind_of_initializer
from onnxopt.analysis.types import rank
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.schema import attribute_default
from onnxopt.graph.value import Value
from onnxopt.proto.element_types import element_kind, is_float
from onnxopt.proto.messages import attribute_value, element_type
from onnxopt.rewriting.pattern import About, Call, Const, Either, Form, Literal, Pattern, Var
from onnxopt.rewriting.rule import Rule, canonical_operands

_KEPT: Final = 256  # a few for each pass: bisection runs a pass with many subsets of rules
_MAX_TRIED: Final = 4  # patterns of a rule that are tried one by one, without `may_match`


class _Question:
    """A decision on input `index` of the anchor: a result of one of `ops`, or a constant?

    Most patterns fail here, and most anchors give equal answers, so the remaining rules are cached by answer. Until
    then forms suffice, and patterns need not be expanded.
    """

    __slots__ = ("answers", "index", "left", "ops")

    def __init__(self, index: int, left: Sequence[tuple[Rule, Sequence[Form]]]) -> None:
        self.index, self.left = index, left
        asked = (ops for _, forms in left for form in forms for i, ops in form if i == index)
        self.ops = frozenset(op for ops in asked for op in ops)
        self.answers: dict[Hashable, _Question | Candidates] = {}

    def answer(self, kind: Hashable, node: Node) -> _Question | Candidates:
        """Return the remaining rules for this kind of input, the kind found at `node`."""
        index = self.index
        fitting = [
            (rule, [form for form in forms if all(i != index or _reads(node, i, ops) for i, ops in form)])
            for rule, forms in self.left
        ]
        self.answers[kind] = found = _ask([(rule, forms) for rule, forms in fitting if forms], index + 1, node)
        return found


def _ask(left: Sequence[tuple[Rule, Sequence[Form]]], first: int, node: Node) -> _Question | Candidates:
    """Return the next question that separates these rules, on input `first` or later; if none, the rules with the
    patterns whose form matches at `node`."""
    asked = [i for _, forms in left for form in forms for i, _ in form if i >= first]
    if asked:
        return _Question(min(asked), left)
    return [(rule, Variants(rule) if rule.variants > _MAX_TRIED else _plain(rule, node)) for rule, _ in left]


def _plain(rule: Rule, node: Node) -> list[Call]:
    return [p for p in rule.at(node._op) if _has_form(node, p.form)]


class Variants:
    """The plain patterns of a rule with many, expanded at the first node where one may match.

    Nearly all nodes fit none, for the same reason.
    """

    __slots__ = ("_plain", "_rule")

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._plain: list[Call] | None = None

    def at(self, node: Node) -> Sequence[Call]:
        """Return the patterns to try at a node of the same form."""
        if not any(may_match(c, node) for c in self._rule.roots):
            return ()
        if self._plain is None:
            self._plain = _plain(self._rule, node)
        return self._plain


Candidates = Sequence[tuple[Rule, list[Call] | Variants]]


def _has_form(node: Node, form: Form) -> bool:
    return all(_reads(node, index, ops) for index, ops in form)


def _reads(node: Node, index: int, ops: tuple[str, ...]) -> bool:
    """Whether input `index` is a result of one of `ops`, or a constant if `ops` is empty."""
    if index >= len(node.inputs):  # may be an attribute in this opset
        return True
    v = node.inputs[index]
    return v is not None and (v.producer is not None and v.producer._op in ops if ops else v.constant)


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
        self._left: dict[str, _Question | Candidates] = {}  # by operator

    def candidates(self, node: Node) -> Candidates:
        """Return the rules, in order, with the patterns whose form matches at `node`."""
        op, inputs = node._op, node.inputs
        left = self._left.get(op)
        if left is None:
            # The operator may be missing if a rule changed it, against the contract.
            left = self._left[op] = _ask([(rule, rule.forms(op)) for rule in self.by_anchor.get(op, ())], 0, node)
        while isinstance(left, _Question):
            kind: Hashable = ""  # absent
            if left.index < len(inputs):
                v = inputs[left.index]
                if v is None:
                    kind = None
                elif (maker := v.producer) is not None and maker._op in left.ops:
                    kind = (maker._op,) if v.constant else maker._op
                else:
                    kind = v.constant
            following = left.answers.get(kind)
            left = left.answer(kind, node) if following is None else following
        return left


@lru_cache(_KEPT)
def rule_set(rules: tuple[Rule, ...]) -> RuleSet:
    """Return the cached rule set, shared between rounds and models."""
    return RuleSet(rules)


# -- a pattern at an anchor ---------------------------------------------------------------------------------------


def may_match(p: Call, node: Node) -> bool:
    """Whether a plain pattern of `p` may match at `node`, by operators and constants, without names and attributes."""
    if node._op not in p.ops:
        return False
    inputs, patterns = node.inputs, p.inputs
    if len(inputs) < len(patterns):
        return True  # operands may be attributes in this opset
    if len(inputs) > len(patterns) and not p.variadic:
        return False
    return _may_be(patterns, inputs) or (p.commutes and _may_be(patterns[::-1], inputs))


def _may_be(patterns: Sequence[Pattern], values: Sequence[Value | None]) -> bool:
    for p, v in zip(patterns, values):
        if isinstance(p, Either):
            if not any(_may_be((choice,), (v,)) for choice in p.choices):
                return False
        elif isinstance(p, Call):
            if v is None or v.producer is None or not may_match(p, v.producer):
                return False
        elif isinstance(p, (Const, Var)):
            if v is None and not p.optional:
                return False
        elif (v is None or not v.constant) if p is not None else v is not None:
            return False
    return True


class Bindings:
    """Result of a match: values by name, nodes by name, and every covered node (anchor first)."""

    __slots__ = ("constants", "covered", "literals", "nodes", "roots", "values")

    def __init__(self, constants: Sequence[str] = ()) -> None:
        self.values: dict[str, Value | None] = {}
        self.constants = constants  # names in `values` required to be constant
        self.nodes: dict[str, Node] = {}
        self.covered: list[tuple[Node, Call]] = []
        self.literals: list[tuple[Node, Value]] = []
        self.roots: tuple[Node, ...] = ()  # for several results; root outputs may be used elsewhere

    def copy(self) -> Bindings:
        made = Bindings(self.constants)
        made.values, made.nodes = dict(self.values), dict(self.nodes)
        made.covered, made.literals = list(self.covered), list(self.literals)
        return made


def match(pattern: Call, anchor: Node) -> Bindings | str | None:
    """Return Bindings; None if the structure differs; a reason if only a condition fails."""
    if pattern.reads and not reads_one_of(pattern.reads, anchor.inputs):
        return None  # at most anchors
    b = Bindings(pattern.constants)
    if not _match_node(pattern, anchor, b):
        return None
    return _refusal(b) or b


def match_roots(roots: Sequence[Call], anchor: Node) -> Bindings | str | None:
    """Like `match`, for a pattern with several results.

    `anchor` produces the first result; producers of the others are searched among readers of bound values in its scope.
    """
    b = Bindings(tuple(dict.fromkeys(name for root in roots for name in root.constants)))
    if not _match_node(roots[0], anchor, b) or not _one_to_one(b):
        return None
    found = _match_rest(roots[1:], b, (anchor,))
    if found is None:
        return None
    return _refusal(found) or found


def _match_rest(roots: Sequence[Call], b: Bindings, done: tuple[Node, ...]) -> Bindings | None:
    if not roots:
        b.roots = done
        return b
    for node in _candidates(roots[0], b):
        attempt = b.copy()
        if node.graph is done[0].graph and _match_node(roots[0], node, attempt) and _one_to_one(attempt):
            found = _match_rest(roots[1:], attempt, (*done, node))
            if found is not None:
                return found
    return None


def _one_to_one(b: Bindings) -> bool:
    """Whether each call of the pattern is matched by a different node."""
    return len({node for node, _ in b.covered}) == len(b.covered)


def _candidates(p: Call, b: Bindings) -> list[Node]:
    """Return the possible nodes for `p`: the bound node, or readers of bound values."""
    if p.name in b.nodes:
        return [b.nodes[p.name]]
    for q in p.inputs:
        values: list[Value | None] = []
        if isinstance(q, (Var, Const)):
            values = [b.values.get(q.name)]
        elif isinstance(q, Call):
            values = [n.outputs[q.output] for n in _candidates(q, b) if q.output < len(n.outputs)]
        users = dict.fromkeys(user for v in values if v is not None for user in v.users if user.op in p.ops)
        if users:
            return list(users)
    return []


def _match_node(p: Call, node: Node, b: Bindings) -> bool:
    if node._op not in p.ops:  # hottest test: the property would double its cost
        return False
    if p.name is not None and p.name in b.nodes:
        return b.nodes[p.name] is node
    inputs, patterns = node.inputs, p.inputs
    count, wanted = len(inputs), len(patterns)
    if count < wanted:
        inputs = canonical_operands(node)
        count = len(inputs)
    if count > wanted and not p.variadic:
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
    values = b.values
    for i, q in enumerate(patterns):
        v = inputs[i] if i < count else None
        if isinstance(q, Var):  # inlined: most operands are Var or Const
            if v is None:
                if not q.optional or q.constant is not None:
                    return False
            elif q.constant is not None and (v.constant is not q.constant or (q.when is not None and not q.when(v))):
                return False
            if values.setdefault(q.name, v) is not v:
                return False
        elif isinstance(q, Const):
            if (v is None and not q.optional) or values.setdefault(q.name, v) is not v:
                return False
        elif not _match_value(q, v, node, b):
            return False
    return True


def _match_value(p: Pattern, value: Value | None, user: Node, b: Bindings) -> bool:
    """Match a pattern other than Var and Const."""
    if isinstance(p, Call):
        if value is None or value.producer is None or value.index != p.output:
            return False
        return _match_node(p, value.producer, b)
    if p is None:
        return value is None
    if value is None or not value.constant:
        return False
    if isinstance(p, Literal):
        same_type = value.constant_type() == (element_type(p.array), p.array.shape)
        return same_type and holds(value, p)
    if not value_equals(value, p):
        return False
    b.literals.append((user, value))
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
    """Whether a constant of the literal's type and shape has its elements."""
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
    graph = b.covered[0][0].scope
    if graph.model.functions and graph.root.is_function and any(node.has_references for node, _ in b.covered):
        return "an attribute is a reference, its value unknown inside the function"
    if graph.opset() < 7 and any("broadcast" in node.attributes for node, _ in b.covered):
        return "an attribute says which axes broadcast, before opset 7"
    for name in b.constants:
        value = b.values[name]
        if value is not None and not value.constant:
            return f"{name} is not constant" + (f": {stored}" if (stored := kind_of_initializer(value)) else "")
    if len(b.covered) > 1:
        nodes = {node for node, _ in b.covered}
        for node, p in b.covered[1:]:
            if not p.shared and node not in b.roots and (why := _read_outside(node, graph, nodes)):
                return why
    if any(_may_raise_rank(literal, node) for node, literal in b.literals):
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
