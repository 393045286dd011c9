"""Explains why a rule does or does not fire at a node: the pattern as a tree, compared with the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from onnxopt.errors import OnnxOptError, any_of, is_no_fault
from onnxopt.graph.node import Node
from onnxopt.graph.text import type_text
from onnxopt.graph.value import Value
from onnxopt.proto.messages import element_type
from onnxopt.rewriting.forms import operands
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.matcher import (
    Bindings,
    attribute_fits,
    has_defaults,
    holds,
    kind_of_initializer,
    match,
    reads_one_of,
)
from onnxopt.rewriting.matcher import value_equals as equals
from onnxopt.rewriting.pattern import Call, Const, Literal, Pattern, Var, shown, text
from onnxopt.rewriting.replace import check_replacement
from onnxopt.rewriting.rule import Declined, Rule, failure

_MAX_NAMED: Final = 4  # operators listed by name


@dataclass
class Line:
    """A node of a pattern: `pattern` is the expected form, `found` the actual one, `note` the mismatch.

    `ok` is None if not examined, since a node above did not match.
    """

    depth: int
    ok: bool | None
    pattern: str
    found: str = ""
    note: str = ""

    def __str__(self) -> str:
        mark = {True: "✓", False: "✗", None: "·"}[self.ok]
        parts = [f"{'  ' * self.depth}{mark} {self.pattern}", self.found, f"({self.note})" if self.note else ""]
        return "  ".join(p for p in parts if p)


@dataclass
class Diagnosis:
    """The result of trying a rule at a node. `reason` is empty if the rule fires.

    `matched`: the pattern fits and a guard decided. `reached`: number of operators of the pattern found in place.
    """

    rule: Rule
    anchor: Node
    lines: list[Line] = field(default_factory=list)
    reason: str = ""
    matched: bool = False
    reached: int = 0

    @property
    def fires(self) -> bool:
        return not self.reason

    @property
    def nearness(self) -> tuple[bool, bool, int, int]:
        """Sort key, greater for fewer mismatches. Operators count more than operands: any value fits a variable."""
        return self.fires, self.matched, self.reached, sum(line.ok is True for line in self.lines)


def diagnose(rule: Rule, anchor: Node, options: Any = None) -> Diagnosis:
    """Compare `rule` with the graph at `anchor`, changing nothing; returns the best diagnosis of all variants.

    `options`: the pass of the rule.
    """
    best: Diagnosis | None = None
    for pattern in rule.patterns:
        if anchor.op not in pattern.ops:
            continue
        walk = _Walk()
        fits = walk.node(pattern, anchor, 0)
        found = Diagnosis(rule, anchor, walk.lines, matched=fits, reached=walk.reached)
        if fits:
            found.reason = _guards(rule, pattern, anchor, options, walk)
        else:
            cross = next(line for line in walk.lines if line.ok is False)
            found.reason = f"{cross.pattern}: {cross.note}"
        if best is None or found.nearness > best.nearness:
            best = found
    return best or Diagnosis(rule, anchor, reason=f"starts at {any_of(sorted(rule.anchors))}")


def near(rule: Rule, node: Node) -> list[Node]:
    """Return the possible anchors of `rule` for matches that contain `node`: the node or downstream readers."""
    found, level = {}, [node]
    for _ in range(rule.depth):
        found.update(dict.fromkeys(n for n in level if n.op in rule.anchors))
        level = list(dict.fromkeys(u for n in level for v in n.outputs if v is not None for u in v.users))
    return list(found)


def _guards(rule: Rule, pattern: Call, anchor: Node, options: Any, walk: _Walk) -> str:
    """Return the reason given by the matcher's conditions or the rule's guards; empty if the rule fires."""
    b = match(pattern, anchor)
    if b is None:
        return "the same node twice"
    if isinstance(b, str):
        walk.mark_uses()
        return b
    m = Match(b, anchor, options)
    try:
        with np.errstate(all="ignore"):  # as in the driver
            check_replacement(m, rule(m, **m.arguments()))
    except Declined as e:
        return str(e) or "there is nothing to do"
    except OnnxOptError:
        raise
    except BaseException as e:
        if is_no_fault(e):
            raise
        raise failure(rule, m, e) from e
    return ""


class _Walk:
    """Matches like the matcher, and records each comparison."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.bound = Bindings()
        self.inner: list[tuple[Line, Node, Call]] = []
        self.covered: set[Node] = set()
        self.reached = 0

    def node(self, p: Call, node: Node, depth: int) -> bool:
        line = Line(depth, True, _called(p), _describe(node))
        self.lines.append(line)
        self.reached += node.op in p.ops
        line.note = self._objection(p, node)
        if line.note:
            line.ok = False
            self.skip(p, depth + 1)
            return False
        self.covered.add(node)
        if depth:
            self.inner.append((line, node, p))
        if p.name is not None:
            self.bound.nodes[p.name] = node
        inputs = operands(node) if len(node.inputs) < len(p.inputs) else node.inputs
        for i, q in enumerate(p.inputs):
            if not self.value(q, inputs[i] if i < len(inputs) else None, depth + 1):
                for rest in p.inputs[i + 1 :]:
                    self.lines.append(Line(depth + 1, None, text(rest)))
                return False
        return True

    def _objection(self, p: Call, node: Node) -> str:
        if node.op not in p.ops:
            return f"it is {node.op}"
        if p.name is not None and self.bound.nodes.get(p.name, node) is not node:
            return "another node than before"
        if len(node.inputs) > len(p.inputs) and not p.variadic:
            return f"{len(node.inputs)} inputs, the pattern has {len(p.inputs)}"
        if p.reads and not reads_one_of(p.reads, node.inputs):
            return f"reads no result of {any_of(sorted(p.reads))}"
        for name, expected in p.attributes:
            actual = node.attr(name)
            if not attribute_fits(expected, actual):
                return f"{name} is {shown(actual)}"
        if p.exact and not has_defaults(node, p):
            return "an attribute is not at its default"
        return ""

    def value(self, p: Pattern, value: Value | None, depth: int) -> bool:
        if isinstance(p, Call):
            if value is not None and value.producer is not None and value.index == p.output:
                return self.node(p, value.producer, depth)
            note = "absent" if value is None else _kind(value)
            self.lines.append(Line(depth, False, _called(p), _operand(value), note))
            self.skip(p, depth + 1)
            return False
        line = Line(depth, True, text(p), _operand(value))
        self.lines.append(line)
        if isinstance(p, (Var, Const)):
            first = self.bound.values.get(p.name, value)
            if value is None and not p.optional:
                line.note = "absent"
            elif first is not value:
                line.note = f"`{p.name}` is {first} already"
            elif isinstance(p, Const) and value is not None and not value.constant:
                line.note = f"not constant: {_kind(value)}"
            self.bound.values[p.name] = value
        elif p is None:
            line.note = "" if value is None else "present"
        elif value is None or not value.constant:
            line.note = "absent" if value is None else f"not constant: {_kind(value)}"
        elif isinstance(p, Literal):
            same_type = value.constant_type() == (element_type(p.array), p.array.shape)
            line.note = "" if same_type and holds(value, p) else "another constant"
        else:
            line.note = "" if equals(value, p) else _other(value)
        line.ok = not line.note
        return line.ok

    def skip(self, p: Call, depth: int) -> None:
        self.lines += [Line(depth, None, text(q)) for q in p.inputs]

    def mark_uses(self) -> None:
        """Mark inner results with readers outside the match, and name the readers."""
        for line, node, p in self.inner:
            if p.shared:
                continue
            for v in node.outputs:
                if v is None:
                    continue
                outside = [u for u in v.users if u not in self.covered]
                if outside or v.is_output:
                    said = ["also read by " + ", ".join(map(repr, outside[:3]))] if outside else []
                    said += ["also a graph output"] if v.is_output else []
                    line.ok, line.note = False, ", ".join(said)


def _other(value: Value) -> str:
    """Return the note for a constant that differs from the pattern's number."""
    _, dims = value.constant_type()
    return "another number" if all(d == 1 for d in dims) else f"not one number, but a tensor of shape {list(dims)}"


def _called(p: Call) -> str:
    """Return the operators of a call (the first few) and its attributes."""
    ops = "|".join(p.ops[:_MAX_NAMED]) + ("|…" if len(p.ops) > _MAX_NAMED else "")
    given = [f"{k}={shown(v)}" for k, v in p.attributes]
    return ops + (f" {{{', '.join(given)}}}" if given else "")


def _describe(node: Node) -> str:
    label = f' "{node.name}"' if node.name else ""
    return f"{node.op}{label} -> {', '.join('_' if v is None else v.name + type_text(v, ': ') for v in node.outputs)}"


def _operand(value: Value | None) -> str:
    return "absent" if value is None else value.name + type_text(value, ": ")


def _kind(value: Value) -> str:
    if value.constant:
        return "a constant"
    if value.producer is None:
        return kind_of_initializer(value) or "an input"
    return f"made by {value.producer.op}"  # the value's name is printed beside


def lines_of(d: Diagnosis) -> Iterator[str]:
    """Yield a diagnosis as lines of text."""
    graph = d.anchor.graph
    where = graph.path if graph is not None else ""
    yield f"{d.rule.name} at {_describe(d.anchor)} in {where}: {'fires' if d.fires else f'does not fire: {d.reason}'}"
    yield f"  {d.rule.equation}"
    for line in d.lines:
        yield f"  {line}"
    if d.matched and not d.fires and all(line.ok for line in d.lines):
        yield f"  ✗ {d.reason}"
