"""Creation of a plan: from the original, and from the numbers at which two models differ. Memory and work of a run."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from onnxopt.proto.element_types import BY_CODE, TYPES
from onnxopt.proto.messages import tensor_bytes
from onnxopt.verification.inputs.plan import NO_USE, InputSpec, Plan
from onnxopt.verification.inputs.sizes import UNKNOWN, Shape, baked, batches, demanded, shapes_of, strides, sums
from onnxopt.verification.inputs.uses import Use, Uses
from onnxopt.verification.inputs.windows import FLAT, muted, windowed
from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.decisions import (
    MAY_DECIDE,
    Deciding,
    changing,
    conditions,
    hides,
    is_fixed,
    is_random_model,
)
from onnxopt.verification.model.nodes import numbers, operator_names, read
from onnxopt.verification.model.operators import (
    AFFINE,
    COMPARING,
    CUTTING,
    DATA,
    HANDED_ON,
    MATRICES,
    MEASURING,
    MUTING,
    MUTUAL,
    STANDARD,
    WINDOWS,
    having,
    operator,
)
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.worker import spare

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto


# -- memory and work --------------------------------------------------------------------------------------

_ROOM: Final = 1 << 28  # bytes of memory for inference


def least(path: str, feeds: dict[str, Any]) -> int:
    """Return a lower bound of the bytes of values alive at once in the main graph; 0 if unknown."""
    try:
        return _peak(_inferred(path, feeds))
    except Exception:  # found out by running
        return 0


def products(path: str, feeds: dict[str, Any]) -> int:
    """Return the multiplications of convolutions and matrix products in the main graph.

    Nodes of unknown shape are not counted.
    """
    try:
        graph = _inferred(path, feeds)
    except Exception:
        return 0
    shapes = {i.name: _sizes(i) for i in (*graph.input, *graph.value_info, *graph.output)}
    shapes |= {t.name: list(t.dims) for t in graph.initializer}
    return sum(_products_of(node, shapes) for node in graph.node)


def _products_of(node: NodeProto, shapes: dict[str, list[int]]) -> int:
    if node.domain or node.op_type not in _PRODUCTS:
        return 0
    operand, weight, result = (shapes.get(name, []) for name in (*node.input[:2], node.output[0]))
    if node.op_type == "ConvTranspose":
        return math.prod(operand) * math.prod(weight[1:]) if operand else 0
    terms = math.prod(weight[1:]) if node.op_type == "Conv" else operand[-1] if operand else 0
    return math.prod(result) * terms if result and weight else 0


_PRODUCTS: Final = having("product")


def _sizes(info: ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in info.type.tensor_type.shape.dim]


def _inferred(path: str, feeds: dict[str, Any]) -> GraphProto:
    """Return the main graph with shapes inferred for these feeds."""
    from onnxopt.proto.inference import infer_shapes, inferable

    model = Skeleton(path).proto
    for given in model.graph.input:
        value = feeds.get(given.name)
        if isinstance(value, np.ndarray):
            given.type.tensor_type.shape.Clear()
            for size in value.shape:
                given.type.tensor_type.shape.dim.add(dim_value=size)
    try:
        with spare(_ROOM):
            return infer_shapes(inferable(model), values=True).graph
    except MemoryError:  # propagating elements of large vectors
        with spare(_ROOM):
            return infer_shapes(inferable(model)).graph


def _peak(graph: GraphProto) -> int:
    sizes: Counter[str] = Counter()
    for info in (*graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(d.dim_value > 0 for d in tensor.shape.dim):
            sizes[info.name] = tensor_bytes(tensor.elem_type, (d.dim_value for d in tensor.shape.dim))
    last = {name: i for i, node in enumerate(graph.node) for name in node.input}
    last |= {o.name: len(graph.node) for o in graph.output}
    live = most = 0
    for i, node in enumerate(graph.node):
        live += sum(sizes[name] for name in node.output)
        most = max(most, live)
        read = dict.fromkeys((*node.input, *node.output))
        live -= sum(sizes[name] for name in read if last.get(name, i) == i)
    return most


# -- the plan ---------------------------------------------------------------------------------------------

_NARROW: Final = frozenset(t.code for t in TYPES if t.is_foreign)


def make_plan(proto: ModelProto, array: Callable[[TensorProto], Any] | None = None, uses: Uses | None = None) -> Plan:
    """Return the plan of the original. array: reads initializers with data outside `proto`; uses: if known."""
    uses = uses or Uses(read(proto.graph), proto.functions)
    graph = uses.graph
    ops = operator_names(n for nodes in (graph.node, *(f.node for f in proto.functions)) for n in nodes)
    plan = Plan(names=[i.name for i in graph.input])
    _add_inputs(plan, proto, uses, array)
    plan.random = is_random_model(proto)
    plan.stateful = "BatchNormalization" in ops and _trains(proto)
    if not ops.isdisjoint(MAY_DECIDE):
        deciding = Deciding(graph, proto.functions)
        plan.decides = bool(deciding.nodes)
        plan.decisions, plan.steps, plan.within = deciding.others, deciding.steps, deciding.within
    plan.mutes = not MUTING.isdisjoint(ops) and not MATRICES.isdisjoint(ops)
    plan.muted = [] if ops.isdisjoint(FLAT) else muted(graph)
    plan.cuts = bool(ops & CUTTING) or (plan.decides and bool(ops & COMPARING))
    if plan.symbols:
        _add_sizes(plan, graph, proto.functions, windows=not WINDOWS.isdisjoint(ops))
    plan.narrow = any(i.type.tensor_type.elem_type in _NARROW for i in (*graph.input, *graph.output))
    plan.nodes = len(graph.node)
    plan.bytes = sum(tensor_bytes(t.data_type, t.dims) for t in graph.initializer)  # approximately
    if "If" in ops or "Loop" in ops:
        can_change = changing(graph, functions=proto.functions)
        plan.conditions = conditions(graph, can_change)
        plan.hides = hides(graph, can_change, plan.conditions)
    return plan


def _add_inputs(plan: Plan, proto: ModelProto, uses: Uses, array: Callable[[TensorProto], Any] | None) -> None:
    from onnxopt.proto.messages import tensor_to_array

    graph, found, numbers = uses.graph, uses.found, uses.compared()
    initializers = {t.name: t for t in graph.initializer}
    specs = (_spec(i.name, i.type, found) for i in graph.input if i.name not in initializers)
    plan.inputs = [replace(i, compared=numbers[i.name]) if i.name in numbers and "int" in i.kind else i for i in specs]
    if proto.ir_version >= 4:  # before, every initializer had to be listed as an input
        listed = (initializers[i.name] for i in graph.input if i.name in initializers)
        plan.overridable = {t.name: (array or tensor_to_array)(t) for t in listed if t.data_location == t.DEFAULT}


def _add_sizes(plan: Plan, graph: GraphProto, functions: Sequence[FunctionProto], *, windows: bool) -> None:
    plan.addends, plan.batches, plan.baked = sums(graph), batches(graph), baked(graph)
    plan.stride = strides(graph)
    plan.demanded = demanded(graph, {i.name: i.shape for i in plan.inputs}, functions)
    if windows:
        named = [s for s in plan.symbols if plan.is_batch(s) or s in plan.demanded]
        shapes = {i.name: i.shape for i in plan.inputs if not i.why}
        *plan.windows, plan.ragged = windowed(graph, shapes, named, functions)


def _spec(name: str, kind: TypeProto, found: Mapping[str, Use]) -> InputSpec:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        inner = _spec(name, kind.sequence_type.elem_type, found)
        return InputSpec(name, inner.kind, inner.shape, True, why=inner.why)
    if which == "optional_type":
        return _spec(name, kind.optional_type.elem_type, found)
    if which != "tensor_type":
        return InputSpec(name, "", why=f"input `{name}` is a {which or 'value of unknown type'}")
    tensor = kind.tensor_type
    shape: tuple[int | str, ...] = tuple(
        d.dim_value if is_fixed(d) else d.dim_param or f"{name}[{i}]" for i, d in enumerate(tensor.shape.dim)
    )
    if not tensor.HasField("shape"):
        shape = (f"{name}[0]", f"{name}[1]")
    if not tensor.elem_type:
        raise ValueError(f"input `{name}` has no element type")  # an invalid model, reported by its loader
    known = BY_CODE.get(tensor.elem_type)
    if known is None or known.kind == "c":
        return InputSpec(name, "", why=f"input `{name}` is {'complex' if known else 'of unknown type'}")
    use = found.get(name, NO_USE)
    return InputSpec(name, known.name, shape, bound=use.bound if known.kind in "iu" else None, use=use)


def _trains(proto: ModelProto) -> bool:
    nodes = (n for n in proto.graph.node if n.op_type == "BatchNormalization")
    return any(a.name == "training_mode" and a.i for n in nodes for a in n.attribute)


# -- numbers in one of two models -------------------------------------------------------------------------

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


class Side:
    """A model with the uses of its inputs and its limits, both computed on first use."""

    def __init__(self, skeleton: Skeleton) -> None:
        self.skeleton = skeleton

    @functools.cached_property
    def uses(self) -> Uses:
        """The uses of the inputs."""
        return Uses(read(self.skeleton.proto.graph), self.skeleton.proto.functions)

    @functools.cached_property
    def limits(self) -> Limits:
        """The limits of sizes."""
        return Limits(self.uses.graph, self.skeleton.proto.functions)


def of_both(plan: Plan, a: Side, b: Side, work: int = _WORK) -> Plan:
    """Return the plan of the first model, extended by numbers present in only one of the two models.

    Such numbers are limits of sizes, trip counts, bounds and rows of tables. work: bytes of weights read in a run, at
    most.
    """
    both = plan.beside(b.skeleton.proto, b.uses, other_rows(a, b))
    if plan.symbols:  # only free sizes can reach a limit
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
    for name, mine in a.uses.tables.items() if theirs else ():
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
