"""A tensor overwritten part by part by scatters, expressed as the parts left after each scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import repeated
from onnxopt.analysis.shapes.sizes import LARGEST, order_of
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node
from onnxopt.proto.messages import Array, make_node
from onnxopt.rewriting.index_maps import after
from onnxopt.rewriting.parts import insert_new, of_lists
from onnxopt.rewriting.rule import constant_cuts
from onnxopt.rewriting.spans import Part, Parts, cut, parts_of, taken

_MAX_PARTS: Final = 256  # parts of a tensor, and nodes removed with its scatters
_MAX_ROUNDS: Final = 8
_PADDED: Final = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64})


class Canvas:
    """Scatters along one axis of a tensor, each writing on the result of another.

    `layouts`: the parts of each result. `made`: number of nodes to make in place of those `gone`. `now`: replacements
    of removed values.
    """

    def __init__(self, graph: Graph, base: Value, axis: int, now: dict[Value, Value]) -> None:
        self.graph, self.axis, self.now = graph, axis, now
        self.scatters: list[Node] = []
        self.layouts: dict[Value, Parts] = {base: _layout(base, axis)}
        self.unsqueezed: dict[Value, tuple[Value, list[int]]] = {}  # placeholder: updates and the axes they lack
        self._plan()

    def _plan(self) -> None:
        self.made = 0
        self.gone: dict[Node, None] = {}
        self.kept: set[Value] = set()  # existing values still read
        self.steps: list[tuple[Node, Node | None, int, Parts]] = []  # (scatter, reader of its result, axis, parts)
        self.joined: dict[tuple[int, Parts], Value | None] = {}  # joined value by axis and parts

    def paint(self, scatter: Node, start: int, end: int | None, missing: Sequence[int]) -> bool:
        """Add a scatter over [start, end). Returns False if the overwritten parts are not known."""
        data, updates = scatter.inputs[0], scatter.inputs[2]
        assert data is not None and updates is not None
        parts = self.layouts[data]
        front, back = cut(parts, 0, start), () if end is None else cut(parts, end, None)
        if front is None or back is None or len(front) + len(back) > _MAX_PARTS:
            return False
        if missing:
            stands = Value("", self.graph)
            stands.dtype, stands.shape = types.dtype(updates), _with_ones(types.shape(updates) or (), missing)
            self.unsqueezed[stands] = updates, [*missing]
            updates = stands
        self.layouts[scatter.output] = (*front, Part(updates, 0, types.length_of(updates, self.axis)), *back)
        self.scatters.append(scatter)
        return True

    def cost(self) -> int:
        """Decide what each reader of a result reads instead. Returns the change of the number of nodes."""
        self._plan()
        inside = set(self.scatters)
        for scatter in self.scatters:
            result = scatter.output
            parts, whole = self.layouts[result], result.is_output
            for user in result.users:
                if user not in inside or user.places(result) != [0]:
                    whole |= not self._plan_reader(scatter, user, parts)
            if whole:
                self._emit(scatter, None, self.axis, parts)
        self.made += sum(v in self.kept and not u.constant for v, (u, _) in self.unsqueezed.items())
        self.kept.update(updates for updates, _ in self.unsqueezed.values())
        self.gone.update(dict.fromkeys(self.scatters))
        _add_unread(self.gone, self.kept)
        return self.made - len(self.gone)

    def _plan_reader(self, scatter: Node, user: Node, parts: Parts) -> bool:
        """Plan a reader of a result to read the parts instead. Returns False if it needs the whole result."""
        if user.graph is not self.graph or user.places(scatter.output) != [0] or user.has_references:
            return False
        return self._plan_cut(scatter, user, parts) or self._plan_turned(scatter, user, parts)

    def _plan_cut(self, scatter: Node, user: Node, parts: Parts) -> bool:
        """Plan a `user` that takes a range along the axis, read from the parts. Returns False if it does not."""
        found = taken(user, self.axis) if user.op != "Split" else None
        inside = cut(parts, *found.spans[user.output]) if found is not None else None
        if found is None or not inside or (found.drops and len(inside) > 1):
            return False
        alone = found.alone and not found.drops
        if alone:
            self.gone[user] = None
        if alone or len(inside) > 1:
            self._emit(scatter, user, self.axis, inside)
        else:  # the part is read in place of the whole
            self.kept.add(inside[0].value)
            self.steps.append((scatter, user, self.axis, inside))
        return True

    def _plan_turned(self, scatter: Node, user: Node, parts: Parts) -> bool:
        """Plan a Transpose `user` that cancels Transposes of all parts. Returns False for any other."""
        rank = types.rank(scatter.output)
        if user.op != "Transpose" or rank is None:
            return False
        perm = order_of(user, rank)
        turned: list[Part] = []
        for v, start, end in parts:
            node = v.producer
            if node is None or node.op != "Transpose" or node.has_references or node.inputs[0] is None:
                return False
            if after(order_of(node, rank), perm) != tuple(range(rank)):
                return False
            turned.append(Part(node.inputs[0], start, end))
        self.gone[user] = None
        self._emit(scatter, user, perm.index(self.axis), tuple(turned))
        return True

    def _emit(self, scatter: Node, user: Node | None, axis: int, parts: Parts) -> None:
        self.steps.append((scatter, user, axis, parts))
        self._count(axis, parts)

    def _count(self, axis: int, parts: Parts) -> None:
        """Count the nodes made by `_join` for these parts."""
        if (axis, parts) in self.joined:
            return
        self.kept.update(v for v, _, _ in parts)
        self.joined[axis, parts] = None
        if len(parts) == 1:
            self.made += not (parts[0].is_whole(axis) or parts[0].value.is_stored)
            return
        self.made += 1
        for some in self._joins(axis, parts):
            self._count(axis, some)

    def _joins(self, axis: int, parts: Parts) -> list[Parts]:
        """Return the groups of parts joined by a single node: the unpadded parts, or a joined prefix and single
        parts."""
        padded = _padded(parts)
        if padded is not None:
            return [padded[0]]
        longest = range(len(parts) - 1, max(1, len(parts) - _MAX_ROUNDS), -1)
        known = next((i for i in longest if (axis, parts[:i]) in self.joined), 0)
        return [*([parts[:known]] if known else []), *((p,) for p in parts[known:])]

    def carry_out(self) -> None:
        self.joined.clear()
        for scatter, user, axis, parts in self.steps:
            if user is None:
                self._replace(scatter.output, self._value(axis, parts, scatter))
            elif user in self.gone:
                self._replace(user.output, self._value(axis, parts, scatter))
            else:
                part = parts[0] if len(parts) == 1 else None
                x = self._real(part[0], scatter) if part is not None else self._value(axis, parts, scatter)
                node = _taking(self.graph, user, axis, x, part)
                self.graph.take_over(user.output, self.graph.insert(node, user))
                self.graph.remove(user)
        users = [user for _, user, _, _ in self.steps if user is not None and user in self.gone]
        for node in (*users, *reversed(self.scatters)):
            self.graph.remove(node)

    def _replace(self, old: Value, made: Value) -> None:
        kept = old.replace_all_uses_with(made)
        gone = made if kept is old else old
        self.now[gone] = kept
        if gone is made:
            self.joined.update({key: kept for key, v in self.joined.items() if v is made})

    def _value(self, axis: int, parts: Parts, scatter: Node) -> Value:
        """Return the joined parts, computed in front of `scatter`."""
        found = self.joined.get((axis, parts))
        if found is None:
            found = self._join(axis, parts, scatter)
            self.joined[axis, parts] = found
        return found

    def _join(self, axis: int, parts: Parts, scatter: Node) -> Value:
        graph = self.graph
        if len(parts) == 1:
            v = self._real(parts[0][0], scatter)
            if parts[0].is_whole(axis):
                return v
            start, end = parts[0][1], LARGEST[1] if parts[0][2] is None else parts[0][2]
            node = of_lists(graph, "Slice", v, scatter, [start], [end], [axis])
        else:
            padded = _padded(parts)
            joined = [self._value(axis, some, scatter) for some in self._joins(axis, parts)]
            if padded is None:
                node = Node(make_node("Concat", "", "", {"axis": axis}), [*joined], [])
            else:
                pads = np.zeros((2, types.rank(padded[0][0][0]) or 0), np.int64)
                pads[:, axis] = padded[1:3]
                given = [graph.constant(a, f"{joined[0].name}_pads", scatter) for a in (pads.reshape(-1), padded[3])]
                node = Node(make_node("Pad", "", "", {"mode": "constant"}), [*joined, *given], [])
        describe_as(node.proto, scatter.proto)
        return insert_new(graph, node, scatter.output, scatter)

    def _real(self, v: Value, scatter: Node) -> Value:
        """Return the present value for `v`: updates with missing axes added, or a replacement."""
        if v in self.unsqueezed and v not in self.now:
            updates, axes = self.unsqueezed[v]
            updates = self._real(updates, scatter)
            node = of_lists(self.graph, "Unsqueeze", updates, scatter, axes)
            self.now[v] = insert_new(self.graph, node, updates, scatter)
        while v in self.now:
            v = self.now[v]
        return v


def _with_ones(dims: Shape, missing: Sequence[int]) -> Shape:
    found = [*dims]
    for k in missing:
        found.insert(k, 1)
    return tuple(found)


def _layout(base: Value, axis: int) -> Parts:
    """Return the inputs of a Concat along the axis if all lengths are known; else the whole value as a single part."""
    parts = parts_of(base, axis)
    if len(parts) < _MAX_PARTS and all(p.end is not None for p in parts):
        return parts
    return (Part(base, 0, types.length_of(base, axis)),)


def _taking(graph: Graph, user: Node, axis: int, x: Value, part: Part | None) -> Node:
    """Return the Gather or Slice `user` applied to a part along the axis, or to `x` along the remaining axes."""
    index, whole = user.inputs[1], user.inputs[0]
    assert index is not None and whole is not None
    if user.op == "Gather":
        assert part is not None
        place = graph.constant(np.array(part[1], index.array.dtype), f"{x.name}_place", user)
        return user.copy([x, place], [None])
    found = constant_cuts(user, types.rank(whole) or 0)
    if part is not None:
        end = LARGEST[1] if part[2] is None else part[2]
        found = [(k, part[1], end, 1) if k == axis else (k, a, b, step) for k, a, b, step in found]
    else:
        found = [cut for cut in found if cut[0] != axis]
    given = [graph.constant(np.array([c[i] for c in found], np.int64), f"{x.name}_cut", user) for i in (1, 2, 0, 3)]
    return user.copy([x, *given], [None])


def _padded(parts: Parts) -> tuple[Parts, int, int, Array] | None:
    """Return (inner parts, pad before, pad behind, number) if the outer parts repeat a single number; else None."""
    first, last = repeated(parts[0][0]), repeated(parts[-1][0])
    if first is not None and last is not None and first.tobytes() != last.tobytes():
        last = None
    fill = last if first is None else first
    inner = parts[first is not None : len(parts) - (last is not None)]
    if fill is None or not inner or types.dtype(parts[0][0]) not in _PADDED:
        return None
    before = _length(parts[0]) if first is not None else 0
    behind = _length(parts[-1]) if last is not None else 0
    return None if before is None or behind is None else (inner, before, behind, fill)


def _length(part: Part) -> int | None:
    return None if part[2] is None else part[2] - part[1]


def _add_unread(gone: dict[Node, None], kept: set[Value]) -> None:
    """Add the producers used only by these nodes."""

    def is_unread(v: Value) -> bool:
        return not v.is_output and v not in kept and all(u in gone for u in v.users)

    todo = list(gone)
    while todo and len(gone) < _MAX_PARTS + len(todo):
        for v in todo.pop().operands:
            node = v.producer
            if node is None or node in gone or node.op == "Constant":
                continue
            if all(map(is_unread, node.results)):
                gone[node] = None
                todo.append(node)
