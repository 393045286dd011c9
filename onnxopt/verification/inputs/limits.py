"""Numbers that only one of two models has, and what a case has to be like to reach them: sizes that are compared with
them or cut off at them, and rows of tables."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from onnxopt.verification.inputs.sizes import UNKNOWN, Shape, shapes_of
from onnxopt.verification.inputs.uses import Uses
from onnxopt.verification.model.constants import numbers
from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.operators import AFFINE, DATA, HANDED_ON, MEASURING, MUTUAL, STANDARD, operator
from onnxopt.verification.model.order import operator_names

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto, TensorProto

    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.model.skeleton import Skeleton

_LEAST: Final = 2  # of sizes up to the next one all are tried in any case,
_USUAL: Final = 4  # and up to this they may be what is cut of channels: only where nothing larger is asked for
_LARGEST: Final = 512
_SIZED: Final = HANDED_ON | AFFINE | {"Range", "CumSum"}
_LIMITING: Final = MUTUAL | {"Clip"}
_CUTTING: Final = frozenset(("Slice", "Trilu", "Gather"))
_WORK: Final = 1 << 36  # bytes of weights, each time one is read
_TABLE: Final = 1 << 28  # bytes of a table that is read
_AT_ONCE: Final = 1 << 22  # elements
_ROWS: Final = 4  # that differ, of a table


class Side(NamedTuple):
    """One of two models: its file, what becomes of its inputs, and the limits that it has."""

    skeleton: Skeleton
    uses: Uses
    limits: Limits

    @classmethod
    def of(cls, skeleton: Skeleton) -> Side:
        graph, functions = skeleton.proto.graph, skeleton.proto.functions
        return cls(skeleton, Uses(graph, functions), Limits(graph, functions))


def of_both(plan: Plan, a: Side, b: Side, work: int = _WORK) -> Plan:
    """The plan of the first model, with what reaches the numbers that only one of the two has: sizes at which it does
    something else, trips of loops, bounds, rows of tables. `work`: bytes of weights that a run may read in all."""
    both = plan.beside(b.skeleton.proto, b.uses, other_rows(a, b))
    both.other_sizes = other_sizes(a.limits, b.limits, other_size(a, b))
    both.limits = affordable(both.other_sizes, plan, work)
    return both


def affordable(sizes: Sequence[int], plan: Plan, work: int = _WORK) -> tuple[int, ...]:
    """Those of these sizes with which a run reads at most so many bytes of weights: smallest, largest, others."""
    few = [n for n in sizes if plan.bytes * n ** (2 if plan.windows and not plan.batch else 1) <= work]
    return tuple(dict.fromkeys((*few[:1], *few[-1:], *few)))


class _Sized(NamedTuple):
    """A value that is computed of sizes: how far `below` one, and of which dims of inputs, as far as is known."""

    below: int
    dims: frozenset[str]


class Limits(Forward[_Sized]):
    """What a model does with sizes. `numbers`: the largest sizes for which the model does the one thing, with the dims
    of inputs that are meant, and in how many places. `positions`: constants that are cut off, or picked of, by what is
    computed, and along which axis."""

    def __init__(self, graph: GraphProto, functions: Iterable[FunctionProto] = ()) -> None:
        super().__init__(functions)
        self.numbers: Counter[tuple[int, frozenset[str]]] = Counter()
        self.positions: list[tuple[TensorProto, int]] = []
        self._given = {i.name for i in graph.input}
        self._measured: dict[str, Shape] = {}  # the shape that a value holds
        asks = operator_names(n for nodes in (graph.node, *(f.node for f in functions)) for n in nodes)
        if asks & _CUTTING or (asks & MEASURING and asks & _LIMITING):  # no other operator has any
            self._shapes = shapes_of(graph, functions)
            self.walk(graph)

    def join(self, a: _Sized, b: _Sized) -> _Sized:
        return _Sized(max(a.below, b.below), a.dims | b.dims)

    def transfer(self, node: NodeProto, reads: Sequence[_Sized | None]) -> Sequence[_Sized | None]:
        kind = node.op_type
        if node.domain not in STANDARD:
            return []
        row = operator(kind)
        sized = [s for k, s in enumerate(reads) if s is not None and (kind == "Range" or row.role(k) == DATA)]
        known = functools.reduce(self.join, sized) if sized else None
        is_cut = kind in ("Slice", "Trilu") and known is None and node.input[0] not in self.constants
        if is_cut or (known is not None and kind in _LIMITING):
            below, dims = known or _Sized(0, self._dims(node.input[0]))
            self.numbers.update((n + below, dims) for n in self._limits(node) if _LEAST < n + below <= _LARGEST)
        if kind in ("Gather", "Slice"):
            self._read_table(node)
        return [self._made(node, known)] * len(node.output)

    def _made(self, node: NodeProto, known: _Sized | None) -> _Sized | None:
        kind = node.op_type
        if kind in MEASURING:
            if (shape := self._shapes.get(node.input[0])) is not None and not node.attribute:
                self._measured[node.output[0]] = shape
            return _Sized(0, self._dims(node.input[0]))
        if known is None or kind not in _SIZED:
            return None
        if kind == "Gather" and (shape := self._measured.get(node.input[0])) is not None:
            places = numbers(self.constants[node.input[1]]) if node.input[1] in self.constants else []
            picked = [shape[int(n)] for n in places if -len(shape) <= n < len(shape)]
            return _Sized(0, _symbols(picked) if picked else known.dims)
        return known._replace(below=max(known.below, int(kind == "Range")))

    def _dims(self, name: str) -> frozenset[str]:
        return _symbols(self._shapes.get(name, (UNKNOWN,)))

    def _limits(self, node: NodeProto) -> Iterator[int]:
        kind = node.op_type
        for k in range(1, min(3, len(node.input))) if kind == "Slice" else range(len(node.input)):
            found = numbers(self.constants[node.input[k]]) if node.input[k] in self.constants else []
            beyond = -1 if kind == "Trilu" else _is_beyond(kind, k)  # a diagonal begins in its corner
            yield from (abs(int(n)) - beyond for n in found if n == n // 1 and abs(n) <= _LARGEST)

    def _read_table(self, node: NodeProto) -> None:
        table = self.constants.get(node.input[0])
        if table is None or all(n in self.constants or n in self._given for n in node.input if n):
            return
        axes = [a.i for a in node.attribute if a.name == "axis"]
        if node.op_type == "Slice" and len(node.input) > 3 and node.input[3] in self.constants:
            axes = [int(n) for n in numbers(self.constants[node.input[3]]) if n == n // 1]
        self.positions.append((table, next(iter(axes), 0)))


def _symbols(shape: Iterable[int | str]) -> frozenset[str]:
    """The symbols among sizes, and one for those that nothing is known of."""
    return frozenset("?" if d == UNKNOWN else str(d) for d in shape if isinstance(d, str) or d == UNKNOWN)


def _is_beyond(kind: str, k: int) -> bool:
    """Is a size of that number itself, the operand k, what it does the other thing for?"""
    return kind in ("Equal", "Mod") or kind in (("Greater", "LessOrEqual"), ("Less", "GreaterOrEqual"))[k > 0]


def other_sizes(a: Limits, b: Limits, size: int = 0) -> list[int]:
    """Sizes that are on one side of a number in one model, and on the other in the other, or this `size`, from which on
    they differ; none where there is no number that only one has, or the second in more places."""
    only = {n for n, _ in a.numbers.keys() - b.numbers.keys()}
    only.update(n for (n, dims), count in b.numbers.items() if count > a.numbers[n, dims])
    if _LEAST < size <= _LARGEST + 1:
        only.add(size - 1)
    return sorted(n + 1 for n in only if n > _USUAL) or [n + 1 for n in [max(only, default=0)] if n]


def other_rows(a: Side, b: Side) -> dict[str, tuple[int, ...]]:
    """By input that picks rows of a table, its numbers for those of them that differ, unless all do: any shows that."""
    theirs, found = b.uses.tables(), dict[str, tuple[int, ...]]()
    for name, mine in a.uses.tables().items():
        for (x, shift), (y, _) in zip(mine, theirs.get(name, ())):
            rows = _differing(a.skeleton, x, b.skeleton, y)
            few = [] if len(rows) == next(iter(x.dims), 0) else rows[:: max(len(rows) // _ROWS, 1)][:_ROWS]
            if few:
                found[name] = (*found.get(name, ()), *(n - shift for n in few if n >= shift))
    return found


def other_size(a: Side, b: Side) -> int:
    """How many rows a case has to reach to see one that differs of a table that is read as far as sizes say; 0 where
    there is none such."""
    pairs = zip(a.limits.positions, b.limits.positions)
    first = (row for (m, axis), (n, _) in pairs for row in _differing(a.skeleton, m, b.skeleton, n, axis)[:1])
    return min(first, default=-1) + 1


def _differing(a: Skeleton, x: TensorProto, b: Skeleton, y: TensorProto, axis: int = 0) -> list[int]:
    """Along this axis, the places of two tables of one shape at which they differ, as far as these are read."""
    with contextlib.suppress(OSError, ValueError):  # of data that are not there, which is said where it is run
        if (x.dims, x.data_type) == (y.dims, y.data_type) and max(a.size(x), b.size(y)) <= _TABLE:
            return _places(np.moveaxis(a.values(x), axis, 0), np.moveaxis(b.values(y), axis, 0))
    return []


def _places(x: Any, y: Any) -> list[int]:
    if not x.ndim or not x.size or x.shape != y.shape:
        return []
    flat = [v.reshape(len(v), -1) for v in (x, y)]
    step = max(_AT_ONCE // flat[0].shape[1], 1)
    parts = ((m[k : k + step] != n[k : k + step]).any(axis=1) for m, n in [flat] for k in range(0, len(x), step))
    return [int(n) for n in np.flatnonzero(np.concatenate(list(parts)))]
