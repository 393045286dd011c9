"""Equal computations on adjacent parts, joined in the same order, computed on the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

from onnxopt.analysis import types
from onnxopt.analysis.linear import lengths_of
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node, present, producer
from onnxopt.operators import ARITHMETIC, UNARY, of_form
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import Array, attribute_bytes
from onnxopt.rewriting.parts import insert_new, insert_split, side_by_side

_OPS: Final = UNARY | ARITHMETIC | of_form("bounded") | {"Max", "Min"}
_MAX_PACKED: Final = 64  # inputs of a Concat, and its packs
_BLOCK: Final = 32  # contiguous elements of a broadcast operand; with fewer, a runtime needs as many steps as elements
_MAX_BROADCAST: Final = 1 << 12  # elements of a result small enough for any broadcasting

Pack = tuple[Value, ...]


class _Alike(NamedTuple):
    """Nodes of the same operator, and for each input the replacement: a pack, a value or a constant."""

    nodes: tuple[Node, ...]
    operands: list[Pack | Value | Array | None]


@register
class PackParts(GraphPass):
    """Concat(f(a, c), f(b, d)) = f(Split(x)[0], Split(x)[1]), where (a, b) and (c, d) are adjacent parts.

    Applies when: elementwise operators are equal step by step back to parts of Splits along the Concat's axis, in
    order, or to constants; other dims are equal, and inner values have no other readers.
    Corners of boxes are computed from centers and sizes in this way, (cx - w/2, cy - h/2, cx + w/2, cy + h/2) = (c -
    s/2, c + s/2), likewise landmarks. Known as superword-level parallelism (Larsen, Amarasinghe, 2000).
    Not done: different constants broadcast along few elements, which is slower in runtimes.
    """

    # After: Slices have become a Split, and axes are added before it.
    info = PassInfo(
        "pack-parts", opt_level=2, after=("slices-to-split", "axes-before-split", "axes-first"), ops=("Split",)
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 8:
            return  # attributes name the broadcast axes, and Max does not broadcast
        for concat in list(graph.by_op.get("Concat", ())):
            packing = _Packing.of(concat)
            if packing is None:
                continue
            if packing.is_read_elsewhere():
                ctx.decline("packed", "what is in between is read elsewhere", repr(concat))
            elif ctx.spend("packed", at=concat):
                packing.carry_out()


class _Packing:
    """The inputs of a Concat to be computed together, in `runs`."""

    def __init__(self, graph: Graph, concat: Node, axis: int, shape: Shape) -> None:
        self.graph, self.concat, self.axis, self.rank = graph, concat, axis, len(shape)
        self.packs: dict[Pack, _Alike] = {}
        self.parts: dict[Pack, Node] = {}  # with their Split
        self.owner: dict[Value, Pack] = {}
        self.runs: dict[int, Pack] = {}  # by index of the first input

    @classmethod
    def of(cls, concat: Node) -> _Packing | None:
        """Return the packing of a Concat; None if nothing is equal."""
        graph, shape, inputs = concat.graph, types.shape(concat.output), concat.inputs
        if graph is None or not shape or concat.has_references or not 2 <= len(inputs) <= _MAX_PACKED:
            return None
        if not any(a == b and a in _OPS for a, b in pairwise(map(_op, inputs))):
            return None
        packing = cls(graph, concat, int(concat.attr("axis")) % len(shape), shape)
        packing._find_runs()
        return packing if packing.packs else None

    def _find_runs(self) -> None:
        inputs = self.concat.inputs
        start = 0
        while start < len(inputs):
            end = start + 1
            while end < len(inputs) and _op(inputs[end]) == _op(inputs[start]):
                end += 1
            while end - start > 1 and _op(inputs[start]) in _OPS:
                run = tuple(present(inputs[start:end]))
                if len(run) == end - start and self._packed(run):
                    self.runs[start] = run
                    break
                end -= 1
            start = end

    def is_read_elsewhere(self) -> bool:
        """Return whether a value in a pack is read outside of the packs, or by itself."""
        inside = {self.concat, *(n for alike in self.packs.values() for n in alike.nodes)}
        alone = {o for alike in self.packs.values() for o in alike.operands if isinstance(o, Value)}
        alone.update(v for v, run in self._joined() if v is not None and run is None)
        return any(v.is_output or v in alone or not inside.issuperset(v.users) for v in self.owner)

    def _joined(self) -> Iterator[tuple[Value | None, Pack | None]]:
        """Yield (present input, run or None) of the new Concat."""
        place = 0
        while place < len(self.concat.inputs):
            run = self.runs.get(place)
            yield self.concat.inputs[place], run
            place += len(run) if run is not None else 1

    def _packed(self, values: Pack) -> bool:
        """Whether the values are computed equally back to parts; registers the packs, or nothing."""
        if values in self.packs or values in self.parts:
            return True
        if len(self.packs) == _MAX_PACKED or any(v in self.owner for v in values) or not self._side_by_side(values):
            return False
        before = dict(self.packs), dict(self.parts), dict(self.owner)
        split = self._split_of(values)
        if split is not None:
            self.parts[values] = split
        else:
            alike = self._alike(values)
            if alike is None or len(set(values)) < len(values) or any(v in self.owner for v in values):
                self.packs, self.parts, self.owner = before
                return False
            self.packs[values] = alike
        self.owner.update(dict.fromkeys(values, values))
        return True

    def _side_by_side(self, values: Pack) -> bool:
        """Whether the values have known lengths along the axis, and equal dims otherwise."""
        shapes = [types.shape(v) for v in values]
        rest = set()
        for shape in shapes:
            if shape is None or len(shape) != self.rank or not isinstance(shape[self.axis], int) or None in shape:
                return False
            rest.add((*shape[: self.axis], *shape[self.axis + 1 :]))
        return len(rest) == 1 and all(v.graph is self.graph for v in values)

    def _split_of(self, values: Pack) -> Node | None:
        """Return the Split along the axis with these consecutive parts, or None."""
        split, at = producer(values[0], "Split"), values[0].index
        if split is None or split.has_references or int(split.attr("axis")) % self.rank != self.axis:
            return None
        known = lengths_of(split.outputs, self.axis)
        return split if known and split.outputs[at : at + len(values)] == [*values] else None

    def _alike(self, values: Pack) -> _Alike | None:
        """Return the equal operators that make the values, with the operands of a single one; None for others."""
        nodes = _equal_calls(values)
        operands: list[Pack | Value | Array | None] = []
        for column in zip(*(n.inputs for n in nodes)):
            given = tuple(present(column))
            operand = self._operand(given, values) if len(given) == len(column) else None
            if operand is None and given:
                return None
            operands.append(operand)
        if not _has_scalars(nodes, operands):
            return None
        return _Alike(tuple(nodes), operands) if any(isinstance(o, tuple) for o in operands) else None

    def _operand(self, column: Pack, values: Pack) -> Pack | Value | Array | None:
        """Return the operand on the whole in place of those on the parts; None if there is none."""
        shapes = [types.dims_of(v) for v in values]
        if len(set(column)) == 1 or all(v.constant for v in column):
            return self._constant(column, shapes)
        given = [types.dims_of(v) for v in column]
        aligned = all(len(g) == self.rank and g[self.axis] == s[self.axis] for g, s in zip(given, shapes))
        return column if aligned and self._packed(column) else None

    def _constant(self, column: Pack, shapes: list[Shape]) -> Value | Array | None:
        """Return one value beside all parts, or constants side by side; None if slower, or impossible."""
        sizes = [d for s in shapes for d in s[self.axis : self.axis + 1] if isinstance(d, int)]
        whole = (*shapes[0][: self.axis], sum(sizes), *shapes[0][self.axis + 1 :])
        dims, back = types.shape(column[0]), self.rank - self.axis
        if dims is None or len(dims) > self.rank:
            return None
        if len(set(column)) == 1 and (len(dims) < back or dims[-back] == 1):
            return column[0] if self._fast(dims, whole, column, shapes) else None
        if not all(v.is_stored for v in column):
            return None
        arrays = [v.array for v in column]
        joined = side_by_side(arrays, back, sizes)
        if joined is None or joined.ndim > self.rank or not self._fast(joined.shape, whole, column, shapes):
            return None
        return column[0] if joined is arrays[0] else joined

    def _fast(self, dims: Sequence[object], whole: Shape, column: Pack, shapes: Sequence[Shape]) -> bool:
        """Whether broadcasting an operand takes steps at least as long as for the parts, or few elements."""
        steps = [_span(types.shape(v) or (), shape) for v, shape in zip(column, shapes)]
        few = prod(d if isinstance(d, int) else _MAX_BROADCAST + 1 for d in whole) <= _MAX_BROADCAST
        return few or _span(dims, whole) >= min(steps)

    def carry_out(self) -> None:
        graph, concat = self.graph, self.concat
        made = self._cut_anew()
        for pack, alike in self.packs.items():
            first = alike.nodes[0]
            inputs = [self._input(o, made, first) for o in alike.operands]
            made[pack] = insert_new(graph, first.copy(inputs, []), first.output, concat)
        joined = [made[run] if run is not None else v for v, run in self._joined()]
        last = producer(joined[0])
        if len(joined) > 1 or last is None:
            last = graph.insert(concat.copy(joined, [None]), concat)
        graph.take_over(concat.output, last)
        graph.remove(concat)
        for alike in reversed(self.packs.values()):
            for node in alike.nodes:
                graph.remove(node)
        for split in dict.fromkeys(self.parts.values()):
            graph.remove(split)

    def _input(self, operand: Pack | Value | Array | None, made: dict[Pack, Value], first: Node) -> Value | None:
        if isinstance(operand, tuple):
            return made[operand]
        if operand is None or isinstance(operand, Value):
            return operand
        return self.graph.constant(operand, f"{first.output.name}_joined", self.concat)

    def _cut_anew(self) -> dict[Pack, Value]:
        """Return the packs of parts, made by new Splits, or the whole value."""
        graph, made = self.graph, {}
        for split in dict.fromkeys(self.parts.values()):
            x = split.inputs[0]
            assert x is not None
            parts, sizes, packs = self._larger_parts(split)
            if len(parts) > 1:
                insert_split(graph, x, parts, self.axis, sizes, split)
            made.update({pack: parts[i] if len(parts) > 1 else x for pack, i in packs.items()})
        return made

    def _larger_parts(self, split: Node) -> tuple[list[Value], list[int], dict[Pack, int]]:
        """Return (parts of a new Split, a single one for each pack; lengths; index of the part of each pack)."""
        names = self.graph.model.names
        parts: list[Value] = []
        sizes: list[int] = []
        packs: dict[Pack, int] = {}
        for v in present(split.outputs):
            size = (types.shape(v) or ())[self.axis]
            assert isinstance(size, int)
            pack = self.owner.get(v)
            if pack in packs:
                sizes[packs[pack]] += size
                continue
            if pack is not None:
                packs[pack] = len(parts)
                like, v = v, Value(names.fresh(v.name, "_parts"), self.graph)
                v.dtype = types.dtype(like)
            parts.append(v)
            sizes.append(size)
        return parts, sizes, packs


def _has_scalars(nodes: list[Node], operands: list[Pack | Value | Array | None]) -> bool:
    """Whether bounds and exponents stay single values: bounds are scalars, a power is fastest with a scalar."""
    scalars = operands[1:] if nodes and nodes[0].op in ("Clip", "Pow") else []
    return all(o is None or isinstance(o, Value) for o in scalars)


def _op(value: Value | None) -> str:
    node = producer(value)
    return node.op if node is not None else ""


def _equal_calls(values: Pack) -> list[Node]:
    """Return the producers of the values if they are equal calls of an elementwise operator, else none."""
    nodes = [n for v in values if (n := v.producer) is not None and not n.has_references and len(n.outputs) == 1]
    if len(nodes) < len(values) or nodes[0].op not in _OPS or len({(n.op, len(n.inputs)) for n in nodes}) > 1:
        return []
    return nodes if len({attribute_bytes(n.proto) for n in nodes}) == 1 else []


def _span(dims: Sequence[object], whole: Sequence[object]) -> int:
    """Return the number of contiguous elements processed at once for an operand broadcast to `whole`."""
    if all(d == 1 for d in dims):
        return _BLOCK
    span = 1
    for d, w in zip(dims[::-1], whole[::-1]):
        if d != w:
            break
        span *= w if isinstance(w, int) else _BLOCK
    return min(span, _BLOCK)
