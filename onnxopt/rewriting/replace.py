"""Replaces values in a graph: by a rule's result, by an array, by the results of an inlined body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from onnx import NodeProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import REFUSED, divides_by_zero, is_refused, is_told_more
from onnxopt.errors import MistypedError
from onnxopt.graph.bindings import is_hidden
from onnxopt.graph.emission import contradiction, refusal
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.plaintext import an, counted
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array, make_node
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.rule import Declined

_UNNAMED: Final = "?"
_READS: Final = "it is gone then: let it read what the anchor reads"
_ITSELF: Final = "a rule makes something new, or returns what the anchor reads; m.skip() leaves it as it is"
_HIDDEN: Final = "in a body that reads it its name is that of an input or output"
_HINT: Final = "return a value for each output, or decline by m.require(condition, reason) or m.skip()"


Replacement: TypeAlias = "Value | tuple[Value | None, ...] | dict[Value, Value]"


def commit(m: Match, result: Replacement) -> None:
    """Replace the anchor by `result`, a value for each output, and remove dead nodes.

    A dict holds the replacements of values of several nodes, all behind the insertion point.

    A new node takes over the output's value: object, name, users and graph-output role. Raises Declined, before any
    change, if the interface would break or a runtime would reject the model.
    """
    carry_out(m, check(m, result))


def check(m: Match, result: Replacement) -> list[tuple[Value, Value]]:
    """Return the (old, new) values of a valid replacement; changes nothing. Raises the errors of `commit`."""
    pairs = check_replacement(m, result)
    _check_types(m, pairs)
    for old, new in pairs:
        if not old.constant and is_refused(old, new):
            raise Declined(REFUSED)
        if old.output_count and new.users and is_told_more(new, old):
            raise Declined(REFUSED)
        if m.graph.model.hiding and any(is_hidden(new, user.graph) for user in old.users if user.graph is not None):
            raise Declined(_HIDDEN)
    if divides_by_zero(m.graph, m.new_nodes):
        raise Declined(REFUSED)
    return pairs


def _check_types(m: Match, pairs: list[tuple[Value, Value]]) -> None:
    """Raise MistypedError if a result's known type differs from the replaced value's.

    In debug mode types are inferred, and sizes compared, too.
    """
    if m.graph.model.debug:
        types_of = types.foresee(m.new_nodes, [new for _, new in pairs])
    else:
        types_of = [(new.known_dtype, None) for _, new in pairs]
    first: dict[Value, Value] = {}  # result: the first value it replaces
    for (old, new), known in zip(pairs, types_of):
        if told := contradiction(old, *known) or contradiction(first.setdefault(new, old), old.known_dtype, None):
            raise refusal(m.graph, m.anchor, told, kind=MistypedError)


def carry_out(m: Match, pairs: list[tuple[Value, Value]]) -> None:
    """Apply the replacement to the graph: the mutating part of `commit`."""
    before = [n.inputs for n in (*(n for n, _ in m.bindings.covered), *m.bindings.roots)]
    _insert(m, pairs)
    _hand_over(m, pairs)
    _remove_replaced(m, before)
    if m.new_nodes:
        _name_apart(m)
    for lender in m.borrowed:
        if lender.graph is not None:  # still read, perhaps by the replacement: each node needs its own proto
            copy = NodeProto()
            copy.CopyFrom(lender.proto)
            lender.adopt(copy)


def insert(m: Match, made: Value, result: Value) -> None:
    """Insert the new nodes of a match without a replacement; the producer of `made` produces `result` instead."""
    assert made.producer is not None
    _insert(m, [(result, made)])
    m.graph.take_over(result, made.producer, made.index, removed=True)
    for node in m.new_nodes:
        _name_results(node, result.name, m.graph)
    _name_apart(m)


def _insert(m: Match, pairs: list[tuple[Value, Value]]) -> None:
    """Insert the rule's new nodes and constants; their results have no names yet."""
    graph = m.graph
    if m.new_constants:
        read = {v for n in m.new_nodes for v in n.inputs}
        read.update(new for _, new in pairs)
        for value, hint in m.new_constants.items():
            if value in read:  # otherwise an attribute holds it
                graph.attach_constant(value, hint, before=m.before)
    for node in m.new_nodes:
        for v in node.results:
            if not v.name:
                v.name = _UNNAMED
        graph.insert(node, m.before)


def _hand_over(m: Match, pairs: list[tuple[Value, Value]]) -> None:
    """Make readers of the old values read the new ones; name new values that take over no name."""
    graph, created = m.graph, set(m.new_nodes)
    now: dict[Value, Value] = {}  # new value: old value it has become
    for old, new in pairs:
        maker = new.producer
        if new in now or maker is None or maker not in created:
            if m.anchor.op == "Identity" and old.output_count and graph.needs_copy(new):
                old.redirect_readers(new)  # the Identity stays
            else:
                now[new] = old.replace_all_uses_with(now.get(new, new))
        else:
            now[new] = old
            if "::" in maker.op:
                types.shape(old)  # infer the shape before the non-standard operator hides it
            if new.users:
                new.redirect_readers(old)  # another new node may read it
            old.learn(new)
            graph.take_over(old, maker, new.index, removed=True)
    for node in m.new_nodes:
        _name_results(node, pairs[0][0].name if pairs else node.op, graph)


def _name_results(node: Node, base: str, graph: Graph) -> None:
    for v in node.results:
        if v.name == _UNNAMED:
            v.rename(graph.model.names.fresh(base, f"_{node.op}"))


def _remove_replaced(m: Match, before: Sequence[Sequence[Value | None]]) -> None:
    """Remove the matched nodes, nodes used only by them, and unread new nodes. `before`: inputs of the matched
    nodes."""
    roots = m.bindings.roots or (m.anchor,)
    for root in roots:
        if root.is_used:
            m.graph.model.mark(root)  # its result is a graph output that nothing else can produce
        elif root.graph is not None:
            m.graph.remove(root)
    if any(root.graph is None for root in roots):
        for inputs in before:
            for v in inputs:
                if v is not None and v.producer is not None and not v.users and not v.output_count:
                    remove_dead(v.producer)
    for node in m.new_nodes:
        remove_dead(node)


def _name_apart(m: Match) -> None:
    """Rename nodes of duplicate names, which runtimes reject.

    An existing node keeps its name, also if rebuilt; otherwise the last new node does.
    """
    made = [n for n in reversed(m.new_nodes) if n.graph is not None and n.name]
    if not made:
        return
    names = {n.name for n, _ in m.bindings.covered if n.graph is not None}
    if len(made) > 1:
        was = {n.name: n.op for n, _ in m.bindings.covered}
        made.sort(key=lambda n: was.get(n.name) != n.op)
    for node in made:
        if node.name in names:
            proto = NodeProto()
            proto.CopyFrom(node.proto)
            proto.name = m.graph.model.node_name(node.name, f"_{proto.op_type}")
            node.adopt(proto)
        names.add(node.name)


def check_replacement(m: Match, result: Replacement) -> list[tuple[Value, Value]]:
    """Return the (old, new) values of a replacement; changes nothing.

    Raises Declined if the interface would break, and EmissionError for an invalid replacement.
    """
    if isinstance(result, dict):
        m.results, result = [*result], tuple(result.values())
        m.bindings.roots = tuple(dict.fromkeys(n for v in m.results if (n := v.producer) is not None))
    results = result if isinstance(result, tuple) else (result,)
    wanted = len(m.anchor.outputs) if m.results is None else len(m.results)
    if not (isinstance(result, Value) and wanted) and not _fits(result, wanted):
        said = f"what replaces it is {_shown(result)}, not {counted(wanted, 'value')}"
        raise refusal(m.graph, m.anchor, said, hint=_HINT)
    pairs = _pairs(m, results)
    for old, new in pairs:
        if m.anchor.op == "Identity" and old.output_count and m.graph.needs_copy(new) and not old.users:
            raise Declined("a graph output is produced by a node")
    for old, new in pairs:
        _require_independent(m, old, new)
    return pairs


def _require_independent(m: Match, old: Value, new: Value) -> None:
    """Raise EmissionError if the new value is the old one, or made of the old one."""
    if new is old and m.results is None:
        raise refusal(m.graph, m.anchor, f"what replaces `{old.name}` is `{old.name}` itself", hint=_ITSELF)
    made = m.new_nodes.index(new.producer) if new.producer in m.new_nodes else -1
    if reader := next((node for node in m.new_nodes[: made + 1] if old in node.inputs), None):
        raise refusal(m.graph, m.anchor, f"what replaces it is made of its result, by {reader.op}", hint=_READS)


def _fits(result: object, wanted: int) -> bool:
    """Whether `result` is a tuple of values or None with no value beyond the `wanted` count."""
    if not isinstance(result, tuple):
        return False
    return all(v is None or (isinstance(v, Value) and i < wanted) for i, v in enumerate(result))


def _shown(result: object) -> str:
    if isinstance(result, tuple):
        odd = next((v for v in result if v is not None and not isinstance(v, Value)), None)
        return _shown(odd) if odd is not None else counted(len(result), "value")
    return "nothing" if result is None else an(type(result).__name__)


def _pairs_of_anchor(m: Match, results: tuple[Value | None, ...]) -> list[tuple[Value, Value]]:
    pairs: list[tuple[Value, Value]] = []
    for i, old in enumerate(m.anchor.outputs):
        if old is None or not (old.users or old.output_count):
            continue
        new = results[i] if i < len(results) else None
        if new is None:
            raise Declined(f"output {i} of {m.anchor.op} is used")
        pairs.append((old, new))
    return pairs


def _pairs(m: Match, results: tuple[Value | None, ...]) -> list[tuple[Value, Value]]:
    """Return the (old, new) values. Raises Declined if a used output has no replacement."""
    pairs: list[tuple[Value, Value]] = []
    if m.results is None:
        return _pairs_of_anchor(m, results)
    gone = set(m.bindings.roots)
    for root in m.bindings.roots:
        for i in root.used_outputs():
            v = root.outputs[i]
            if v not in m.results and (v is None or v.is_output or not gone.issuperset(v.users)):
                raise Declined(f"output {i} of {root.op} is used")
    for old, new in zip(m.results, results, strict=True):
        assert new is not None
        if old.is_used:
            pairs.append((old, new))
    return pairs


def bypass(graph: Graph, node: Node, x: Value) -> None:
    """Make readers of `node` read `x`, otherwise read only for its size, and remove `node`; a graph output keeps its
    name."""
    node.output.replace_all_uses_with(x)
    graph.remove(node)


def remove_dead(node: Node) -> int:
    """Remove `node` if unread and pure, then nodes used only by it. Iterative; returns the number removed."""
    removed = 0
    stack = [node]
    while stack:
        n = stack.pop()
        if n.graph is None or n.is_used or not n.graph.is_pure(n):
            continue
        reads = list(n.inputs)
        for body in n.bodies.values():
            for inner in body.walk():
                reads += inner.inputs
            reads += body.outputs
        n.graph.remove(n)
        removed += 1
        for v in reads:
            if v is not None and v.producer is not None and not v.users and not v.output_count:
                stack.append(v.producer)
    return removed


# -- an array in place of a producer ------------------------------------------------------------------------------


def hold(value: Value, array: Array) -> None:
    """Make a node's output an initializer with the data `array`, or the output of a Constant in scopes without
    initializers.

    Call `cannot_hold` before. The old producer stays, without the output.
    """
    graph, maker = value.graph, value.producer
    assert maker is not None
    if _is_initializer(value):
        value.array = array
        graph.add_initializer(value)
    else:
        constant = Node(make_node("Constant", "", "", {"value": array}), [], [])
        graph.insert(constant, maker)
        graph.take_over(value, constant)


def cannot_hold(value: Value, array: Array) -> str:
    """Return why no initializer or Constant can hold the array; empty if possible. Before opset 9 a Constant holds
    floats only."""
    opset = value.graph.opset()
    if _is_initializer(value) or opset >= 9 or (opset > 0 and is_float(array)):
        return ""
    told = "opset 9 has the first such" if opset else "the default domain is not imported"
    return f"the result would be a Constant, and {told}"


def _is_initializer(value: Value) -> bool:
    return value.graph is not None and value.graph.holds_initializers and not value.is_output


# -- the body of a control-flow node in place of the node ---------------------------------------------------------


def obstacle(graph: Graph, body: Graph) -> str:
    """Return why `body` cannot be inlined into `graph`, the scope of its owner; empty if possible."""
    if body.skipped:
        return "the body is marked to be left alone"
    if body.initializers and not graph.holds_initializers:
        return "the body has initializers, a function cannot"
    inner = (b for n in body.walk() for b in n.bodies.values())  # inlining renames what they hand on
    if len(body.proto.sparse_initializer) or any(v.graph is body for b in inner for v in b.outputs):
        return "a body inside hands out what is not its own, or is sparse"
    return ""


def misleads(pairs: Iterable[tuple[Value | None, Array | Value | None]]) -> bool:
    """Whether replacing each value by its partner may make onnxruntime reject a body that never runs."""
    return any(v is not None and r is not None and v.is_used and is_refused(v, r) for v, r in pairs)


def forward_results(graph: Graph, node: Node, results: Sequence[Value | None]) -> None:
    """Make readers of the outputs of `node` read `results`, and remove `node`.

    Results made in this scope take the outputs' names. An Identity is inserted for outer values, initializers and
    repeated results.
    """
    now: dict[Value, Value] = {}  # result: value to read instead
    for value, result in zip(list(node.outputs), results):
        if value is None or not value.is_used:
            continue
        assert result is not None
        if result in now or graph.needs_copy(result):
            now[result] = value.replace_all_uses_with(now.get(result, result))
            continue
        assert result.producer is not None
        result.redirect_readers(value)
        graph.take_over(value, result.producer, result.index)
        now[result] = value
    graph.remove(node)
