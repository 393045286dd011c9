"""Sizes and table rows at which two models differ, and cases that reach them."""

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

_ALWAYS_TRIED: Final = 2  # smaller sizes are tried in any case
_USUAL: Final = 4  # up to this size, a limit may count channels: used only without a larger limit
_MAX_LIMIT: Final = 512
_SIZED: Final = HANDED_ON | AFFINE | {"Range", "CumSum"}
_LIMITING: Final = MUTUAL | {"Clip"}
_CUTTING: Final = frozenset(("Slice", "Trilu", "Gather"))
_WORK: Final = 1 << 36  # bytes of weights read, once per use
_MAX_TABLE_BYTES: Final = 1 << 28  # bytes of a table compared
_CHUNK_ELEMENTS: Final = 1 << 22  # elements
_ROWS: Final = 4  # differing rows of a table


class Side(NamedTuple):
    """A model with the uses of its inputs and its limits."""

    skeleton: Skeleton
    uses: Uses
    limits: Limits

    @classmethod
    def of(cls, skeleton: Skeleton) -> Side:
        """Analyse a skeleton."""
        graph, functions = skeleton.proto.graph, skeleton.proto.functions
        return cls(skeleton, Uses(graph, functions), Limits(graph, functions))


def of_both(plan: Plan, a: Side, b: Side, work: int = _WORK) -> Plan:
    """Return the plan of the first model, extended by numbers present in only one of the two models.

    Such numbers are limits of sizes, trip counts, bounds and rows of tables. work: bytes of weights read in a run, at
    most.
    """
    both = plan.beside(b.skeleton.proto, b.uses, other_rows(a, b))
    both.other_sizes = other_sizes(a.limits, b.limits, other_size(a, b))
    both.limits = affordable(both.other_sizes, plan, work)
    return both


def affordable(sizes: Sequence[int], plan: Plan, work: int = _WORK) -> tuple[int, ...]:
    """Return the sizes with at most `work` bytes of weights read in a run: smallest, largest, then the rest."""
    few = [n for n in sizes if plan.bytes * n ** (2 if plan.windows and not plan.batch else 1) <= work]
    return tuple(dict.fromkeys((*few[:1], *few[-1:], *few)))


class _Sized(NamedTuple):
    """A value computed from sizes."""

    below: int  # distance below a size
    dims: frozenset[str]  # input dims involved, as far as known


class Limits(Forward[_Sized]):
    """Forward analysis of the limits of sizes in a model."""

    def __init__(self, graph: GraphProto, functions: Iterable[FunctionProto] = ()) -> None:
        super().__init__(functions)
        # (largest size before a change of behaviour, input dims involved): number of places.
        self.numbers: Counter[tuple[int, frozenset[str]]] = Counter()
        self.positions: list[tuple[TensorProto, int]] = []  # (constant sliced or indexed by computed numbers, axis)
        self._given = {i.name for i in graph.input}
        self._measured: dict[str, Shape] = {}  # the shape held by a value
        asks = operator_names(n for nodes in (graph.node, *(f.node for f in functions)) for n in nodes)
        if asks & _CUTTING or (asks & MEASURING and asks & _LIMITING):  # no further operators have limits
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
            self.numbers.update(
                (n + below, dims) for n in self._limits(node) if _ALWAYS_TRIED < n + below <= _MAX_LIMIT
            )
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
            yield from (abs(int(n)) - beyond for n in found if n == n // 1 and abs(n) <= _MAX_LIMIT)

    def _read_table(self, node: NodeProto) -> None:
        table = self.constants.get(node.input[0])
        if table is None or all(n in self.constants or n in self._given for n in node.input if n):
            return
        axes = [a.i for a in node.attribute if a.name == "axis"]
        if node.op_type == "Slice" and len(node.input) > 3 and node.input[3] in self.constants:
            axes = [int(n) for n in numbers(self.constants[node.input[3]]) if n == n // 1]
        self.positions.append((table, next(iter(axes), 0)))


def _symbols(shape: Iterable[int | str]) -> frozenset[str]:
    """Return the symbols among sizes, with "?" for unknown sizes."""
    return frozenset("?" if d == UNKNOWN else str(d) for d in shape if isinstance(d, str) or d == UNKNOWN)


def _is_beyond(kind: str, k: int) -> bool:
    """Return whether the behaviour changes at the number itself, for operand `k`."""
    return kind in ("Equal", "Mod") or kind in (("Greater", "LessOrEqual"), ("Less", "GreaterOrEqual"))[k > 0]


def other_sizes(a: Limits, b: Limits, size: int = 0) -> list[int]:
    """Return sizes at which the models differ: 1 more than limits of only one model, or in more places of the second.

    size: a further size, from rows of tables.
    """
    only = {n for n, _ in a.numbers.keys() - b.numbers.keys()}
    only.update(n for (n, dims), count in b.numbers.items() if count > a.numbers[n, dims])
    if _ALWAYS_TRIED < size <= _MAX_LIMIT + 1:
        only.add(size - 1)
    return sorted(n + 1 for n in only if n > _USUAL) or [n + 1 for n in [max(only, default=0)] if n]


def other_rows(a: Side, b: Side) -> dict[str, tuple[int, ...]]:
    """Return {input: its numbers for differing rows of indexed tables}, unless all rows differ."""
    theirs, found = b.uses.tables, dict[str, tuple[int, ...]]()
    for name, mine in a.uses.tables.items():
        for (x, shift), (y, _) in zip(mine, theirs.get(name, ())):
            rows = _differing(a.skeleton, x, b.skeleton, y)
            few = [] if len(rows) == next(iter(x.dims), 0) else rows[:: max(len(rows) // _ROWS, 1)][:_ROWS]
            if few:
                found[name] = (*found.get(name, ()), *(n - shift for n in few if n >= shift))
    return found


def other_size(a: Side, b: Side) -> int:
    """Return the number of rows to reach a differing row in tables read as far as sizes say; 0 if none."""
    pairs = zip(a.limits.positions, b.limits.positions)
    first = (row for (m, axis), (n, _) in pairs for row in _differing(a.skeleton, m, b.skeleton, n, axis)[:1])
    return min(first, default=-1) + 1


def _differing(a: Skeleton, x: TensorProto, b: Skeleton, y: TensorProto, axis: int = 0) -> list[int]:
    """Return the positions along `axis` where two tables of equal shape differ; [] for large tables."""
    with contextlib.suppress(OSError, ValueError):  # missing data is reported when run
        if (x.dims, x.data_type) == (y.dims, y.data_type) and max(a.size(x), b.size(y)) <= _MAX_TABLE_BYTES:
            return _places(np.moveaxis(a.values(x), axis, 0), np.moveaxis(b.values(y), axis, 0))
    return []


def _places(x: Any, y: Any) -> list[int]:
    if not x.ndim or not x.size or x.shape != y.shape:
        return []
    flat = [v.reshape(len(v), -1) for v in (x, y)]
    step = max(_CHUNK_ELEMENTS // flat[0].shape[1], 1)
    parts = ((m[k : k + step] != n[k : k + step]).any(axis=1) for m, n in [flat] for k in range(0, len(x), step))
    return [int(n) for n in np.flatnonzero(np.concatenate(list(parts)))]
