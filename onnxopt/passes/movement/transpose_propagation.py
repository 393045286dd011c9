"""Operators that do not care about the order of axes are turned as a whole, so that the Transposes around them go.

Exporters of channels-last frameworks put a Transpose before and after each convolution; what lies between works element
by element, or along axes that can be renamed. Turned into the order of the convolutions, the region needs none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.operators import BROADCASTING, REDUCTIONS, UNARY
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.protos import Array, make_node
from onnxopt.rewriting.axis_runs import after, inverse
from onnxopt.rewriting.forms import listed_axes, operands
from onnxopt.rewriting.parts import is_reshape
from onnxopt.rewriting.regions import Region, regions
from onnxopt.rewriting.replace import remove_dead

Perm = tuple[int, ...]

_BROADCASTING: Final = BROADCASTING | {"Clip"}
_QUANTIZERS: Final = frozenset({"DequantizeLinear", "QuantizeLinear"})
_ONE_AXIS: Final = frozenset({"Concat", "LogSoftmax", "Softmax", "Split"})
_SHARED_BYTES: Final = 1 << 16  # a constant that others read, or that is not stored, is copied in another order
_TURNABLE: Final = UNARY.union(_BROADCASTING, _ONE_AXIS, REDUCTIONS, _QUANTIZERS, ("Pad", "Slice"))


@register
class TransposePropagation(GraphPass):
    """f(Transpose(x, p)) = Transpose(f'(x), p), f' the same with its axes renamed: Transposes meet, and cancel.

    Applies when: a region of operators that work element by element, broadcast, or along axes that are constant
    (Concat, Split, Softmax, Reduce, Pad, Slice, quantizers) has more Transposes at its border than the turned region
    needs, and these move no more elements. A Transpose that only moves axes of one element, beside a Reshape, is none.
    Keeps: what is read elsewhere, or an output, in its order: by a Transpose that counts against the rest.
    Not done: opsets before 7; Softmax before opset 13, which takes all axes from one on together.
    """

    info = PassInfo("transpose-propagation", opt_level=2, before=("flatten-rows",), ops=("Transpose",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.is_function or graph.opset() < 7 or not graph.by_op.get("Transpose"):
            return
        while self._turn_regions(graph, ctx):
            pass  # what is turned reads what others read, and may be one region with them now

    def _turn_regions(self, graph: Graph, ctx: PassContext) -> bool:
        turned = False
        for found in regions(graph, _turnable_rank, _data):
            region = _Region(graph, found)
            choices = [(region.saving(q), q) for q in region.choices()]
            if not choices:
                continue
            saved, q = max(choices, key=lambda c: c[0])
            if saved < 1:
                ctx.decline("turned", "it would not leave fewer Transposes", repr(region.nodes[0]))
            elif ctx.spend("turned", at=region.nodes[-1]):
                region.turn(q)
                turned = True
        return turned


# -- which operators can be turned ----------------------------------------------------------------------------


def _turnable_rank(node: Node) -> int | None:
    """The rank of what the node works on, if renaming axes is all it takes; None if not."""
    if node.has_references or None in node.outputs or not node.inputs or node.bodies:
        return None
    op = node.op
    if op not in _TURNABLE:
        return None
    if op in ("LogSoftmax", "Softmax") and node.graph is not None and node.graph.opset() < 13:
        return None
    first = node.inputs[0]
    value = first if op in REDUCTIONS and first is not None else node.outputs[0]
    rank = types.rank(value) if value is not None else None
    if rank is None or rank < 2 or (len(node.outputs) > 1 and op != "Split"):
        return None
    if op in _BROADCASTING:
        return rank if all(v is None or _fits(v, rank) for v in node.inputs) else None
    if op in REDUCTIONS:
        return rank if listed_axes(node) else None
    if op == "Pad":
        _, pads, _, axes = _given(node)
        return rank if pads is not None and pads.constant and axes is None else None
    if op == "Slice":
        axes = _given(node)[3]
        return rank if axes is not None and axes.constant else None
    if op in _QUANTIZERS:
        return rank if _is_one_scale(node) or _is_scale_per_axis(node) else None
    return rank


def _is_one_scale(node: Node) -> bool:
    """Does a quantizer have one scale for the whole tensor?"""
    scale = node.input(1)
    return scale is not None and types.shape(scale) in ((), (1,))


def _is_scale_per_axis(node: Node) -> bool:
    """Does it have one for each element along an axis, and not for blocks?"""
    scale, graph = node.input(1), node.graph
    if scale is None or graph is None or graph.opset() < 13:
        return False
    return types.rank(scale) == 1 and not _is_one_scale(node)  # that of blocks has all axes


def _given(node: Node) -> list[Value | None]:
    """The operands of Pad or Slice: data, pads, value, axes; or data, starts, ends, axes."""
    return [*operands(node), None, None, None][:4]


def _fits(v: Value, rank: int) -> bool:
    """Can an operand that is broadcast be turned? One of lower rank gets ones in front, if it is constant."""
    return types.rank(v) == rank or _is_single(v) or (v.constant and len(v.constant_type()[1]) <= rank)


def _is_single(v: Value) -> bool:
    shape = types.shape(v)
    return shape is not None and all(d == 1 for d in shape)


def _drops_axes(node: Node) -> bool:
    return node.op in REDUCTIONS and not node.keeps_dims


def _data(node: Node, rank: int) -> Iterator[Value]:
    """The inputs whose axes are turned, constants left out."""
    inputs = node.inputs if node.op in _BROADCASTING or node.op == "Concat" else node.inputs[:1]
    return (v for v in inputs if v is not None and not v.constant and not _is_single(v))


# -- a region -------------------------------------------------------------------------------------------------


class _Region:
    """Nodes, in order, that work on values of one rank."""

    def __init__(self, graph: Graph, found: Region[int]) -> None:
        self.graph = graph
        self.rank = found.kind
        self.nodes = found.nodes
        self.inside = set(found.nodes)
        self.entering = list(
            dict.fromkeys(v for n in self.nodes for v in _data(n, self.rank) if v.producer not in self.inside)
        )

    def made(self) -> Iterator[Value]:
        """What has the rank of the region, and is turned."""
        return (v for n in self.nodes if not _drops_axes(n) for v in n.outputs if v is not None)

    def _leaving(self) -> Iterator[tuple[Value, list[Node], bool]]:
        """(value, Transposes outside that read it, does anything else outside?)"""
        for v in self.made():
            outside = [u for u in v.users if u not in self.inside]
            transposes = [u for u in outside if u.op == "Transpose" and u.graph is self.graph]
            if outside or v.is_output:
                yield v, transposes, v.is_output or len(transposes) < len(outside)

    def choices(self) -> list[Perm]:
        """The orders that make Transposes at the border cancel, the most common first."""
        count: Counter[Perm] = Counter()
        for v in self.entering:
            if v.producer is not None and v.producer.op == "Transpose":
                count[inverse(order_of(v.producer, self.rank))] += 1
        for _, transposes, _ in self._leaving():
            count.update(order_of(t, self.rank) for t in transposes)
        identity = tuple(range(self.rank))
        return [q for q, _ in count.most_common(2) if q != identity]

    def saving(self, q: Perm) -> int:
        """Transposes less when the region is in the order `q`; 0 where more elements would be moved. One that is a
        Reshape beside another counts for none, before and after."""
        back, identity = inverse(q), tuple(range(self.rank))
        saved, moved = 0, 0.0
        for node in self.nodes:
            if _drops_axes(node):
                rest = [back[i] for i in range(self.rank) if i not in {a % self.rank for a in listed_axes(node) or ()}]
                if rest != sorted(rest):
                    return 0
        for v in self.entering:
            t = v.producer if v.producer is not None and v.producer.op == "Transpose" else None
            if t is not None and t.inputs[0] is not None and t.inputs[0].producer in self.inside:
                return 0  # it works on one value in two orders
            goes = t is not None and not v.is_output and self.inside.issuperset(v.users)
            if t is not None and t.inputs[0] is not None:
                x, perm = t.inputs[0], order_of(t, self.rank)
                goes = goes and not (x.only_user is t and is_reshape(types.shape(x), perm, x.producer))
                needed = after(perm, q) != identity
            else:
                needed = not (self.inside.issuperset(v.users) and is_reshape(types.shape(v), q, v.producer))
            saved += goes - needed
            moved += _size(v) * (needed - goes)
        for v, transposes, others in self._leaving():
            dims = types.shape(v)
            turned = [dims[i] for i in q] if dims is not None else None
            for t in transposes:
                perm, reader = order_of(t, self.rank), t.output.only_user
                cancels = after(back, perm) == identity and not t.output.is_output
                goes = not is_reshape(dims, perm, reader)
                needed = not cancels and not is_reshape(turned, after(back, perm), reader)
                saved += goes - needed
                moved += _size(v) * (needed - goes)
            readers = {u for u in v.users if u not in self.inside and u not in transposes}
            reader = readers.pop() if len(readers) == 1 and not v.is_output else None
            needed = others and not is_reshape(turned, back, reader)
            saved -= needed
            moved += _size(v) * needed
        for v in {v for n in self.nodes for v in n.inputs if v is not None and v.constant}:
            if (len(v.users) > 1 or not v.is_stored) and v.array.nbytes > _SHARED_BYTES:
                return 0
        return 0 if moved > 0 else saved

    # -- doing it ----------------------------------------------------------------------------------------

    def turn(self, q: Perm) -> None:
        back = inverse(q)
        turned: dict[Value, Value] = {}
        leaving = list(self._leaving())
        sources = [v.producer for v in self.entering]
        for node in self.nodes:
            inputs = [v if v is None else self._operand(node, i, v, q, turned) for i, v in enumerate(node.inputs)]
            if _drops_axes(node):
                for i, v in enumerate(inputs):
                    if v is not node.inputs[i]:
                        node.set_input(i, v)
                _rename_axes(node, node, back, self.rank)
                continue
            results: list[Value | None] = [self._new(v, q) for v in node.outputs if v is not None]
            new = self.graph.insert(node.copy(inputs, results), node)
            _rename_axes(new, node, back, self.rank)
            turned.update((old, made) for old, made in zip(node.outputs, results) if old is not None and made)
        for value, transposes, others in leaving:
            self._hand_out(value, turned[value], transposes, others, back)
        for node in reversed(self.nodes):
            if not _drops_axes(node):
                self.graph.remove(node)
        for source in sources:
            if source is not None and source.op == "Transpose":
                remove_dead(source)

    def _new(self, like: Value, q: Perm) -> Value:
        value = Value(self.graph.model.names.fresh(like.name, "_turned"), self.graph)
        shape = types.shape(like)
        value.dtype = types.dtype(like)
        value.shape = tuple(shape[i] for i in q) if shape is not None else None
        return value

    def _operand(self, node: Node, index: int, v: Value, q: Perm, turned: dict[Value, Value]) -> Value:
        """What the turned node reads in place of `v`."""
        broadcast = node.op in _BROADCASTING or node.op == "Concat"
        if index and not broadcast:
            return v
        if v not in turned:
            if _is_single(v) and node.op != "Concat":
                return v
            if v.constant:
                turned[v] = self._constant(v, q, node)
            else:
                turned[v] = self._enter(v, q, node)
        return turned[v]

    def _constant(self, v: Value, q: Perm, before: Node) -> Value:
        """One of lower rank stays as low as it can: runtimes know a normalization by a scale of one axis."""
        missing = self.rank - v.array.ndim
        array: Array = v.array.reshape((1,) * missing + v.array.shape).transpose(q)
        while missing and array.ndim > 1 and array.shape[0] == 1:
            array = array[0]
        if array.shape == v.array.shape and array.tobytes() == v.array.tobytes():
            return v  # also the signs of its zeros are the same
        return self.graph.constant(array, v.name, before)

    def _enter(self, v: Value, q: Perm, before: Node) -> Value:
        """A value from outside in the order `q`: what was transposed into its order is read in its own."""
        t = v.producer
        if t is not None and t.op == "Transpose" and t.inputs[0] is not None:
            x, perm = t.inputs[0], after(order_of(t, self.rank), q)
            if perm == tuple(range(self.rank)):
                return x
        else:
            x, perm = v, q
        value = self._new(v, q)
        self._transpose(x, perm, value, before)
        return value

    def _transpose(self, x: Value, perm: Perm, result: Value | None, before: Node | None) -> Node:
        node = Node(make_node("Transpose", "", "", {"perm": list(perm)}), [x], [result])
        return self.graph.insert(node, before)

    def _hand_out(self, value: Value, new: Value, transposes: list[Node], others: bool, back: Perm) -> None:
        """Transposes outside read the turned value, or are it; anything else gets the value in its order."""
        for t in transposes:
            perm = after(back, order_of(t, self.rank))
            if perm == tuple(range(self.rank)) and not t.output.is_output:
                t.output.replace_all_uses_with(new)
                self.graph.remove(t)
            else:
                t.set_input(0, new)
                t.set_attr("perm", list(perm))
        if others:
            self.graph.take_over(value, self._transpose(new, back, None, value.producer))


def _rename_axes(node: Node, old: Node, back: Perm, rank: int) -> None:
    """Axis i of `old` is axis back[i] of `node`, which has the operands of the turned region."""
    graph = node.graph
    assert graph is not None

    def write(index: int, name: str, array: Array) -> None:
        like = old.input(index)
        assert graph is not None
        if like is None:
            node.set_attr(name, array.tolist())
        else:
            node.set_input(index, graph.constant(array.astype(like.array.dtype), like.name, node))

    if node.op in _ONE_AXIS or (node.op in _QUANTIZERS and _is_scale_per_axis(old)):
        node.set_attr("axis", back[int(old.attr("axis")) % rank])
    elif node.op in REDUCTIONS:
        write(1, "axes", np.array(sorted(back[i % rank] for i in listed_axes(old) or ())))
    elif node.op == "Pad":
        pads = _given(old)[1].array.reshape(2, rank)  # type: ignore[union-attr]
        write(1, "pads", pads[:, list(inverse(back))].reshape(-1))
    elif node.op == "Slice":
        write(3, "axes", np.array([back[int(i) % rank] for i in _given(old)[3].array]))  # type: ignore[union-attr]


def _size(value: Value) -> float:
    """Elements, an unknown dim taken for one: what is compared has the same unknown dims nearly always."""
    return float(prod(d for d in types.shape(value) or () if isinstance(d, int)))
