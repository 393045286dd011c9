"""Equal dims of several tensors, read from a single tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import REFUSED, is_refused
from onnxopt.analysis.shapes.sizes import known_order, listed_by
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, arrays_of, present, producer
from onnxopt.operators import SAME_ORDER
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting.parts import insert_new
from onnxopt.rewriting.rule import canonical_operands, listed_axes

Dims = list[int | str | None]

_MAX_COMPARED: Final = 8  # Shapes compared for equal dims
_MAX_DIMS: Final = 64  # elements of a vector of dims
_TURNING: Final = ("Transpose", "Unsqueeze")  # operators whose dims are input dims at other positions


@register
class ShapeSources(GraphPass):
    """Gather(Shape(y), j) = Gather(Shape(x), i) for dims with equal symbols, to share one Shape; a Concat of dims
    of one Shape is a Gather; Shape(f(x)) = Shape(x) where only the shape of f(x) is used; dims of a Transpose or
    Unsqueeze are taken from the operand.

    Applies when: the removed Shape has no other readers, indices are constant, and the other Shape is available in
    time; x provably has the shape of f(x).
    Exporters query the batch wherever needed: from tokens, a mask, a cache.
    """

    info = PassInfo("shape-sources", opt_level=1, after=("shape-arithmetic", "index-chains"), ops=("Shape",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in list(graph.by_op.get("Shape", ())):
            climbed: Node | None = node
            while climbed is not None:
                climbed = _climb(climbed, ctx)
        listed = {n: dims for n in graph.by_op.get("Shape", ()) if (dims := _dims(n.output)) is not None}
        if len(listed) < 2 and not (listed and graph.by_op.get("Concat")):
            return
        position = {n: i for i, n in enumerate(graph)}
        shapes = _Shapes(graph, {n: listed[n] for n in sorted(listed, key=position.__getitem__)}, position)
        for node in reversed(shapes.listed):  # of two equal lists the first is kept
            shapes.spare(node, ctx)
        for node in list(graph.by_op.get("Concat", ())):
            shapes.pick_together(node, ctx)


def _climb(node: Node, ctx: PassContext) -> Node | None:
    """Rewrite Shape(f(x)) = Shape(x); Gather(Shape(Transpose(x, p)), i) = Gather(Shape(x), p[i]), also for an
    Unsqueeze. Returns the Shape of the operand; None if no operand has the dims."""
    value, maker = node.inputs[0], producer(node.inputs[0])
    if value is None or maker is None or maker.graph is not node.graph or not _is_read_for_dims(value, maker):
        return None
    same = (v for v in present(maker.inputs) if not v.constant and types.same_shape(v, value))
    source = next(same, None)
    if source is None:
        return _climb_axes(node, maker, ctx) if maker.op in _TURNING else None
    if not _may_change(node, ctx, "climbed"):
        return None
    node.set_input(0, source)
    return node


def _is_read_for_dims(value: Value, maker: Node) -> bool:
    """Whether only Shapes read the node's results; behind a Transpose or Unsqueeze, movers that may merge, too."""
    beside = (*SAME_ORDER, "Transpose") if maker.op in _TURNING else ()
    if value.is_output or len(maker.used_outputs()) > 1:
        return False
    return all(u.op == "Shape" or u.op in beside for u in value.users)


def _indices_picked(node: Node) -> list[Array] | None:
    """Return the indices of the Gathers that read the Shape of all dims; None if others read a part or the whole."""
    picks, lists_all = list(node.output.users), not node.attr("start") and node.attr("end") is None
    picked = not node.output.is_output and all(n.op == "Gather" and n.graph is node.scope for n in picks)
    return arrays_of(pick.inputs[1] for pick in picks) if lists_all and picked else None


def _climb_axes(node: Node, maker: Node, ctx: PassContext) -> Node | None:
    """Return the Shape of the operand of a Transpose or Unsqueeze, if every reader of `node` is a Gather of dims that
    the operand has; else None."""
    graph, x, axes = node.scope, maker.inputs[0], _axes_before(maker)
    picks, given = list(node.output.users), _indices_picked(node)
    if x is None or axes is None or given is None:
        return None
    before = [at for i in given if (at := _picked_axes(i, axes)) is not None]
    if len(before) < len(given) or not _may_change(node, ctx, "climbed"):
        return None
    listed = insert_new(graph, node.copy([x], []), node.output, node)  # a new value, since the length differs
    for pick, i, at in zip(picks, given, before):
        pick.set_input(0, listed)
        pick.set_input(1, graph.constant(np.array(at, np.int64).reshape(i.shape), pick.output.name, pick))
    graph.remove(node)
    return listed.producer


def _picked_axes(indices: Array, axes: list[int | None]) -> list[int] | None:
    """Return the operand axes at the indices; None for an added axis, or an index out of range."""
    places = range(-len(axes), len(axes))
    found = [a for j in indices.reshape(-1).tolist() if j in places and (a := axes[j]) is not None]
    return found if len(found) == indices.size else None


def _may_change(shape: Node, ctx: PassContext, what: str) -> bool:
    """Whether a Shape may read another tensor: no body would be rejected, and the pass has fuel."""
    return not _misleads(shape, ctx, what) and ctx.spend(what, at=shape)


def _axes_before(maker: Node) -> list[int | None] | None:
    """Return the operand axis of each result axis, None for an added axis; None if unknown."""
    x, rank = maker.inputs[0], types.rank(maker.output)
    if x is None or rank is None or maker.has_references:
        return None
    if maker.op == "Transpose":
        perm = known_order(maker, rank)
        return None if perm is None else [*perm]
    axes = listed_axes(maker)
    added = {a % rank for a in axes or () if -rank <= a < rank}
    if axes is None or len(added) != len(axes) or types.rank(x) != rank - len(added):
        return None
    rest = iter(range(rank))
    return [None if i in added else next(rest) for i in range(rank)]


def _misleads(shape: Node, ctx: PassContext, what: str) -> bool:
    """Whether a body might be rejected if a runtime knew the listed sizes, as it may for the other tensor."""
    for value in (shape.output, *(g.output for g in shape.output.users if g.op == "Gather")):
        dims = _dims(value)
        if dims is None or not all(isinstance(d, int) for d in dims):
            continue
        listed = np.array(dims, np.int64)
        if is_refused(value, listed.reshape(()) if types.rank(value) == 0 else listed):
            ctx.decline(what, REFUSED, repr(shape))
            return True
    return False


class _Shapes:
    """The Shapes of a scope, in order, indexed by dim."""

    def __init__(self, graph: Graph, listed: dict[Node, Dims], position: dict[Node, int]) -> None:
        self.graph = graph
        self.listed = listed
        self.position = position
        self.listing: dict[int | str, list[Node]] = {}
        for node, dims in listed.items():
            for d in dict.fromkeys(dims):
                if d is not None:
                    self.listing.setdefault(d, []).append(node)

    def spare(self, node: Node, ctx: PassContext) -> None:
        """Remove a Shape if all picked dims are listed by another Shape, and pick there."""
        picks = self._picks(node.output)
        wanted = [d for dims in picks.values() for d in dims]
        if not wanted:
            return
        other = next((n for n in self._that_list(wanted) if n is not node and self._is_in_time(n, node, picks)), None)
        if other is None or not _may_change(node, ctx, "spared"):
            return
        self._pick_from(other, node, picks)

    def _pick_from(self, other: Node, node: Node, picks: dict[Node, Dims]) -> None:
        """Make the readers of the Shape `node` pick from `other`."""
        if self._is_late(other, node) and not self._reads_behind(other, node):
            self._move(other, node)
        for gather, dims in picks.items():
            if self._is_late(other, gather):
                self._move(gather, other)
            self._pick(gather, other, dims)

    def _picks(self, value: Value) -> dict[Node, Dims]:
        """Return the dims picked by each reader of a Shape; none if a reader is no Gather, or a dim is unknown."""
        found = {g: _dims(g.output) or [None] for g in value.users if g.op == "Gather" and g.graph is self.graph}
        known = len(found) == len(value.users) and not any(None in dims for dims in found.values())
        return found if known and not value.is_output else {}

    def _is_late(self, a: Node, b: Node) -> bool:
        return self.position[a] > self.position[b]

    def _reads_behind(self, other: Node, node: Node) -> bool:
        """Whether the tensor of a Shape is computed behind `node`."""
        maker = producer(other.inputs[0])
        return maker in self.position and self._is_late(maker, node)

    def _is_in_time(self, other: Node, node: Node, picks: Iterable[Node]) -> bool:
        """Whether `other` is computed before the readers of the picks, or can move to `node`."""
        if not self._is_late(other, node) or not self._reads_behind(other, node):
            return True
        return all(self.position[other] <= self._first_reader(g.output) for g in picks)

    def pick_together(self, node: Node, ctx: PassContext) -> None:
        """Rewrite Concat(dims) = Gather(Shape(x), their indices)."""
        dims = _dims_joined(node)
        if not any(isinstance(d, str) for d in dims):
            return
        for other in self._that_list(sorted(dims, key=lambda d: isinstance(d, int))):  # numbers say little
            if self.position[other] < self.position[node] and ctx.spend("together", at=node):
                at = self.graph.constant(self._places(other, dims), f"{node.output.name}_indices", node)
                picked: Value = self.graph.make("Gather", [other.output, at], before=node, axis=0)
                assert picked.producer is not None
                self.graph.take_over(node.output, picked.producer)
                self.graph.remove(node)
                return

    def _that_list(self, wanted: Dims) -> list[Node]:
        """Return the used Shapes with all these dims."""
        found = self.listing.get(wanted[0], [])[:_MAX_COMPARED] if wanted[0] is not None else []
        return [n for n in found if n.output.is_used and all(d in self.listed[n] for d in wanted)]

    def _first_reader(self, value: Value) -> int:
        around = (user.around_in(self.graph) for user in value.users)
        return min((self.position[node] for node in around if node is not None), default=len(self.position))

    def _move(self, node: Node, place: Node) -> None:
        self.graph.move_after(node, place)
        self.position[node] = self.position[place]

    def _pick(self, gather: Node, shape: Node, dims: Dims) -> None:
        indices = gather.inputs[1]
        assert indices is not None
        at = self._places(shape, dims).reshape(indices.array.shape)
        gather.set_input(0, shape.output)
        gather.set_input(1, self.graph.constant(at, indices.name, gather))

    def _places(self, shape: Node, dims: Dims) -> Array:
        return np.array([self.listed[shape].index(d) for d in dims], np.int64)


def _dims_joined(concat: Node) -> Dims:
    """Return the dims that a Concat lists; none if too many, or not all known."""
    dims: Dims = []
    for v in concat.inputs:
        part = _dims(v)
        if part is None or None in part or len(dims) > _MAX_DIMS:
            return []
        dims += part
    return dims


def _dims(value: Value | None) -> Dims | None:
    """Return the dims in a vector or scalar: a Shape, an element or part of a Shape, or a constant; else None."""
    if value is not None and value.constant:
        kind, lengths = value.constant_type()
        small = kind == TensorProto.INT64 and len(lengths) == 1 and lengths[0] <= _MAX_DIMS
        return value.array.tolist() if small else None
    node = producer(value)
    if value is None or node is None or node.has_references or node.inputs[0] is None:
        return None
    if node.op == "Shape":
        shape = types.shape(node.inputs[0])
        return None if shape is None else list(shape[listed_by(node)])
    return _dims_picked(node)


def _dims_picked(node: Node) -> Dims | None:
    """Return the dims in a Gather or Slice of a Shape; None for other nodes."""
    maker = producer(node.inputs[0], "Shape")
    dims, given = _dims(maker.output) if maker is not None else None, arrays_of(canonical_operands(node)[1:])
    if dims is None or given is None or any(a.ndim > 1 for a in given):
        return None
    numbers = [a.reshape(-1).tolist() for a in given]
    if node.op == "Gather":
        return None if any(not -len(dims) <= i < len(dims) for i in numbers[0]) else [dims[i] for i in numbers[0]]
    is_slice = node.op == "Slice" and numbers[3:] in ([], [[1]]) and [len(n) for n in numbers[:2]] == [1, 1]
    return dims[numbers[0][0] : numbers[1][0]] if is_slice else None
