"""Parts of a tensor: the same operator on every part becomes a single operator before the split.

f(part 0), f(part 1), … of Split(x)  =  the parts of Split(f(x))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node, array_of
from onnxopt.operators import ARITHMETIC, UNARY
from onnxopt.proto.messages import Array, attribute_bytes, make_attribute, make_node
from onnxopt.rewriting.rule import FORMS

# Bytes up to which a constant shared by all parts may be repeated for each.
_MAX_REPEATED: Final = 1 << 16
_MAX_PARTS: Final = 100  # parts of a tensor; each may query all


@dataclass(eq=False, repr=False)
class Plan:
    """A single operator to replace `followers`, the nodes behind the parts.

    `operands`: constants beside x; `axis`, `sizes`: split of the result; `shape`: of the result. `after`: for each part
    the permutation still needed, or None.
    """

    followers: tuple[Node, ...]
    axis: int
    sizes: tuple[int, ...]
    shape: Shape | None
    operands: tuple[Array | Value, ...] = ()
    position: int = 0
    attributes: tuple[tuple[str, object], ...] = ()
    after: tuple[tuple[int, ...] | None, ...] = ()

    @property
    def saved(self) -> int:
        """Nodes saved: the followers become a single node, plus a Transpose for each permuted part."""
        return len(self.followers) - 1 - sum(a is not None for a in self.after)


def plan_hoist(parts: Sequence[Value], axis: int, sizes: Sequence[int]) -> Plan | None:
    """Return the plan to apply the readers of the parts (along `axis`, of `sizes`) before the split, or None."""
    followers = _followers(parts)
    if followers is None:
        return None
    op, shape = followers[0].op, types.shape(parts[0])
    if shape is not None:
        axis %= len(shape)
    if op in UNARY:
        if any(attribute_bytes(n.proto) != attribute_bytes(followers[0].proto) for n in followers):
            return None
        return Plan(followers, axis, tuple(sizes), _joined(shape, axis, sizes))
    if shape is None:
        return None
    if op in ARITHMETIC:
        return _binary(followers, parts, shape, axis, sizes)
    if op == "Reshape":
        return _reshape(followers, shape, axis, sizes)
    if op == "Transpose":
        return _transpose(followers, parts, shape, axis, sizes)
    return None


def insert_split(graph: Graph, x: Value, parts: Sequence[Value], axis: int, sizes: Sequence[int], before: Node) -> Node:
    """Split `x` into `parts`, existing values taken over from their producers. Returns the Split."""
    node = graph.insert(of_lists(graph, "Split", x, before, sizes, axis=axis), before)
    for i, part in enumerate(parts):
        graph.take_over(part, node, i)
    return node


def of_lists(graph: Graph, op: str, x: Value | None, before: Node, *lists: Sequence[int], **attributes: int) -> Node:
    """Return a detached Split, Slice, Squeeze, Unsqueeze or Reduce* of `x` without outputs; the lists are operands, or
    attributes in the form of older opsets."""
    form, name = FORMS[op], x.name if x is not None else op
    if graph.opset() < form.since:
        return Node(make_node(op, "", "", {**attributes, **dict(zip(form.names, map(list, lists)))}), [x], [])
    given = [graph.constant(np.array(v, np.int64), f"{name}_{k}", before) for k, v in zip(form.names, lists)]
    return Node(make_node(op, "", "", attributes), [x, *given], [])


def insert_new(graph: Graph, node: Node, like: Value, before: Node) -> Value:
    """Insert a node without outputs and return its new output, typed and named after `like`."""
    value = Value(graph.model.names.fresh(like.name, "_joined"), graph)
    value.dtype = types.dtype(like)
    node.outputs.append(value)
    graph.insert(node, before)
    return value


def hoist(plan: Plan, x: Value, place: Node) -> Node:
    """Apply the followers' operator to `x` before `place`, split, and remove the followers. Returns the Split."""
    graph, first = plan.followers[0].scope, plan.followers[0]
    inputs: list[Value | None] = [
        v if isinstance(v, Value) else graph.constant(v, f"{first.output.name}_joined", place) for v in plan.operands
    ]
    inputs.insert(plan.position, x)
    made, changed = first.copy(inputs, []), dict(plan.attributes)
    kept = [a for a in first.proto.attribute if a.name not in changed]
    del made.proto.attribute[:]
    made.proto.attribute.extend([*kept, *(make_attribute(k, v) for k, v in changed.items())])
    result = insert_new(graph, made, first.output, place)
    result.shape = plan.shape
    parts: list[Value] = []
    for node, perm in zip(plan.followers, plan.after or [None] * len(plan.followers)):
        if perm is None:
            parts.append(node.output)
            continue
        part = Value(graph.model.names.fresh(node.output.name, "_part"), graph)
        part.dtype = types.dtype(node.output)
        reorder = Node(make_node("Transpose", "", "", {"perm": list(perm)}), [part], [])
        graph.insert(reorder, node)
        graph.take_over(node.output, reorder)
        parts.append(part)
    split = insert_split(graph, result, parts, plan.axis, plan.sizes, place)
    for node in plan.followers:
        graph.remove(node)
    return split


def ones_between(few: Shape, many: Shape) -> list[int]:
    """Return the axes of size 1 in `many` missing in `few`, if all others are equal; else empty."""
    if len(many) <= len(few) or None in few:
        return []
    axes, rest = [], list(reversed(few))
    for i, d in enumerate(many):
        if rest and rest[-1] == d:
            rest.pop()
        elif d == 1:
            axes.append(i)
        else:
            return []
    return [] if rest else axes


def _followers(parts: Sequence[Value]) -> tuple[Node, ...] | None:
    """Return the only reader of each part if they are different nodes of the same operator in the same scope, else
    None."""
    found = dict.fromkeys(n for part in parts if (n := part.only_user) is not None and _follows(n, part))
    return tuple(found) if len(found) == len(parts) and len({n.op for n in found}) == 1 else None


def _follows(node: Node, part: Value) -> bool:
    """Whether a node may be one of the followers: it reads its part once, in its scope, and has one result."""
    if node.graph is not part.graph or node.has_references or part.users[node] != 1:
        return False
    return len(node.outputs) == 1 and node.outputs[0] is not None


def _joined(shape: Shape | None, axis: int, sizes: Sequence[int]) -> Shape | None:
    return None if shape is None else (*shape[:axis], sum(sizes), *shape[axis + 1 :])


def _binary(
    followers: tuple[Node, ...], parts: Sequence[Value], shape: Shape, axis: int, sizes: Sequence[int]
) -> Plan | None:
    """Plan x ∘ constant: constants concatenated, or shared if equal for all parts."""
    position = followers[0].inputs.index(parts[0])
    others = [_beside(n, part, position, len(shape)) for n, part in zip(followers, parts)]
    arrays = [v.array for v in others if v is not None]
    if len(arrays) < len(parts) or len({attribute_bytes(n.proto) for n in followers}) > 1:
        return None
    back = len(shape) - axis  # counted from the end, as in broadcasting
    joined = side_by_side(arrays, back, sizes)
    if joined is None:
        return None
    dims: list[int | str | None] = list(_joined(shape, axis, sizes) or ())
    for i, size in enumerate(joined.shape[::-1], 1):
        if i != back and size != 1:
            dims[-i] = size
    # A Constant node may come after the insertion point.
    first = others[0] if joined is arrays[0] else None
    operand = first if first is not None and first.producer is None else joined
    return Plan(followers, axis, tuple(sizes), tuple(dims), (operand,), position)


def _beside(node: Node, part: Value, position: int, rank: int) -> Value | None:
    """Return the stored constant of at most `rank` axes that a binary node reads beside its part, or None."""
    if len(node.inputs) != 2 or node.inputs[position] is not part:
        return None
    other = node.inputs[1 - position]
    return other if other is not None and other.is_stored and len(other.constant_type()[1]) <= rank else None


def _may_widen(arrays: list[Array], axis: int, sizes: Sequence[int]) -> bool:
    """Return whether the lengths along the axis are 1 or the given sizes, and few bytes are repeated."""
    fits = all(a.shape[axis] in (1, n) for a, n in zip(arrays, sizes))
    return fits and sum(a.nbytes * n for a, n in zip(arrays, sizes) if a.shape[axis] != n) <= _MAX_REPEATED


def side_by_side(arrays: list[Array], back: int, sizes: Sequence[int]) -> Array | None:
    """Return the constants concatenated along axis -back, each as wide as its part; the first if equal for all
    parts."""
    first = arrays[0]
    if any(a.dtype != first.dtype for a in arrays):
        return None
    if (first.ndim < back or first.shape[-back] == 1) and len({(a.shape, a.tobytes()) for a in arrays}) == 1:
        return first
    rank = max(back, *(a.ndim for a in arrays))
    wide, at = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in arrays], rank - back
    if len({(a.shape[:at], a.shape[at + 1 :]) for a in wide}) > 1:
        return None
    if not _may_widen(wide, at, sizes):
        return None
    shapes = [(*a.shape[:at], n, *a.shape[at + 1 :]) for a, n in zip(wide, sizes)]
    return np.concatenate([*map(np.broadcast_to, wide, shapes)], axis=at)


def _reshape(followers: tuple[Node, ...], shape: Shape, axis: int, sizes: Sequence[int]) -> Plan | None:
    """Plan […, N] to […, N / D, D], perhaps with axes of size 1 between, otherwise equal for all parts: heads are
    concatenated like the parts."""
    if axis < len(shape) - 1:
        return _rows(followers, shape, axis, sizes)
    known = [h for node, size in zip(followers, sizes) if (h := _heads(node, size)) is not None]
    if len(known) < len(followers):
        return None
    front, _, behind = known[0]
    # A 0 behind the front copies the split axis.
    if any((other, rest) != (front, behind) for other, _, rest in known) or 0 in front[axis:]:
        return None
    counts = [count for _, count, _ in known]
    out = types.shape(followers[0].output) or ()
    # A -1 in front stays: its value does not depend on the parts. Elsewhere the size is known.
    joined = np.array([*front, sum(counts), *behind], np.int64)
    return Plan(followers, len(front), tuple(counts), (*out[: len(front)], sum(counts), *behind), (joined,))


def _target_of(node: Node) -> list[int] | None:
    """Return the constant target of a Reshape, in which 0 copies a dim; else None."""
    target = array_of(node.input(1))
    return None if target is None or (node.attr("allowzero", 0) and 0 in target) else target.tolist()


def _rows(followers: tuple[Node, ...], shape: Shape, axis: int, sizes: Sequence[int]) -> Plan | None:
    """Plan […, N, D] to […, N D], with the axes from the split one on as one, and equal axes in front."""
    front, inner = shape[:axis], [n for n in shape[axis + 1 :] if isinstance(n, int)]
    targets = [target for node in followers if (target := _target_of(node)) is not None]
    if None in front or len(inner) < len(shape) - axis - 1 or len(targets) < len(followers):
        return None
    made = tuple(size * prod(inner) for size in sizes)
    if [types.shape(n.output) for n in followers] != [(*front, n) for n in made]:
        return None
    joined = np.array([*targets[0][:-1], sum(made)], np.int64)
    return Plan(followers, axis, made, (*front, sum(made)), (joined,))


def _heads(node: Node, size: int) -> tuple[list[int], int, list[int]] | None:
    """Return (target in front, heads, sizes behind) of a Reshape of the last axis, of `size`, to heads and their width,
    with axes of size 1 between; None for others."""
    target, dims = _target_of(node), types.shape(node.output)
    if target is None or dims is None or not len(target) == len(dims) > 1:
        return None
    place, width = len(dims) - 2, dims[-1]
    while place and dims[place] == 1 != width != size:
        place -= 1
    count = dims[place]
    if not isinstance(count, int) or not isinstance(width, int) or count * width != size:
        return None
    return target[:place], count, [1] * (len(dims) - place - 2) + [width]


def _transpose(
    followers: tuple[Node, ...], parts: Sequence[Value], shape: Shape, axis: int, sizes: Sequence[int]
) -> Plan | None:
    """Plan the most frequent permutation for all parts; others are permuted again afterwards."""
    perms = [order_of(n, len(shape)) for n in followers]
    common = Counter(perms).most_common(1)[0][0]  # the first of equally frequent ones
    after = tuple(None if p == common else tuple(common.index(i) for i in p) for p in perms)
    joined = _joined(shape, axis, sizes) or ()
    return Plan(
        followers,
        common.index(axis),
        tuple(sizes),
        tuple(joined[i] for i in common),
        attributes=(("perm", list(common)),),
        after=after,
    )
