"""Sizes required by a model, beyond names of dims, and sizes at which two models differ."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, TensorProto

from onnxopt.proto.messages import tensor_type
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.uses import Uses
from onnxopt.verification.inputs.windows import Path, joined, paths_after
from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.nodes import MAX_SIZES
from onnxopt.verification.model.operators import (
    AFFINE,
    COMPARING,
    DATA,
    HANDED_ON,
    MEASURING,
    MUTUAL,
    STANDARD,
    WEIGHTS,
    having,
    operator,
)
from onnxopt.verification.model.shapes import NOTHING, UNKNOWN, Call, Known, Shape, Shapes, Sized, shapes_of
from onnxopt.verification.model.skeleton import Skeleton

# -- sizes required by a model ----------------------------------------------------------------------------

_INNERMOST: Final = r"\([^()]*\)"
_TARGETS: Final = having("target")
_LONGEST_STEP: Final = 16


def sums(graph: GraphProto) -> frozenset[str]:
    """Return the symbols in sums that are output dims, as written by exporters.

    Forms: `past + new`, and `past + Max(0, new - 4)` for a layer with a sliding window.
    """
    found = set[str]()
    for dim in (d for info in graph.output for d in tensor_type(info.type)[1] or () if isinstance(d, str)):
        while (shorter := re.sub(_INNERMOST, "", dim)) != dim:
            dim = shorter
        terms = dim.split(" + ")
        found.update(t for t in terms if len(terms) > 1 and re.fullmatch(r"\w+", t))
    return frozenset(found)


class Sizes(Shapes):
    """Forward analysis of shapes that collects the sizes that a model requires, limits, and windows.

    given: shapes of inputs, if they have further names for dims.
    """

    def __init__(
        self,
        graph: GraphProto,
        functions: Iterable[FunctionProto] = (),
        given: Mapping[str, Sequence[int | str]] | None = None,
    ) -> None:
        # By symbol: required by weights (channels of a Conv, rows of a matrix) and Reshape targets.
        self.required: dict[str, int] = {}
        self._traced: dict[str, int] = {}
        self._targets: Counter[int] = Counter()
        self._steps: set[int] = set()
        self._divisors: set[int] = set()  # of sizes
        self._taken: dict[str, set[int]] = {}  # {value: positions taken by Gathers}
        # (largest size before a change of behaviour, input dims involved): number of places.
        self.limits: Counter[tuple[int, frozenset[str]]] = Counter()
        self.positions: list[tuple[TensorProto, int]] = []  # (constant sliced or indexed by computed numbers, axis)
        self._inputs = {i.name for i in graph.input}
        starts = {name: Known(tuple(shape), paths=frozenset((Path(name),))) for name, shape in (given or {}).items()}
        super().__init__(graph, functions, None if given is None else starts)
        # From the inputs to the outputs.
        self.paths = joined(path for o in graph.output for path in (self.of(o.name) or NOTHING).paths)
        self.facts.clear()  # a side keeps its sizes while pieces are compared

    @property
    def traced(self) -> dict[str, int]:
        """Sizes at the place of a symbol, beside computed ones, in a Reshape target of the same rank."""
        return {symbol: size for symbol, size in self._traced.items() if symbol not in self.required}

    @property
    def baked(self) -> list[int]:
        """Lengths of unrolled loops, and numbers in targets of Reshape and Expand, frequent first."""
        # An unrolled loop takes elements individually, at 0, 1, 2, ….
        unrolled = Counter(len(at) for at in self._taken.values() if len(at) == max(at, default=-1) + 1)
        found = dict.fromkeys(n for counter in (unrolled, self._targets) for n, _ in counter.most_common())
        return [n for n in found if 1 < n <= 1 << 16][:MAX_SIZES]

    @property
    def stride(self) -> int:
        """The least common multiple of the steps of all Slices, and of the divisors of sizes; 1 if none, or large.

        With a multiple plus 1 elements, the last element is taken, which distinguishes the end from any earlier end;
        and padding up to a multiple, as of windows, is not empty.
        """
        found = math.lcm(*(self._steps - {0}), self.divisor)
        return found if found <= _LONGEST_STEP else 1

    @property
    def divisor(self) -> int:
        """The least common multiple of the constants by which sizes are divided with a remainder; 1 if none."""
        return math.lcm(*(self._divisors - {0}))

    def either(self, a: Known | None, b: Known | None) -> Known:
        return self.join(a or NOTHING, b or NOTHING)

    def join(self, a: Known, b: Known) -> Known:
        found = super().join(a, b) or NOTHING
        return found._replace(sized=_joined([a.sized, b.sized]), paths=joined(a.paths | b.paths))

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[Known | None]) -> Sequence[Known | None]:
        """Return the facts of a body's inputs, without shapes: a carried value may change shape between iterations."""
        found = Forward.entering(self, node, body, reads)
        return [k._replace(shape=None, elements=None) if k is not None else None for k in found]

    def _bodies(
        self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[Known | None]
    ) -> Sequence[Known | None]:
        """Ignore requirements in bodies, which may not run."""
        asked, self.required = self.required, {}
        found = super()._bodies(node, bodies, reads)
        self.required = asked
        return found

    def made(self, call: Call) -> Known:
        paths, found = paths_after(call, self.numbers), super().made(call)
        if call.node.domain not in STANDARD or not call.node.input:
            return Known(paths=paths)
        self._see(call)
        return found._replace(sized=self._see_limits(call, found.elements), paths=paths)

    # -- required sizes -----------------------------------------------------------------------------------

    def _see(self, call: Call) -> None:
        node = call.node
        if node.op_type in WEIGHTS:
            self._ask(call)
        elif node.op_type == "Slice":
            self._steps.update(map(abs, call.integers(4, "steps") or ()))
        elif node.op_type == "Gather":
            self._taken.setdefault(node.input[0], set()).update(self.integers(node.input[1]))
        elif node.op_type == "Concat":  # perhaps of a target
            self._targets.update(itertools.chain.from_iterable(map(self.integers, node.input)))
        elif node.op_type in _TARGETS and len(node.input) > 1:
            self._see_target(call)

    def _see_target(self, call: Call) -> None:
        target = [n if isinstance(n, int) and n > 0 else 0 for n in call.elements[1] or ()]
        self._targets.update(target)
        if call.node.op_type == "Reshape":
            self._reshape(call.shapes[0] or (), target)

    def _reshape(self, dims: Shape, target: Sequence[int]) -> None:
        """Record the sizes in place of symbols in a target of the same rank; 0 stands for computed sizes."""
        if len(dims) != len(target):
            return
        required = all(n and (isinstance(d, str) or d == n) for d, n in zip(dims, target))
        found = self.required if required else self._traced
        for d, n in zip(dims, target):
            if isinstance(d, str) and n:
                found.setdefault(d, n)

    def _ask(self, call: Call) -> None:
        """Record the size required by a weight."""
        at, mine, theirs = _weight(call)
        dims, weight = call.shapes[0], call.shapes[at] if len(call.shapes) > at else None
        if dims is None or weight is None:
            return
        symbol, size = _at(dims, mine), _at(weight, theirs)
        if isinstance(size, int) and size > 0 and isinstance(symbol, str):  # else unknown
            groups = call.number("group") or 1 if theirs == 1 else 1
            self.required.setdefault(symbol, size * groups)

    # -- limits -------------------------------------------------------------------------------------------

    def _see_limits(self, call: Call, elements: Shape | None) -> Sized | None:
        """Record the limits of a node. Returns the numbers computed from sizes. `elements`: of the result."""
        kind, row = call.node.op_type, operator(call.node.op_type)
        every = (k.sized for i, k in enumerate(call.known) if kind == "Range" or row.role(i) == DATA)
        known = _joined(every)
        self._count_limits(call, known)
        if kind in ("Gather", "Slice"):
            self._read_table(call)
        if kind in MEASURING:
            return Sized(0, _symbols(_dims(call.shapes[0]) if elements is None else elements))
        if known is None or (elements is None and kind not in _SIZED):
            return None
        return Sized(max(known.below, int(kind == "Range")), known.dims if elements is None else _symbols(elements))

    def _count_limits(self, call: Call, known: Sized | None) -> None:
        """Count the limits and divisors of a node. `known`: the numbers that it reads, computed from sizes."""
        node, kind = call.node, call.node.op_type
        least = 0 if kind in COMPARING else _ALWAYS_TRIED + 1
        for number, dims in self._compared(node, known) if known else self._cuts(call):
            if dims and least <= number <= _MAX_LIMIT:  # no size reaches a limit of fixed dims
                self.limits[number, dims] += 1
        if kind == "Mod" and known:
            self._divisors.update(n for n in self._integers(node.input[1]) if n <= _LONGEST_STEP)

    def _compared(self, node: NodeProto, known: Sized) -> Iterator[tuple[int, frozenset[str]]]:
        """Yield (limit, dims involved) of numbers that a computed number is compared with.

        Limit 0 stands for a difference between the sizes 1 and 2, of which only 2 is tried in any case.
        """
        for k, name in enumerate(node.input if node.op_type in _LIMITING else ()):
            beyond = known.below - _is_beyond(node.op_type, k)
            yield from ((n + beyond, known.dims) for n in self._integers(name) if n + beyond > 1)
            edge = 1 if node.op_type == "Equal" else 1 - beyond
            if node.op_type in COMPARING and not known.below and edge in self.numbers(name):
                yield 0, known.dims

    def _cuts(self, call: Call) -> Iterator[tuple[int, frozenset[str]]]:
        """Yield (limit, dims involved) of the constant ends of a Slice, and of the diagonal of a Trilu."""
        kind, names = call.node.op_type, call.node.input
        if kind not in ("Slice", "Trilu") or names[0] in self.constants:
            return
        shape = _dims(call.shapes[0])
        if kind == "Trilu":  # a diagonal begins in its corner
            yield from ((n + 1, _symbols(shape[-2:])) for name in names[1:] for n in self._integers(name))
            return
        axes = call.integers(3, "axes") or ([] if call.is_given(3, "axes") else range(len(shape)))
        dims = itertools.chain((_at(shape, axis) for axis in axes), itertools.repeat(UNKNOWN))
        known = [*itertools.islice(dims, MAX_SIZES)]
        yield from ((abs(end), _symbols([d])) for name in names[1:3] for end, d in zip(self.integers(name), known))

    def _integers(self, name: str) -> Iterator[int]:
        return (abs(int(n)) for n in self.numbers(name) if abs(n) <= _MAX_LIMIT and n == n // 1)

    def _read_table(self, call: Call) -> None:
        names = call.node.input
        table = self.constants.get(names[0])
        if table is not None and not all(n in self.constants or n in self._inputs for n in names if n):
            axes = self.integers(names[3]) if len(names) > 3 else [call.number("axis") or 0]
            self.positions.append((table, next(iter(axes), 0)))


def _dims(shape: Shape | None) -> Shape:
    """Return a shape, with a single unknown dim for an unknown rank."""
    return (UNKNOWN,) if shape is None else shape


def _joined(sized: Iterable[Sized | None]) -> Sized | None:
    """Return numbers computed from any of the sizes; None without any."""
    found = [s for s in sized if s is not None]
    return Sized(max(s.below for s in found), _NO_DIMS.union(*(s.dims for s in found))) if found else None


def _at(shape: Shape, axis: int) -> int | str:
    """Return the size of an axis; unknown beyond the rank."""
    return shape[axis] if -len(shape) <= axis < len(shape) else UNKNOWN


def _weight(call: Call) -> tuple[int, int, int]:
    """Return (operand that is the weight, axis of the size in the data, axis of the size in the weight)."""
    if call.node.op_type == "Gemm":
        return WEIGHTS["Gemm"][0], int(not call.number("transA")), int(bool(call.number("transB")))
    return WEIGHTS[call.node.op_type]


# -- numbers in one of two models -------------------------------------------------------------------------

_ALWAYS_TRIED: Final = 2  # up to here, sizes are tried in any case, unless a comparison decides about them
_USUAL: Final = 4  # up to this size, a limit may count channels: used only without a larger limit
_MAX_LIMIT: Final = (1 << 31) - 2  # a larger end stands for the last position
_MAX_TRIED: Final = 1025  # larger sizes are named in the verdict
_SIZED: Final = HANDED_ON | AFFINE | {"Range", "CumSum"}
_LIMITING: Final = MUTUAL | {"Clip"}
_WORK: Final = 1 << 36  # bytes of weights read, once per use
_PRODUCTS: Final = 1 << 35  # multiplications in a run, a few seconds
_MAX_TABLE_BYTES: Final = 1 << 28  # bytes of a table compared
_ROWS: Final = 4  # differing rows of a table
_NO_DIMS: Final[frozenset[str]] = frozenset()


class Side:
    """A file read once, with the uses of its inputs, its limits and shapes, each computed on first use."""

    def __init__(self, skeleton: Skeleton, foreign: Any = None) -> None:
        """foreign: the operators left out of the file (`programs.foreign.Foreign`)."""
        self.skeleton, self.foreign = skeleton, foreign
        self.runner: Any = None  # of its parts, if needed

    @functools.cached_property
    def uses(self) -> Uses:
        """The uses of the inputs."""
        return Uses(self.skeleton.proto.graph, self.skeleton.proto.functions)

    @functools.cached_property
    def shapes(self) -> Mapping[str, Known]:
        """The facts about values in terms of numbers and input symbols."""
        return shapes_of(self.skeleton.proto.graph, self.skeleton.proto.functions)

    @functools.cached_property
    def sizes(self) -> Sizes:
        """The limits of sizes."""
        return Sizes(self.uses.graph, self.skeleton.proto.functions)


class Run(NamedTuple):
    """A run of the original."""

    products: int  # multiplications, if many
    dims: Mapping[str, int]  # sizes of dynamic dims


def of_both(plan: Plan, a: Side, b: Side, work: int = _WORK, known: Run | None = None) -> Plan:
    """Return the plan of the first model, extended by numbers present in only one of the two models.

    Such numbers are limits of sizes, trip counts, bounds and rows of tables. work, known: see `affordable`.
    """
    both = plan.beside(b.skeleton.proto, b.uses, other_rows(a, b))
    if plan.symbols:  # only free sizes can reach a limit
        both.other_sizes = other_sizes(a.sizes, b.sizes, other_size(a, b))
        both.limits = affordable(both.other_sizes, plan, work, known)
    return both


def affordable(sizes: Iterable[int], plan: Plan, work: int = _WORK, known: Run | None = None) -> tuple[int, ...]:
    """Return the sizes that a run can afford: smallest, largest, then the rest.

    work: bytes of weights read in a run, at most; known: a run, by which multiplications are estimated.
    """
    known = known or Run(0, {})
    most, free = _PRODUCTS * plan.elements(known.dims), plan.batch or plan.symbols
    few = [
        n for n in sizes if n <= _MAX_TRIED and plan.bytes * n ** (2 if plan.windows and not plan.batch else 1) <= work
    ]
    few = [n for n in few if known.products * plan.elements({**known.dims, **dict.fromkeys(free, n)}) <= most]
    return tuple(dict.fromkeys((*few[:1], *few[-1:], *few)))


def _symbols(shape: Iterable[int | str]) -> frozenset[str]:
    """Return the symbols among sizes, with "?" for unknown sizes."""
    return frozenset("?" if d == UNKNOWN else str(d) for d in shape if isinstance(d, str) or d == UNKNOWN)


def _is_beyond(kind: str, k: int) -> bool:
    """Return whether the behaviour changes at the number itself, for operand `k`."""
    return kind in ("Equal", "Mod") or kind in (("Greater", "LessOrEqual"), ("Less", "GreaterOrEqual"))[k > 0]


def other_sizes(a: Sizes, b: Sizes, size: int = 0) -> dict[int, frozenset[str]]:
    """Return {size at which the models differ: input dims involved}, in order.

    Sizes are 1 more than limits of only one model, or in more places of the second. Of small sizes, only 1 and the
    largest of either model count. size: a further size, from rows of tables.
    """
    only: dict[int, frozenset[str]] = {}
    fewer, more = a.limits.keys() - b.limits.keys(), [k for k, count in b.limits.items() if count > a.limits[k]]
    for n, dims in (*fewer, *more):
        only[n + 1] = only.get(n + 1, _NO_DIMS) | dims
    if _ALWAYS_TRIED < size <= _MAX_LIMIT + 1:
        only[size] = frozenset("?")
    large = {n for n in only if n > _USUAL + 1}
    most = [max((n + 1 for n, _ in keys), default=1) for keys in (fewer, more)]
    found = {1, most[1], *(large or (most[0], size))} & only.keys()
    return {n: only[n] for n in sorted(found)}


def other_rows(a: Side, b: Side) -> dict[str, tuple[int, ...]]:
    """Return {input: its numbers for differing rows of indexed tables}, unless all rows differ."""
    theirs, found = b.uses.tables, dict[str, tuple[int, ...]]()
    for name, mine in a.uses.tables.items() if theirs else ():
        for (x, shift), (y, _) in zip(mine, theirs.get(name, ())):
            rows = _differing(a.skeleton, x, b.skeleton, y)
            if rows and len(rows) != next(iter(x.dims), 0):
                few = rows[:: max(len(rows) // _ROWS, 1)][:_ROWS]
                found[name] = (*found.get(name, ()), *(n - shift for n in few if n >= shift))
    return found


def other_size(a: Side, b: Side) -> int:
    """Return the number of rows to reach a differing row in tables read as far as sizes say; 0 if none."""
    pairs = zip(a.sizes.positions, b.sizes.positions)
    first = (row for (m, axis), (n, _) in pairs for row in _differing(a.skeleton, m, b.skeleton, n, axis)[:1])
    return min(first, default=-1) + 1


def _differing(a: Skeleton, x: TensorProto, b: Skeleton, y: TensorProto, axis: int = 0) -> list[int]:
    """Return the positions along `axis` where two tables of equal shape differ; [] for large tables."""
    with contextlib.suppress(OSError, ValueError):  # missing data is reported when run
        if (x.dims, x.data_type) == (y.dims, y.data_type) and max(a.size(x), b.size(y)) <= _MAX_TABLE_BYTES:
            one, other = (np.moveaxis(v, axis, 0) for v in (a.values(x), b.values(y)))
            rows = (one != other).any(axis=tuple(range(1, one.ndim))) if one.ndim else np.zeros(0)
            return [int(n) for n in np.flatnonzero(rows)]
    return []
