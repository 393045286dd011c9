"""Carry out one replacement: the only place where rules change the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onnx import NodeProto

from onnxopt.analysis import types
from onnxopt.analysis.refusal import REFUSED, divides_by_zero, is_refused, is_told_more
from onnxopt.errors import MistypedError
from onnxopt.graph.emission import contradiction, refusal
from onnxopt.graph.graph import Graph
from onnxopt.graph.hiding import is_hidden
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.plaintext import an, counted
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.rule import Declined

_UNNAMED: Final = "?"
_READS: Final = "it is gone then: let it read what the anchor reads"
_ITSELF: Final = "a rule makes something new, or returns what the anchor reads; m.skip() leaves it as it is"
_HIDDEN: Final = "in a body that reads it its name is that of an input or output"
_HINT: Final = "return a value for each output, or decline by m.require(condition, reason) or m.skip()"


def commit(m: Match, result: Value | tuple[Value | None, ...]) -> None:
    """Replace the anchor by `result`, one value per output; what became dead goes.

    A new node takes over the output's value: object, name, users and graph-output flag. Raises Declined, before
    any change, where an interface would break, and what would make runtimes refuse the model.
    """
    carry_out(m, check(m, result))


def check(m: Match, result: Value | tuple[Value | None, ...]) -> list[tuple[Value, Value]]:
    """The (old, new) values of a replacement that may be carried out; changes nothing. Raises what `commit` raises."""
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
    """Raise MistypedError for a result of another type than what it replaces, as far as they are known; in debug mode
    inference is asked, and sizes count, too."""
    if m.graph.model.debug:
        types_of = types.foresee(m.new_nodes, [new for _, new in pairs])
    else:
        types_of = [(new.known_dtype, None) for _, new in pairs]
    first: dict[Value, Value] = {}  # what a result replaces first
    for (old, new), known in zip(pairs, types_of):
        if told := contradiction(old, *known) or contradiction(first.setdefault(new, old), old.known_dtype, None):
            raise refusal(m.graph, m.anchor, told, kind=MistypedError)


def carry_out(m: Match, pairs: list[tuple[Value, Value]]) -> None:
    """The part of `commit` that changes the graph."""
    before = [n.inputs for n, _ in m.bindings.covered]
    _insert(m, pairs)
    _hand_over(m, pairs)
    _remove_replaced(m, before)
    if m.new_nodes:
        _name_apart(m)
    for lender in m.borrowed:
        if lender.graph is not None:  # something reads it still, the replacement perhaps: each needs its own proto
            copy = NodeProto()
            copy.CopyFrom(lender.proto)
            lender.adopt(copy)


def _insert(m: Match, pairs: list[tuple[Value, Value]]) -> None:
    """What the rule made is in the graph, its results without names."""
    graph = m.graph
    if m.new_constants:
        read = {v for n in m.new_nodes for v in n.inputs}
        read.update(new for _, new in pairs)
        for value, hint in m.new_constants.items():
            if value in read:  # else an attribute says it
                graph.attach_constant(value, hint, before=m.before)
    for node in m.new_nodes:
        for v in node.outputs:
            if v is not None and not v.name:
                v.name = _UNNAMED
        graph.insert(node, m.before)


def _hand_over(m: Match, pairs: list[tuple[Value, Value]]) -> None:
    """Who read the old values reads the new ones; those that take over no name get one."""
    graph, created = m.graph, set(m.new_nodes)
    now: dict[Value, Value] = {}  # what stands for a new value once it gave its place to an old one
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
                types.shape(old)  # as long as something tells
            if new.users:
                new.redirect_readers(old)  # a new node may read what another new node produces
            old.learn(new)
            graph.take_over(old, maker, new.index, removed=True)
    for node in m.new_nodes:
        for v in node.outputs:
            if v is not None and v.name == _UNNAMED:
                base = pairs[0][0].name if pairs else node.op
                v.rename(graph.model.names.fresh(base, f"_{node.op}"))


def _remove_replaced(m: Match, before: Sequence[Sequence[Value | None]]) -> None:
    """What the match stood for goes, with what only it kept alive, and what of the new nothing reads. `before`: what
    its nodes read."""
    for root in m.bindings.roots or (m.anchor,):
        if root.is_used:
            m.graph.model.mark(root)  # its result is an output of the graph, which nothing else can make
        elif root.graph is not None:
            m.graph.remove(root)
    if m.anchor.graph is None:
        for inputs in before:
            for v in inputs:
                if v is not None and v.producer is not None and not v.users and not v.output_count:
                    remove_dead(v.producer)
    for node in m.new_nodes:
        remove_dead(node)


def _name_apart(m: Match) -> None:
    """Runtimes refuse two nodes of one name: a node that was there keeps it, also if it was made again, else the last
    that was made. The others get names of their own."""
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


def check_replacement(m: Match, result: Value | tuple[Value | None, ...]) -> list[tuple[Value, Value]]:
    """(old, new) values of a replacement. Raises Declined where an interface would break, and EmissionError for what
    is no replacement; changes nothing."""
    results = result if isinstance(result, tuple) else (result,)
    wanted = len(m.anchor.outputs) if m.results is None else len(m.results)
    if not (isinstance(result, Value) and wanted) and not _fits(result, wanted):
        said = f"what replaces it is {_shown(result)}, not {counted(wanted, 'value')}"
        raise refusal(m.graph, m.anchor, said, hint=_HINT)
    pairs = _pairs(m, results)
    if m.anchor.op == "Identity":
        for old, new in pairs:
            if old.output_count and m.graph.needs_copy(new) and not old.users:
                raise Declined("a graph output is produced by a node")
    for old, new in pairs:
        if new is old and m.results is None:
            raise refusal(m.graph, m.anchor, f"what replaces `{old.name}` is `{old.name}` itself", hint=_ITSELF)
        made = m.new_nodes.index(new.producer) if new.producer in m.new_nodes else -1
        for node in m.new_nodes[: made + 1]:
            if old in node.inputs:
                raise refusal(m.graph, m.anchor, f"what replaces it is made of its result, by {node.op}", hint=_READS)
    return pairs


def _fits(result: object, wanted: int) -> bool:
    """Is it a tuple of values, some perhaps absent, of which no more are there than are wanted?"""
    if not isinstance(result, tuple):
        return False
    return all(v is None or (isinstance(v, Value) and i < wanted) for i, v in enumerate(result))


def _shown(result: object) -> str:
    if isinstance(result, tuple):
        odd = next((v for v in result if v is not None and not isinstance(v, Value)), None)
        return _shown(odd) if odd is not None else counted(len(result), "value")
    return "nothing" if result is None else an(type(result).__name__)


def _pairs(m: Match, results: tuple[Value | None, ...]) -> list[tuple[Value, Value]]:
    """(old, new) values. Raises Declined where an output that is used has no replacement."""
    pairs: list[tuple[Value, Value]] = []
    if m.results is None:
        for i, old in enumerate(m.anchor.outputs):
            if old is None or not (old.users or old.output_count):
                continue
            new = results[i] if i < len(results) else None
            if new is None:
                raise Declined(f"output {i} of {m.anchor.op} is used")
            pairs.append((old, new))
        return pairs
    for root in m.bindings.roots:
        for i in root.used_outputs():
            if root.outputs[i] not in m.results:
                raise Declined(f"output {i} of {root.op} is used")
    for old, new in zip(m.results, results, strict=True):
        assert new is not None
        if old.is_used:
            pairs.append((old, new))
    return pairs


def bypass(graph: Graph, node: Node, x: Value) -> None:
    """What read `node` reads `x`, which nothing else does, but for its size; an output of the graph keeps its name."""
    node.output.replace_all_uses_with(x)
    graph.remove(node)


def remove_dead(node: Node) -> int:
    """Remove `node` if nothing reads it and it is pure, then what only it kept alive. Iterative; returns how many."""
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
