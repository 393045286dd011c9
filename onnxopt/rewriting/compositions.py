"""Chains of element-moving operators, replaced by the fewest equivalent operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

import numpy as np

from onnxopt.analysis.shapes.symbolic import TooComplex
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import SAME_ORDER
from onnxopt.rewriting.index_maps import APART, IndexMap, Part, Seen, flat
from onnxopt.rewriting.index_plans import Step, plan
from onnxopt.rewriting.index_steps import MOVERS, VIEWS, apply, begin_in, copied, end_in
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.rule import Declined, only_read_by

_MAX_CHAIN: Final = 8  # operators of a chain
_MAX_COPIED_BYTES: Final = 1 << 14  # bytes of indices that may be copied
_WEIGHTS: Final = {"GatherND": 3, "Expand": 2, "Gather": 2, "Tile": 2, "Slice": 1, "Transpose": 1}
_BY_OPERANDS: Final = ("Gather", "GatherND", "Squeeze", "Transpose")  # the map determines the dims of these results
LEFT: Final = "as many operators would be left"


def composed(m: Match) -> Value:
    """Return the replacement of the chain ending in the anchor, or of the part with the largest saving."""
    chain, shared = _chain(m.anchor)
    best, reason = (-1, 0, list[Step]()), ""
    for count in range(len(chain), 1, -1):
        stays = shared and count == len(chain)
        try:
            steps = _steps(m, chain[:count], stays)
        except Declined as e:
            reason = reason or str(e)
            continue
        saved = count - stays - len(steps)
        if saved >= best[0]:  # the shortest equal part: a longer one would separate values from parallel branches
            best = saved, count, steps
    if not best[1]:
        raise Declined(reason)
    return built(m, best[2], chain[: best[1]])


def alone(m: Match) -> Value:
    """Return a cheaper replacement of the anchor alone."""
    m.require(not m.anchor.has_references, "an attribute of the function that it is in")
    return built(m, _steps(m, [m.anchor], False), [m.anchor])


def viewed(m: Match, reader: Node) -> tuple[Value, IndexMap]:
    """Return (x, map of x to the first operand of `reader`) for the Reshapes and Transposes that nothing else reads."""
    nodes, shared = _chain(reader)
    chain = list(takewhile(lambda n: n.op in VIEWS, nodes[1 : len(nodes) - shared]))
    x = m.known(chain[-1].inputs[0] if chain else None, "the view has other readers")
    found = _map(m, x, chain)
    m.require(found.axes is not None and not found.crossed and not found.is_open, APART)
    return x, found


def _chain(anchor: Node) -> tuple[list[Node], bool]:
    """Return (nodes, shared): the chain of single-use movers ending in the anchor, last first.

    `shared`: the last entry has readers outside the chain.
    """
    nodes = [anchor]
    while not nodes[-1].has_references:
        v = nodes[-1].inputs[0]
        node = v.producer if v is not None else None
        if v is None or node is None or v.constant or node.op not in MOVERS or node.has_references:
            break
        if node.inputs[0] is None:
            break
        nodes.append(node)
        if v.only_user is not nodes[-2] or nodes[-2].inputs.count(v) > 1:
            return nodes, True
        if len(nodes) == _MAX_CHAIN:
            break
    return nodes, False


def _steps(m: Match, nodes: Sequence[Node], shared: bool) -> list[Step]:
    """Return the operators to replace these; declines if they are not fewer."""
    x = nodes[-1].inputs[0]
    assert x is not None
    m.require(len(nodes) > 1 or not x.constant, "a constant, which folds")
    steps = fewest(m, x, nodes)
    if shared:
        _may_pass(m, nodes, steps)
    elif len(nodes) == 1:
        m.require(len(steps) < 2 and _weight(s.op for s in steps) < _weight([m.anchor.op]), "as much would be left")
    else:
        m.require(len(steps) < len(nodes), LEFT)
    return steps


def fewest(m: Match, x: Value, nodes: Sequence[Node], seen: Seen | None = None) -> list[Step]:
    """Return the fewest operators for a chain, last node first, from `x`, or into a view of the result.

    For a view back, the chain begins at `x` in the view. Equal chains, as in repeated layers, are composed once.
    """
    values: dict[Value, int] = {}
    key = m.opset, seen, m.shape(x), *[_told(m, node, values) for node in nodes]
    known: dict[Any, tuple[list[Step], str, list[Value]]] = m.graph.model.chains
    if key not in known:
        steps, reason = list[Step](), ""
        try:
            steps = _composed(m, x, nodes, seen)
        except (Declined, TooComplex) as e:
            reason = str(e) if isinstance(e, Declined) else "sizes that are not compared"
        known[key] = steps, reason, [*values]
    steps, reason, read = known[key]
    if reason:
        raise Declined(reason)
    if not values:
        return steps
    now = dict(zip(read, values))
    return [Step(s.op, [now.get(i, i) if isinstance(i, Value) else i for i in s.inputs], s.attributes) for s in steps]


def _told(m: Match, node: Node, values: dict[Value, int]) -> tuple[Any, ...]:
    """Return the key of a node: all a map depends on, except the dims of the first operand.

    `values`: numbers for operands other than constants.
    """
    found: list[Any] = [a.SerializeToString() for a in node.proto.attribute]
    for v in node.inputs[1:]:
        if v is None or v.constant:
            found.append(v and ((array := v.array).shape, array.dtype, array.tobytes()))
        else:
            found += m.shape(v), values.setdefault(v, len(values))
    if node is m.anchor and node.op == "Reshape" and (target := node.input(1)) is not None and not target.constant:
        found.append(copied(m, target))
    is_said = node is not m.anchor and node.op in _BY_OPERANDS
    return node.op, *found, None if is_said else m.shape(node.output)


def _composed(m: Match, x: Value, nodes: Sequence[Node], seen: Seen | None) -> list[Step]:
    try:
        found = _map(m, x, nodes, seen)
    except Declined as e:
        if str(e) != APART or m.anchor.op != "Reshape":
            raise
        found = _map(m, x, nodes[1:], seen)
        m.require(found.axes is not None and not found.is_open, APART)
        found.read = found.lengths()  # a final Reshape, to any dims
        found.axes = [flat(found.known()) or [Part(1)]]
    return [] if found.is_seen and found.is_unchanged() else plan(m, found)


def _map(m: Match, x: Value, nodes: Sequence[Node], seen: Seen | None = None) -> IndexMap:
    found = IndexMap(m, x)
    if seen is not None and seen.back:
        begin_in(found, seen)
    for node in reversed(nodes):
        apply(found, node)
    if seen is not None and not seen.back:
        end_in(found, seen)
    if found.is_seen and found.axes is not None:
        found.written = None  # equal views get equal targets
    return found


def _weight(ops: Any) -> int:
    return sum(_WEIGHTS.get(op, 0) for op in ops)


def _may_pass(m: Match, nodes: Sequence[Node], steps: Sequence[Step]) -> None:
    """Decline if a chain must not start before an operator with readers outside the chain."""
    if not steps:
        return
    reader, inner = nodes[-2], nodes[-1]
    gone, elsewhere = len(nodes) - 1, f"{inner.op} output used elsewhere"
    if inner.op == "Slice" and reader.op == "Slice":
        only_read_by(m, inner, "Slice")
    views = inner.op in SAME_ORDER and reader.op in ("Flatten", "Reshape") and [s.op for s in steps] == ["Reshape"]
    m.require(not views and (gone > 1 or inner.op == "Slice" or reader.op != "Transpose"), elsewhere)
    m.require(len(steps) < gone or (gone == 1 and len(steps) == 1 and _is_as_light(m, nodes, steps)), elsewhere)


def _is_as_light(m: Match, nodes: Sequence[Node], steps: Sequence[Step]) -> bool:
    # A single element is picked again regardless of other readers; more are copied only once.
    few = nodes[-1].op == "Gather" and (x := nodes[-1].inputs[0]) is not None and m.rank(x) == 1
    return few or _weight(s.op for s in steps) <= _weight(n.op for n in nodes[:-1])


def built(m: Match, steps: Sequence[Step], nodes: Sequence[Node], x: Value | None = None) -> Value:
    """Build the operators on `x`, or on the source of the nodes; each takes over the attributes of a removed node of
    its kind."""
    given = [v for n in nodes for v in n.inputs[1:] if v is not None and v.constant]
    result = x or nodes[-1].inputs[0]
    assert result is not None
    for step in steps:
        inputs = [_constant(m, v, given) for v in step.inputs]
        like = next((n for n in nodes if n.op == step.op), None)
        result = m.op[step.op](result, *inputs, like=like, **_attributes(step, like))
    return result


def _attributes(step: Step, like: Node | None) -> dict[str, Any]:
    """Return the attributes to give to an operator that keeps those of `like`; none if `like` has them all."""
    held = like.attributes if like is not None else {}
    told = {k: v for k, v in (step.attributes or {}).items() if v is not None or k in held}
    return {} if like is not None and all(k in held and like.attr(k) == v for k, v in told.items()) else told


def _constant(m: Match, wanted: Any, given: Sequence[Value]) -> Value:
    """Return a value with this content: an operand of the chain, or a new constant."""
    if isinstance(wanted, Value):
        return wanted
    array = np.array(wanted, np.int64)
    for v in given:
        if v.array.dtype == np.int64 and np.array_equal(v.array, array):
            return v
    few = array.nbytes <= _MAX_COPIED_BYTES or all(len(v.users) == 1 for v in given)
    m.require(few, "a large index that others read would be copied")
    return m.const(array)
