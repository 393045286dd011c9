"""Chains of element-moving operators, replaced by the fewest equivalent operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import numpy as np

from onnxopt.analysis.shapes.sizes import is_picked, order_of, product
from onnxopt.analysis.shapes.symbolic import TooComplex
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import SAME_ORDER
from onnxopt.rewriting.axis_runs import constant_target
from onnxopt.rewriting.index_maps import APART, MOVERS, IndexMap, Part, Run, length, real
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.parts import parts_beside
from onnxopt.rewriting.rule import Declined, only_read_by
from onnxopt.startup.record import record

_MAX_CHAIN: Final = 8  # operators of a chain
_MAX_COPIED_BYTES: Final = 1 << 14  # bytes of indices that may be copied
_WEIGHTS: Final = {"GatherND": 3, "Expand": 2, "Gather": 2, "Tile": 2, "Slice": 1, "Transpose": 1}
_BY_OPERANDS: Final = ("Gather", "GatherND", "Squeeze", "Transpose")  # the map determines the dims of these results
_CHAINS: Final = "chains of moves"
_OF_SIZES: Final = (
    "Add",
    "Cast",
    "Concat",
    "Max",
    "Mul",
    "ReduceProd",
    "Size",
)  # operators on sizes without zeros if no tensor is empty
LEFT: Final = "as many operators would be left"
_TARGET: Final = "more than one unknown dim"
_BESIDE: Final = "what is beside it is turned alike, and may be turned together with it"


@record
class Step:
    """An operator to write: attributes, and inputs after the first."""

    op: str
    inputs: Sequence[Any] = ()  # lists of integers, arrays, or values
    attributes: Any = None


class _Answer(NamedTuple):
    """The replacement of a chain, or the reason for none; `values`: values of the chain read by the steps."""

    steps: list[Step]
    reason: str
    values: list[Value]


@record(eq=False)
class _Item:
    """An axis of the source or of its Reshape, and the run picked from it."""

    parts: list[Part]
    size: Any
    picked: Run | None = None


def composed(m: Match) -> Value:
    """Return the replacement of the chain ending in the anchor, or of the part with the largest saving."""
    chain, shared = _chain(m.anchor)
    best, reason = (-1, 0, list[Step]()), ""
    for count in range(len(chain), 1, -1):
        stays = shared and count == len(chain)
        try:
            m.require(not _is_short(m, chain[:count]), LEFT)
            steps = _steps(m, chain[:count], stays)
        except Declined as e:
            reason = reason or str(e)
            continue
        saved = count - stays - len(steps)
        if saved >= best[0]:  # the shortest equal part: a longer one would separate values from parallel branches
            best = saved, count, steps
    if not best[1]:
        raise Declined(reason)
    return _built(m, best[2], chain[: best[1]])


def _is_short(m: Match, nodes: Sequence[Node]) -> bool:
    """Whether the nodes are a moving Transpose, a Slice and an order-preserving step, each at most once.

    Such chains stay, except for an axis sliced to one element and dropped.
    """
    kinds = list[str]()
    for node in nodes:
        kind = "order" if node.op in SAME_ORDER else node.op
        if kind in kinds or kind not in ("order", "Slice", "Transpose"):
            return False
        kinds.append(kind)
    if "Transpose" not in kinds:
        return nodes[0].op in ("Slice", "Unsqueeze")
    if "Slice" in kinds and "order" in kinds and nodes[kinds.index("order")].op == "Squeeze":
        return False
    transpose = nodes[kinds.index("Transpose")]
    dims = m.shape(x) if (x := transpose.inputs[0]) is not None else None
    moving = [i for i in order_of(transpose, len(dims or ())) if dims is not None and i < len(dims) and dims[i] != 1]
    return dims is not None and moving != sorted(moving)


def alone(m: Match) -> Value:
    """Return a cheaper replacement of the anchor alone."""
    m.require(not m.anchor.has_references, "an attribute of the function that it is in")
    return _built(m, _steps(m, [m.anchor], False), [m.anchor])


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
    m.require(not _is_beside_alike(nodes), _BESIDE)
    steps = _fewest(m, x, nodes)
    if shared:
        _may_pass(m, nodes, steps)
    elif len(nodes) == 1:
        m.require(len(steps) < 2 and _weight(s.op for s in steps) < _weight([m.anchor.op]), "as much would be left")
    else:
        m.require(len(steps) < len(nodes), LEFT)
    return steps


def _fewest(m: Match, x: Value, nodes: Sequence[Node]) -> list[Step]:
    """Return the fewest operators for a chain. Equal chains, as in repeated layers, are composed once for a round of
    passes."""
    values: dict[Value, int] = {}
    key = m.opset, m.shape(x), *[_told(m, node, values) for node in nodes]
    known = cast("dict[Any, _Answer]", m.graph.model.analyses.setdefault(_CHAINS, {}))
    if key not in known:
        steps, reason = list[Step](), ""
        try:
            steps = _composed(m, x, nodes)
        except (Declined, TooComplex) as e:
            reason = str(e) if isinstance(e, Declined) else "sizes that are not compared"
        known[key] = _Answer(steps, reason, [*values])
    answer = known[key]
    if answer.reason:
        raise Declined(answer.reason)
    now = dict(zip(answer.values, values))
    return [
        Step(s.op, [now.get(i, i) if isinstance(i, Value) else i for i in s.inputs], s.attributes) for s in answer.steps
    ]


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
        found.append(_copied(m, target))
    is_said = node is not m.anchor and node.op in _BY_OPERANDS
    return node.op, *found, None if is_said else m.shape(node.output)


def _composed(m: Match, x: Value, nodes: Sequence[Node]) -> list[Step]:
    try:
        found = _map(m, x, nodes)
    except Declined as e:
        if str(e) != APART or m.anchor.op != "Reshape":
            raise
        found = _map(m, x, nodes[1:])
        found.end(m.anchor)
    return _written(m, found)


def _map(m: Match, x: Value, nodes: Sequence[Node]) -> IndexMap:
    found = IndexMap(m, x)
    for node in reversed(nodes):
        found.apply(node)
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
    # A single element is picked again regardless of other readers; more are copied only once.
    few = inner.op == "Gather" and (x := inner.inputs[0]) is not None and m.rank(x) == 1
    lighter = few or _weight(s.op for s in steps) <= _weight(n.op for n in nodes[:-1])
    m.require(len(steps) < gone or (gone == 1 and len(steps) == 1 and lighter), elsewhere)


def _is_beside_alike(nodes: Sequence[Node]) -> bool:
    """Whether a sibling part or product takes an equal Reshape and Transpose, without a further Reshape.

    The pass merge-parallel transposes equal heads together, and saves more.
    """
    for transpose, reshape in pairwise(nodes[1:]):
        x = reshape.inputs[0]
        if transpose.op != "Transpose" or reshape.op not in SAME_ORDER or x is None:
            continue
        for part in parts_beside(x):
            beside = part.only_user if part is not x else None
            turned = beside.output.only_user if beside is not None and beside.op == "Reshape" else None
            if turned is not None and turned.op == "Transpose" and turned.attr("perm") == transpose.attr("perm"):
                reader = turned.output.only_user
                if reader is None or reader.op not in SAME_ORDER:
                    return True
    return False


def _written(m: Match, found: IndexMap) -> list[Step]:
    """Return the fewest operators for a map. A Reshape comes first where it merges with a Reshape to rows, or a product
    reads the Transpose behind it."""
    if found.axes is not None:
        in_order = found.is_in_order()
        found.settle()
        plans = [_plan(m, found, _by_axis(found))]
        if plans[0] is None or len(plans[0]) > 1:  # a plan of a single operator cannot be improved
            plans.insert(0, _plan(m, found, _by_run(found)))
            if found.pick_at_once():
                plans += [_plan(m, found, items) for items in (_by_run(found), _by_axis(found))]
        known = [p for p in plans if p is not None]
        if known and (found.written is None or not all(known)):
            return min(known, key=lambda steps: (len(steps), [s.op for s in steps].count("Reshape")))
        m.require(in_order, _TARGET)
    return [_reshape(m, _in_order(m, found), found.literal)]


def _in_order(m: Match, found: IndexMap) -> list[int]:
    """Return the target of a single Reshape."""
    if found.written is not None:
        return found.written
    wanted = m.shape(m.anchor.output)
    m.require(wanted is not None, "a rank is unknown")
    sizes = [found.size(d) for d in wanted or ()]
    target = constant_target(found.dims, sizes) or [s if isinstance(s, int) else -1 for s in sizes]
    m.require(target.count(-1) <= 1 and 0 not in sizes and (0 not in target or -1 not in target), _TARGET)
    return target


def _reshape(m: Match, target: Sequence[int] | Value, literal: bool = False) -> Step:
    m.require(m.opset >= 5, "there is no Reshape for it")
    return Step("Reshape", [target], {"allowzero": 1 if literal else None})


def _by_axis(found: IndexMap) -> list[_Item] | None:
    """Return the axes of the source as items; None if a pick crosses axes or takes part of an axis."""
    if found.crossed or any(len(runs) > 1 and any(r.pick is not None for r in runs) for runs in found.source):
        return None
    return [
        _Item(
            [p for r in runs for p in r.parts],
            product(r.size for r in runs),
            next((r for r in runs if r.pick is not None), None),
        )
        for runs in found.source
    ]


def _by_run(found: IndexMap) -> list[_Item] | None:
    """Return the axes of a leading Reshape: runs that stay together merged, axes of size 1 behind their predecessor."""
    if found.is_open:
        return None
    items: list[_Item] = []
    place = {p: (axis, i) for axis, parts in enumerate(found.known()) for i, p in enumerate(real(parts))}
    for run in found.runs():
        if run.size == 1 and run.pick is None:
            continue
        if items and run.pick is None and items[-1].picked is None:
            axis, i = place[items[-1].parts[-1]]
            if place.get(run.parts[0]) == (axis, i + 1):
                items[-1].parts += run.parts
                items[-1].size = items[-1].size * run.size
                continue
        items.append(_Item(run.parts[:], run.size, run if run.pick is not None else None))
    last: Part | None = None
    for parts in found.known():
        if not real(parts):
            part = parts[0]
            if part.run is None or part.run.pick is None:
                at = next((i for i, item in enumerate(items) if last in item.parts), -1)
                items.insert(at + 1, _Item([part], 1))
            last = part
        else:
            last = real(parts)[-1]
    return items


def _plan(m: Match, found: IndexMap, items: Sequence[_Item] | None) -> list[Step] | None:
    """Return Reshape, picks, Transpose and Reshape for these items; None if they do not suffice, or a target is
    unknown."""
    if items is None:
        return None
    steps: list[Step] = []
    dims = [i.size for i in items]
    if found.dims != dims:
        target = constant_target(found.dims, dims)
        if target is None:
            return None
        steps.append(_reshape(m, target))
    steps += _picks(items)
    axes: list[list[Part]] = []
    for item in items:
        picked = item.picked is not None and not isinstance(item.picked.pick, tuple)
        axes += [[p] for p in item.parts] if picked else [item.parts]
    wanted = found.known()
    place = {p: i for i, p in enumerate(p for a in wanted for p in a)}
    keys, last = [], -1
    for axis in axes:
        last = next((place[p] for p in (*real(axis), *axis) if p in place), last)
        keys.append(last)
    perm = sorted(range(len(axes)), key=keys.__getitem__)
    if perm != sorted(perm):
        steps.append(Step("Transpose", (), {"perm": perm}))
        axes = [axes[i] for i in perm]
    have, want = [real(a) for a in axes], [real(a) for a in wanted]
    if [p for a in have for p in a] != [p for a in want for p in a]:
        return None
    if found.read is not None:
        given = _given(m, [length(a) for a in axes], found.read)
        return None if given is None else [*steps, _reshape(m, given)]
    if have == want:
        return steps
    there = {p for a in axes for p in a}
    drops = [i for i, a in enumerate(axes) if not have[i] and not any(p in place for p in a)]
    puts = [i for i, a in enumerate(wanted) if not want[i] and not any(p in there for p in a)]
    kept = [a for i, a in enumerate(have) if i not in drops] == [a for i, a in enumerate(want) if i not in puts]
    if kept and not (drops and puts):
        return [*steps, Step("Squeeze" if drops else "Unsqueeze", [drops or puts])]
    if found.is_open:
        return None
    sizes = [length(a) for a in axes], [length(a) for a in wanted]
    to = constant_target(*sizes) or _given(m, *sizes)
    return None if to is None else [*steps, _reshape(m, to)]


def _picks(items: Sequence[_Item]) -> list[Step]:
    """Return a Slice, then Gathers from the last axis on, so that earlier axes keep their numbers."""
    picked = [(i, item.picked.pick, item.picked) for i, item in enumerate(items) if item.picked is not None]
    cuts = [(*pick, axis) for axis, pick, _ in picked if isinstance(pick, tuple)]
    steps = []
    if cuts:
        starts, ends, strides, axes = ([c[i] for c in cuts] for i in range(4))
        bounds = [starts, ends, axes, strides] if any(s != 1 for s in strides) else [starts, ends, axes]
        steps.append(Step("Slice", bounds))
    for axis, pick, run in reversed(picked):
        if isinstance(pick, np.ndarray):
            pick = pick.reshape([p.size for p in run.parts])
        if not isinstance(pick, tuple):
            steps.append(Step("Gather", [pick], {"axis": axis}))
    return steps


def _given(m: Match, dims: Sequence[Any], wanted: Sequence[Any]) -> Value | list[int] | None:
    """Return the anchor's own target if each copied dim is the same for a tensor of `dims`; else None."""
    target = m.anchor.input(1) if m.anchor.op == "Reshape" and not m.anchor.attr("allowzero", 0) else None
    copied = _copied(m, target) if target is not None else None
    if copied is None or any([*dims[i : i + 1]] != [*wanted[i : i + 1]] for i in copied):
        return None
    return [int(d) for d in target.array] if target is not None and target.constant else target


def _copied(m: Match, target: Value) -> tuple[int, ...] | None:
    """Return the positions where a target of constants and sizes copies a dim, or None."""
    found = copies(m, target) if is_picked(target, _OF_SIZES) else None
    return None if found is None else tuple(found)


def copies(m: Match, target: Value) -> list[int] | None:
    """Return the positions of zeros in a Reshape target, each a copied dim; None if unknown. Computed entries are not
    zero."""
    maker = target.producer
    found, place = list[int](), 0
    for part in maker.inputs if maker is not None and maker.op == "Concat" else [target]:
        size = m.shape(part) if part is not None else None
        if part is None or size is None or len(size) != 1 or not isinstance(size[0], int):
            return None
        found += [place + i for i in range(size[0]) if part.constant and not part.array[i]]
        place += size[0]
    return found


def _built(m: Match, steps: Sequence[Step], nodes: Sequence[Node]) -> Value:
    """Build the operators; each takes over the attributes of a removed node of its kind."""
    given = [v for n in nodes for v in n.inputs[1:] if v is not None and v.constant]
    result = nodes[-1].inputs[0]
    assert result is not None
    for step in steps:
        inputs = [_constant(m, v, given) for v in step.inputs]
        like = next((n for n in nodes if n.op == step.op), None)
        held = like.attributes if like is not None else {}
        told = {k: v for k, v in (step.attributes or {}).items() if v is not None or k in held}
        if like is not None and all(k in held and like.attr(k) == v for k, v in told.items()):
            told = {}
        result = m.op[step.op](result, *inputs, like=like, **told)
    return result


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
