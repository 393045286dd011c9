"""Match one plain pattern at one anchor node.

Structure first: operators, arity, attributes, repeated names. Only when all of that holds, the conditions that
deserve a reason: inner nodes used elsewhere, operands that are not constant, literals that change a shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxopt.analysis.types import rank
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.rewrite.pattern import Call, Const, Pattern, Var


@dataclass(slots=True)
class Bindings:
    """What a successful match bound: values by name, nodes by name, and every node it covers (anchor first)."""

    values: dict[str, Value | None] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    nodes: dict[str, Node] = field(default_factory=dict)
    covered: list[tuple[Node, Call]] = field(default_factory=list)
    literals: list[tuple[Node, Value]] = field(default_factory=list)


def match(pattern: Call, anchor: Node) -> Bindings | str | None:
    """Bindings; None if the structure differs; a reason if only a condition on it does not hold."""
    b = Bindings()
    if not _match_node(pattern, anchor, b):
        return None
    return _refusal(b) or b


def _match_node(p: Call, node: Node, b: Bindings) -> bool:
    if node.op not in p.ops:
        return False
    inputs, patterns = node.inputs, p.inputs
    if len(inputs) > len(patterns) and not p.variadic:
        return False
    for name, expected in p.attributes:
        actual = node.attr(name)
        if not (expected(actual) if callable(expected) else actual == expected):
            return False
    b.covered.append((node, p))
    if p.name is not None:
        b.nodes[p.name] = node
    count = len(inputs)
    for i, q in enumerate(patterns):
        if not _match_value(q, inputs[i] if i < count else None, node, b):
            return False
    return True


def _match_value(p: Pattern, value: Value | None, user: Node, b: Bindings) -> bool:
    if isinstance(p, Call):
        if value is None or value.producer is None or value.index != p.output:
            return False
        return _match_node(p, value.producer, b)
    if isinstance(p, (Var, Const)):
        if value is None and not p.optional:
            return False
        if p.name in b.values:
            return b.values[p.name] is value
        b.values[p.name] = value
        if isinstance(p, Const):
            b.constants.add(p.name)
        return True
    if value is None or not value.constant or not _equals(value, p):
        return False
    b.literals.append((user, value))
    return True


def _equals(value: Value, literal: object) -> bool:
    """Is the constant exactly this one number? 1 + 1e-6 is not 1."""
    _, dims = value.constant_type()
    if any(d != 1 for d in dims):
        return False
    element = value.array.reshape(-1)[0]
    if isinstance(literal, bool) or value.array.dtype.kind == "b":
        return isinstance(literal, bool) and value.array.dtype.kind == "b" and bool(element) == literal
    return value.array.dtype.kind not in "OUS" and bool(element == literal)


def _refusal(b: Bindings) -> str | None:
    """Why a structure that matches may not be rewritten; checked from the cheap to the costly."""
    anchor = b.covered[0][0]
    if any(node.has_references for node, _ in b.covered):
        return "an attribute is a reference, its value unknown inside the function"
    for name in b.constants:
        value = b.values[name]
        if value is not None and not value.constant:
            return f"{name} is not constant"
    if len(b.covered) > 1:
        nodes = {node for node, _ in b.covered}
        for node, p in b.covered[1:]:
            if p.shared:
                continue
            if node.graph is not anchor.graph:
                return f"{node.op} is in another scope"
            for output in node.outputs:
                if output is None:
                    continue
                if output.is_output:
                    return f"{node.op} output is a graph output"
                if any(user not in nodes for user in output.users):
                    return f"{node.op} output used elsewhere"
    for node, literal in b.literals:
        _, dims = literal.constant_type()
        others = [v for v in node.inputs if v is not None and v is not literal]
        if dims and not any((r := rank(v)) is not None and r >= len(dims) for v in others):
            return "the constant may raise the rank of the result"
    return None
