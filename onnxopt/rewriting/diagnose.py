"""Explains why a rule does or does not fire at a node, and finds names in patterns that no model can have."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, Final

import numpy as np
import onnx

from onnxopt.analysis.constants import kind_of_initializer
from onnxopt.errors import OnnxOptError, UsageError, any_of, few, is_no_fault, nearest
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.schema import operators_of, signature
from onnxopt.graph.text import type_text
from onnxopt.graph.value import Value
from onnxopt.plaintext import counted
from onnxopt.proto.messages import qualified
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.matcher import (
    Bindings,
    Path,
    attribute_fits,
    has_defaults,
    holds,
    match,
    paths,
    possible_orders,
    reads_one_of,
)
from onnxopt.rewriting.matcher import value_equals as equals
from onnxopt.rewriting.pattern import Call, Const, Either, Literal, Pattern, Var, shown, text, walk
from onnxopt.rewriting.replace import check_replacement
from onnxopt.rewriting.rule import Declined, Rule, canonical_operands, failure

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
    """Compare `rule` with the graph at `anchor`, changing nothing; returns the best diagnosis of all choices.

    `options`: the pass of the rule.
    """
    roots = [root for root in rule.roots if anchor.op in root.ops]
    found = [_diagnosis(rule, anchor, options, _Walk(root, anchor, path)) for root in roots for path in paths()]
    told = f"starts at {any_of(sorted(rule.anchors))}"
    return max(found, key=lambda d: d.nearness, default=Diagnosis(rule, anchor, reason=told))


def _diagnosis(rule: Rule, anchor: Node, options: Any, walk: _Walk) -> Diagnosis:
    if walk.fits:
        reason = _guards(rule, anchor, options, walk)
    else:
        cross = next(line for line in walk.lines if line.ok is False)
        reason = f"{cross.pattern}: {cross.note}"
    return Diagnosis(rule, anchor, walk.lines, reason, walk.fits, walk.reached)


def near(rule: Rule, node: Node) -> list[Node]:
    """Return the possible anchors of `rule` for matches that contain `node`: the node or downstream readers."""
    found, level = {}, [node]
    for _ in range(rule.depth):
        found.update(dict.fromkeys(n for n in level if n.op in rule.anchors))
        level = list(dict.fromkeys(u for n in level for v in n.results for u in v.users))
    return list(found)


def _guards(rule: Rule, anchor: Node, options: Any, walk: _Walk) -> str:
    """Return the reason given by the matcher's conditions or the rule's guards; empty if the rule fires."""
    b = walk.matched
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
    """Matches like the matcher, along the same path, and records each comparison. `matched`: the matcher's result."""

    def __init__(self, root: Call, anchor: Node, path: Path) -> None:
        self.matched = match((root,), anchor, path)
        self.lines: list[Line] = []
        self.bound = Bindings(path)
        self.inner: list[tuple[Line, Node, Call]] = []
        self.covered: set[Node] = set()
        self.reached = 0
        self.fits = self.node(root, anchor, 0)

    def node(self, p: Call, node: Node, depth: int) -> bool:
        line = Line(depth, True, _called(p), _describe(node))
        self.lines.append(line)
        self.reached += node.op in p.ops
        line.note = self._objection(p, node)
        if line.note:
            line.ok = False
            self.skip(p.inputs, depth + 1)
            return False
        self.covered.add(node)
        if depth:
            self.inner.append((line, node, p))
        if p.name is not None:
            self.bound.nodes[p.name] = node
        inputs = canonical_operands(node) if len(node.inputs) < len(p.inputs) else node.inputs
        orders = possible_orders(p, inputs) or p.orders
        patterns = orders[self.bound.choose(len(orders))] if len(orders) > 1 else orders[0]
        for i, q in enumerate(patterns):
            if not self.value(q, inputs[i] if i < len(inputs) else None, depth + 1):
                self.skip(patterns[i + 1 :], depth + 1)
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
        if isinstance(p, Either):
            p = p.choices[self.bound.choose(len(p.choices))]
        if isinstance(p, Call):
            if value is not None and value.producer is not None and value.index == p.output:
                return self.node(p, value.producer, depth)
            note = "absent" if value is None else _kind(value)
            self.lines.append(Line(depth, False, _called(p), _operand(value), note))
            self.skip(p.inputs, depth + 1)
            return False
        line = Line(depth, True, text(p), _operand(value))
        self.lines.append(line)
        line.note = self._bind(p, value) if isinstance(p, (Var, Const)) else _mismatch(p, value)
        line.ok = not line.note
        return line.ok

    def _bind(self, p: Var | Const, value: Value | None) -> str:
        """Bind a value to a name. Returns the mismatch, or an empty string."""
        first = self.bound.values.get(p.name, value)
        self.bound.values[p.name] = value
        if value is None and not p.optional:
            return "absent"
        if first is not value:
            return f"`{p.name}` is {first} already"
        if isinstance(p, Const) and value is not None and not value.constant:
            return f"not constant: {_kind(value)}"
        if isinstance(p, Var) and p.constant is not None and value is not None:
            if value.constant is not p.constant:
                return f"not constant: {_kind(value)}" if p.constant else "constant"
            return "another constant" if p.when is not None and not p.when(value) else ""
        return ""

    def skip(self, patterns: Sequence[Pattern], depth: int) -> None:
        self.lines += [Line(depth, None, text(q)) for q in patterns]

    def mark_uses(self) -> None:
        """Mark inner results with readers outside the match, and name the readers."""
        for line, node, p in self.inner:
            if p.shared:
                continue
            for v in node.results:
                outside = [u for u in v.users if u not in self.covered]
                if outside or v.is_output:
                    said = ["also read by " + ", ".join(map(repr, outside[:3]))] if outside else []
                    said += ["also a graph output"] if v.is_output else []
                    line.ok, line.note = False, ", ".join(said)


def _mismatch(p: Pattern, value: Value | None) -> str:
    """Return the mismatch of a value and a number, Literal or absent input; empty if there is none."""
    if p is None:
        return "" if value is None else "present"
    if value is None or not value.constant:
        return "absent" if value is None else f"not constant: {_kind(value)}"
    if isinstance(p, Literal):
        return "" if holds(value, p) else "another constant"
    if equals(value, p):
        return ""
    dims = value.constant_type()[1]
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


# -- names that never match ---------------------------------------------------------------------------------------

_Schemas = Mapping[str, Sequence[onnx.defs.OpSchema]]
_DOMAIN_HINT = "other domains are written: com.microsoft.Gelu(x)"


def refuse_unknown(patterns: Iterable[Pattern], model: Model) -> None:
    """Raise UsageError for operators, and attributes of standard operators, found neither in the standard nor in the
    model.

    Only domains with schemas are checked.
    """
    calls = [c for p in patterns for c in _calls(p) if not _is_current(c)]
    standard = _standard() if calls else {}
    for call in calls:
        for what, hint in _unknown(call, standard, model):
            raise UsageError(what, hint)


def warn_of_unknown(rule: Rule) -> None:
    """Emit a UserWarning at the rule's source line for names missing from the standard.

    Only a warning: a model may contain operators removed from the standard, or added by an exporter.
    """
    calls = [c for c in _calls(rule.source) if not _is_current(c)]
    standard = _standard() if calls else {}
    code = rule.apply.__code__
    for what, hint in dict.fromkeys(said for c in calls for said in _unknown(c, standard, None)):
        text = f"rule {rule.name} may never match: {what}; {hint}"
        warnings.warn_explicit(text, UserWarning, code.co_filename, code.co_firstlineno)


@cache
def _standard() -> _Schemas:
    """Return every version of every operator schema."""
    standard: dict[str, list[onnx.defs.OpSchema]] = {}
    for s in onnx.defs.get_all_schemas_with_history():
        standard.setdefault(qualified(s.name, s.domain), []).append(s)
    return standard


def _calls(pattern: Pattern) -> Iterator[Call]:
    for p in walk(pattern):
        if isinstance(p, Call):
            yield p
            if p.reads:
                yield Call(tuple(sorted(p.reads)), (), variadic=True)


def _is_current(call: Call) -> bool:
    """Whether the newest standard has all names of the call, so that no lookup is needed."""
    newest = onnx.defs.onnx_opset_version()
    known = [signature(op, newest) if "::" not in op else None for op in call.ops]
    return all(
        s is not None and _takes(call, *s.inputs) and all(name in s.attributes for name, _ in call.attributes)
        for s in known
    )


def _takes(call: Call, least: int, most: int) -> bool:
    """Whether an operator with `least` to `most` inputs can have the pattern's inputs."""
    needed = max((i + 1 for i, p in enumerate(call.inputs) if not getattr(p, "optional", p is None)), default=0)
    return needed <= most and (call.variadic or least <= len(call.inputs))


def _unknown(call: Call, standard: _Schemas, model: Model | None) -> Iterator[tuple[str, str]]:
    """Yield (message, hint) for each name missing from both the standard and the model."""
    scopes = list(model.scopes()) if model is not None else []
    nodes = {op: [n for g in scopes for n in g.by_op.get(op, ())] for op in call.ops}
    yield from _unknown_operators([op for op in call.ops if op not in standard and not nodes[op]], model)
    if not all(op in standard for op in call.ops):  # an operator without schema
        return
    versions = [s for op in call.ops for s in standard[op]]
    if model is None:
        yield from _unknown_inputs(call, versions)
    yield from _unknown_attributes(call, [*versions, *chain(*nodes.values())])


def _unknown_attributes(call: Call, holders: Sequence[onnx.defs.OpSchema | Node]) -> Iterator[tuple[str, str]]:
    has = sorted({name for holder in holders for name in holder.attributes})
    for name, _ in call.attributes:
        if name not in has:
            hint = nearest(name, has, f"it has {few(has, 9)}" if has else "it has none")
            yield f"{any_of(call.ops)} has no attribute {name!r}", hint


def _unknown_inputs(call: Call, versions: Sequence[onnx.defs.OpSchema]) -> Iterator[tuple[str, str]]:
    """Yield (message, hint) for a number of inputs that no version of the operators has."""
    if not any(_takes(call, s.min_input, s.max_input) for s in versions):
        operands = f"{call.ops[0]}({', '.join(p.name for p in versions[0].inputs)})"
        yield (
            f"{any_of(call.ops)} does not have {counted(len(call.inputs), 'input')}",
            f"it is {operands}; `...` allows more than are written, `.opt()` fewer",
        )


def _unknown_operators(ops: Iterable[str], model: Model | None) -> Iterator[tuple[str, str]]:
    """Yield (message, hint) for operators missing from the standard, of domains with schemas."""
    who = "neither the standard nor the model has" if model is not None else "the standard does not have"
    for op in ops:
        if known := operators_of(op.rpartition("::")[0]):
            every = {*known, *(n.op for n in model.nodes())} if model is not None else known
            yield f"{who} an operator {op!r}", nearest(op, every, _DOMAIN_HINT)
