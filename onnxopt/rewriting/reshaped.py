"""Regions in a view whose borders are Reshapes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import known_order
from onnxopt.graph import Shape, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node, own_producer, sole_reader
from onnxopt.operators import REDUCTIONS, SAME_ORDER
from onnxopt.proto.messages import make_node
from onnxopt.rewriting.index_maps import constant_target, inverse
from onnxopt.rewriting.parts import keeps_order
from onnxopt.rewriting.relayout import End, Relayout
from onnxopt.rewriting.rule import listed_axes

_QUANTIZERS: Final = frozenset({"DequantizeLinear", "QuantizeLinear"})
_MOST_READERS: Final = 4  # readers of a Reshape searched for a quantizer


class Reshaped(Relayout):
    """Nodes, in order, with Reshapes at the border."""

    def keeps(self, quantizer: Node | None) -> bool:
        """Return whether a Reshape must stay next to this node, a quantizer."""
        return quantizer is not None and quantizer.op in _QUANTIZERS

    def turned(self, perm: Sequence[int], enters: bool) -> Sequence[int] | None:
        """Return the order in the view of a Transpose between the region and a Reshape; None if the Transpose cannot be
        in the view, or needs no order there."""
        return None

    def enters(self, v: Value) -> End[Node] | None:
        """Return the end at an outside value: read the input of an existing Reshape, directly, through another Reshape
        or through a Transpose."""
        wanted, node = self.seen_dims(v), v.producer
        alone = not v.is_output and self.inside.issuperset(v.users)
        if alone and node is not None and node.op == "Transpose" and (end := self._enters_turned(v, node)) is not None:
            return end
        x = self._in_order(node)
        if x is not None and (self.keeps(x.producer) or x.producer in self.inside):
            return None
        if x is not None and (target := self.sizes(types.shape(x), wanted)) is not None:
            if not target:
                return End(int(alone), lambda before: x, source=x)
            return self.reshaped(v, x, target, 0 if alone else -1)
        target = self.sizes(types.shape(v), wanted)
        merges = alone and node is not None and _keeps_only(node, wanted)
        return self.reshaped(v, v, target, 0 if merges else -1) if target else None

    def reshaped(self, v: Value, x: Value, target: Sequence[int], saved: int) -> End[Node]:
        """Return an end where the region reads a Reshape of `x`."""
        return End(saved, lambda before: self.reshape(x, target, self.new(v), before).output, source=x, target=target)

    def _in_order(self, node: Node | None) -> Value | None:
        """Return the value whose elements the node hands on in order; None for other nodes."""
        return node.inputs[0] if node is not None and keeps_order(node) and node.graph is self.graph else None

    def _enters_turned(self, v: Value, transpose: Node) -> End[Node] | None:
        """Return the end at v = Transpose(Reshape(x)), where both work in the view; None if impossible."""
        y, seen = transpose.inputs[0], self.seen_dims(v)
        node, perm = own_producer(y, transpose, *SAME_ORDER), known_order(transpose, types.rank(v))
        x, order = node.inputs[0] if node is not None else None, self.turned(perm, True) if perm else None
        if y is None or x is None or seen is None or not order or y.graph is not self.graph:
            return None
        if self.keeps(x.producer) or x.producer in self.inside:
            return None
        wanted = tuple(seen[i] for i in inverse(order))
        target = self.sizes(types.shape(x), wanted)
        if target is None:
            return None

        def write(before: Node) -> Value:
            read = self.reshape(x, target, self.new(y, wanted), before).output if target else x
            return self._turn(transpose, read, order, before)

        return End(int(not target), write, source=x, target=target)

    def _leaves_turned(self, v: Value, user: Node) -> End[Value] | None:
        """Return the end at Reshape(Transpose(v)), where both work in the view; None if impossible."""
        reader, perm, dims = user.output.only_user, known_order(user, types.rank(v)), self.seen_dims(v)
        order = self.turned(perm, False) if perm else None
        if reader is None or not order or dims is None or not self.reads_alone(reader, user.output):
            return None
        target = self.sizes_for(v, reader, tuple(dims[i] for i in order))
        if target is None:
            return None

        def write(new: Value) -> Value:
            self.read_by(reader, self._turn(user, new, order, reader), target, new)
            self.graph.remove(user)
            return new

        return End(int(not target), write)

    def _turn(self, like: Node, x: Value, perm: Sequence[int], before: Node) -> Value:
        dims = types.shape(x) or ()
        value = self.new(like.output, tuple(dims[i] for i in perm))
        self.graph.insert(like.copy([x], [value]), before).set_attr("perm", list(perm))
        return value

    def leaves(self, v: Value, user: Node) -> End[Value] | None:
        """Return the end at an outside reader: a Reshape reads the value in the view, or is removed; also behind a
        Transpose."""
        is_turned = user.op == "Transpose" and self.reads_alone(user, v) and not user.has_references
        if is_turned and (end := self._leaves_turned(v, user)) is not None:
            return end
        is_reader = self.reads_alone(user, v) and not user.has_references
        target = self.sizes_for(v, user, self.seen_dims(v)) if is_reader else None
        if target is None:
            return None
        goes = not target and not _is_composed(user)
        return End(int(goes), lambda new: self.read_by(user, new, target, new))

    def reads_alone(self, user: Node, v: Value) -> bool:
        """Return whether a node of the graph reads the value as first operand only."""
        return user.graph is self.graph and user.inputs[0] is v and v.users[user] == 1

    def sizes_for(self, v: Value, user: Node, dims: Shape | None) -> Sequence[int] | None:
        """Return the target of a reader turned into a Reshape from these dims; empty if no Reshape is needed."""
        if not keeps_order(user) or any(self.keeps(u) for u in islice(user.output.users, _MOST_READERS)):
            return None
        return self.sizes(dims, types.shape(user.output), can_go=not (user.output.is_output and v.is_output))

    def read_by(self, user: Node, x: Value, target: Sequence[int], new: Value) -> Value:
        """Replace the reader by a Reshape of `x`, or by `x`. Returns the present value for `new`, which may have been
        renamed."""
        made = user.output
        if target:
            reader = self.reshape(x, target, None, user)
            describe_as(reader.proto, user.proto)
            self.graph.take_over(made, reader)
        else:
            read = made.replace_all_uses_with(x)
            new = read if x is new else new
        self.graph.remove(user)
        return new

    def restores(self, v: Value, readers: list[Node]) -> End[Value] | None:
        target = self.sizes(self.seen_dims(v), types.shape(v), can_go=False)
        return self.restored_by(v, target) if target else None

    def restored_by(self, v: Value, target: Sequence[int]) -> End[Value]:
        """Return an end where a Reshape restores the value."""

        def write(new: Value) -> Value:
            self.graph.take_over(v, self.reshape(new, target, None, v.producer))
            return new

        return End(-1, write, target=target)

    def sizes(self, dims: Shape | None, wanted: Shape | None, can_go: bool = True) -> list[int] | None:
        """Return the constant Reshape target from `dims` to `wanted`; empty if no Reshape is needed, None if
        impossible."""
        if dims is None or wanted is None:
            return None
        return [] if can_go and same(dims, wanted) else constant_target(dims, wanted)

    def target(self, sizes: Sequence[int], hint: str, before: Node | None) -> Value:
        """Return the target operand of a Reshape to these sizes."""
        return self.graph.constant(np.array(sizes, np.int64), hint, before)

    def reshape(self, x: Value, sizes: Sequence[int], result: Value | None, before: Node | None) -> Node:
        target = self.target(sizes, f"{x.name}_shape", before)
        listed = {} if target.constant else {"allowzero": 1}
        return self.graph.insert(Node(make_node("Reshape", "", "", listed), [x, target], [result]), before)


def same(dims: Shape, wanted: Shape) -> bool:
    """Return whether dims with equal element counts are equal. A single dim may be unknown if all others are known."""
    others = [d for d, w in zip(dims, wanted) if d == w is not None]
    known = all(isinstance(d, int) and d for d in others)
    return len(dims) == len(wanted) and len(others) + known >= len(dims)


def _keeps_only(node: Node, wanted: Shape | None) -> bool:
    """Return whether a node reduces, and its result without the reduced axes has these dims."""
    axes = listed_axes(node) if node.op in REDUCTIONS and node.keeps_dims else None
    dims = types.dims_of(node.outputs[0])
    return axes is not None and wanted == tuple(d for i, d in enumerate(dims) if {i, i - len(dims)}.isdisjoint(axes))


def _is_composed(view: Node) -> bool:
    """Return whether the only reader of a Reshape is another: both become one anyway."""
    reader = sole_reader(view.output, *SAME_ORDER)
    return reader is not None and reader.graph is view.graph and all(v.constant for v in reader.operands[1:])
