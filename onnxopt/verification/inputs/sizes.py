"""Sizes required by a model, beyond names of dims.

A shape is a tuple of numbers and symbols of the model's inputs; `UNKNOWN` stands for any further size. None: unknown
rank.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.nodes import constants, few
from onnxopt.verification.model.operators import STANDARD, WEIGHTS, having

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

Shape: TypeAlias = "tuple[int | str, ...]"
UNKNOWN: Final = -1
_INNERMOST: Final = re.compile(r"\([^()]*\)")
_MAX_DEPTH: Final = 16
_TARGETS: Final = having("target")
_MAX_SIZES: Final = 12
_LONGEST_STEP: Final = 16
_BATCH_AND_CHANNELS: Final = 2  # leading axes, before those of an image or of time
_LIKE: Final = having("like")
_BROADCAST: Final = having("broadcast")
_OF_SEVERAL: Final = _BROADCAST | {"Concat"}


def sums(graph: GraphProto) -> frozenset[str]:
    """Return the symbols in sums that are output dims, as written by exporters.

    Forms: `past + new`, and `past + Max(0, new - 4)` for a layer with a sliding window.
    """
    found = (_terms(d) for info in graph.output for d in _dims(info))
    return frozenset(t for terms in found if len(terms) > 1 for t in terms if re.fullmatch(r"\w+", t))


def _terms(dim: str) -> list[str]:
    """Return the terms of a sum, without parenthesized parts."""
    for _ in range(_MAX_DEPTH):
        dim, count = _INNERMOST.subn("", dim)
        if not count:
            return dim.split(" + ")
    return []


def batches(graph: GraphProto) -> frozenset[str]:
    """Return the symbols that occur only as first dims of inputs."""
    shapes = [_dims(i) for i in graph.input]
    first = {s[0] for s in shapes if len(s) > 1}
    return frozenset(first - {d for s in shapes for d in (s[1:] if len(s) > 1 else s)} - {""})


def tensors(graph: GraphProto) -> dict[str, TensorProto]:
    """Return the initializers and Constants of a graph."""
    return {t.name: t for t in graph.initializer} | dict(constants(graph.node))


def baked(graph: GraphProto) -> list[int]:
    """Return sizes left by tracing, frequent first.

    Sources: lengths of unrolled loops, and numbers in Reshape and Expand targets.
    """
    known = tensors(graph)
    targets = {n.input[1] for n in graph.node if n.op_type in _TARGETS and len(n.input) > 1}
    for node in graph.node:
        if node.op_type == "Concat" and not targets.isdisjoint(node.output):
            targets.update(node.input)
    numbers = Counter(n for name in targets if name in known for n in _integers(known[name]))
    found = dict.fromkeys(n for counter in (_unrolled(graph, known), numbers) for n, _ in counter.most_common())
    return [n for n in found if 1 < n <= 1 << 16][:_MAX_SIZES]


def strides(graph: GraphProto) -> int:
    """Return the least common multiple of the steps of all Slices; 1 if none, or large.

    With a multiple plus 1 elements, the last element is taken, which distinguishes the end from any earlier end.
    """
    known = tensors(graph)
    names = {n.input[4] for n in graph.node if n.op_type == "Slice" and len(n.input) > 4}
    steps = {abs(n) for name in names if name in known for n in _integers(known[name])}
    found = math.lcm(*(steps - {0}))
    return found if found <= _LONGEST_STEP else 1


def _unrolled(graph: GraphProto, constants: Mapping[str, TensorProto]) -> Counter[int]:
    """Return counts of elements taken individually from a value, by Gathers at 0, 1, 2, …."""
    taken: dict[str, set[int]] = {}
    for node in graph.node:
        if node.op_type == "Gather" and len(node.input) == 2 and node.input[1] in constants:
            taken.setdefault(node.input[0], set()).update(_integers(constants[node.input[1]]))
    return Counter(len(places) for places in taken.values() if len(places) == max(places, default=-1) + 1)


def demanded(
    graph: GraphProto, given: Mapping[str, Sequence[int | str]], functions: Iterable[FunctionProto] = ()
) -> dict[str, int]:
    """Return sizes of symbols required by weights and constant Reshape targets: channels of a Conv, rows of a matrix.

    given: shapes of inputs.
    """
    found = _Demands(functions)
    found.facts.update((name, tuple(shape)) for name, shape in given.items())
    found.given = given.keys()
    found.walk(graph)
    return {symbol: size for symbol, size in found.sizes.items() if isinstance(symbol, str)}


def shapes_of(graph: GraphProto, functions: Iterable[FunctionProto] = ()) -> dict[str, Shape]:
    """Return the shapes of values in terms of numbers and input symbols, as far as known."""
    found = _Demands(functions)
    for i in graph.input:
        dims = i.type.tensor_type.shape.dim
        if i.type.tensor_type.HasField("shape"):
            found.facts[i.name] = tuple(
                d.dim_param or (d.dim_value if d.HasField("dim_value") else UNKNOWN) for d in dims
            )
    found.walk(graph)
    return found.facts


class _Demands(Forward[Shape]):
    """Forward analysis of shapes; collects required `sizes`."""

    MUST: ClassVar = True
    given: Collection[str] = ()

    def __init__(self, functions: Iterable[FunctionProto]) -> None:
        super().__init__(functions)
        self.sizes: dict[int | str, int] = {}

    def join(self, a: Shape, b: Shape) -> Shape | None:
        return tuple(m if m == n else UNKNOWN for m, n in zip(a, b)) if len(a) == len(b) else None

    def of(self, name: str) -> Shape | None:
        """Return the shape of a value. An overridable default has the given shape."""
        shape = self.facts.get(name)
        return tuple(self.constants[name].dims) if shape is None and name in self.constants else shape

    def integers(self, name: str) -> list[int] | None:
        """Return the elements of a constant integer tensor that is not fed, else None."""
        is_constant = name in self.constants and name not in self.given
        return _integers(self.constants[name]) or None if is_constant else None

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[Shape | None]) -> Sequence[Shape | None]:
        return []  # carried values may change shape between iterations

    def _bodies(
        self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[Shape | None]
    ) -> Sequence[Shape | None]:
        """Ignore requirements in bodies, which may not run."""
        asked, self.sizes = self.sizes, {}
        found = super()._bodies(node, bodies, reads)
        self.sizes = asked
        return found

    def transfer(self, node: NodeProto, reads: Sequence[Shape | None]) -> Sequence[Shape | None]:
        if node.domain not in STANDARD or not node.input:
            return [None] * len(node.output)
        shapes = [self.of(name) for name in node.input]
        if node.op_type in WEIGHTS:
            self._ask(node, shapes)
        elif node.op_type == "Reshape" and len(node.input) > 1:
            _match(shapes[0] or (), self.integers(node.input[1]) or [], self.sizes)
        return [carried(Call(node, shapes, self.integers)), *[None] * (len(node.output) - 1)]

    def _ask(self, node: NodeProto, shapes: Sequence[Shape | None]) -> None:
        """Record the size required by a weight."""
        at, mine, theirs = WEIGHTS[node.op_type]
        dims, weight = shapes[0], shapes[at] if len(shapes) > at else None
        if dims is None or weight is None:
            return
        says = {a.name: a for a in node.attribute}
        if node.op_type == "Gemm":
            turned, theirs = (int(name in says and says[name].i != 0) for name in ("transA", "transB"))
            mine = 1 - turned
        if -len(weight) <= theirs < len(weight) and -len(dims) <= mine < len(dims):
            groups = says["group"].i if "group" in says and theirs == 1 else 1
            size = weight[theirs]
            if isinstance(size, int) and size > 0:  # else unknown
                self.sizes.setdefault(dims[mine], size * groups)


def _match(dims: Shape, target: Sequence[int], found: dict[int | str, int]) -> None:
    """Record the sizes required by a Reshape target of the same rank with equal known dims."""
    pairs = list(zip(dims, target))
    if len(dims) == len(target) and all(n > 0 and (isinstance(d, str) or d == n) for d, n in pairs):
        for d, n in pairs:
            found.setdefault(d, n)


class Call:
    """A node with known shapes of operands, and constant integers."""

    def __init__(
        self, node: NodeProto, shapes: Sequence[Shape | None], integers: Callable[[str], Sequence[int] | None]
    ) -> None:
        self.node, self.shapes, self._integers = node, shapes, integers
        self._says: Mapping[str, AttributeProto] = {a.name: a for a in node.attribute}

    @property
    def first(self) -> Shape:
        """The shape of the first operand, () if unknown."""
        return self.shapes[0] or ()

    def is_given(self, at: int, name: str) -> bool:
        """Return whether an operand is present, or, in older opsets, the attribute."""
        return name in self._says or bool(len(self.node.input) > at and self.node.input[at])

    def integers(self, at: int, name: str) -> Sequence[int] | None:
        """Return the operand's constant integers, else None."""
        if name in self._says:
            return list(self._says[name].ints)
        return self._integers(self.node.input[at]) if self.is_given(at, name) else None

    def axes(self, at: int, rank: int) -> list[int] | None:
        """Return the constant axes normalized for a rank, else None."""
        found = self.integers(at, "axes")
        if found is None or not all(-rank <= a < rank for a in found):
            return None
        return [a % rank for a in found]

    def number(self, name: str) -> int | None:
        """Return an integer attribute, else None."""
        return self._says[name].i if name in self._says else None


def carried(call: Call) -> Shape | None:
    """Return the shape of the first result in terms of operand sizes, else None."""
    op = call.node.op_type
    if op in _LIKE:
        return call.shapes[0]
    if op not in _RULES or (call.shapes[0] is None and op not in _OF_SEVERAL):
        return None
    return _RULES[op](call)


def _transpose(call: Call) -> Shape | None:
    perm = call.integers(len(call.node.input), "perm")
    if perm is None or sorted(perm) != list(range(len(call.first))):
        return None
    return tuple(call.first[i] for i in perm)


def _pad(call: Call) -> Shape | None:
    """Return the shape after Pad. Computed pads belong to a window, so batch and channels stay unchanged."""
    rank = len(call.first)
    axes = call.axes(3, rank) if call.is_given(3, "axes") else list(range(rank))
    pads = call.integers(1, "pads")
    if axes is None:
        return None
    if pads is None and not call.is_given(3, "axes") and rank > _BATCH_AND_CHANNELS:
        axes = axes[_BATCH_AND_CHANNELS:]
    elif pads is not None and len(pads) == 2 * len(axes):
        axes = [a for a, *sides in zip(axes, pads, pads[len(axes) :]) if any(sides)]
    return _without(call.first, axes)


def _slice(call: Call) -> Shape | None:
    starts = call.integers(1, "starts")
    if call.is_given(3, "axes"):
        axes = call.axes(3, len(call.first))
    else:
        axes = list(range(len(starts))) if starts is not None else None
    return None if axes is None else _without(call.first, axes)


def _unsqueeze(call: Call) -> Shape | None:
    count = len(call.integers(1, "axes") or ())
    axes = call.axes(1, len(call.first) + count)
    if not axes or len({*axes}) < count:
        return None
    dims = iter(call.first)
    return tuple(1 if a in axes else next(dims) for a in range(len(call.first) + count))


def _squeeze(call: Call) -> Shape | None:
    axes = call.axes(1, len(call.first))
    return tuple(d for a, d in enumerate(call.first) if a not in axes) if axes else None


def _matmul(call: Call) -> Shape | None:
    """Return the shape of a product with a matrix; None for a stack of matrices."""
    weight = call.shapes[1]
    if weight is None or len(weight) != 2 or len(call.first) < 2:
        return None
    return (*call.first[:-1], weight[1])


def _gather(call: Call) -> Shape | None:
    indices, axis = call.shapes[1], call.number("axis") or 0
    if indices is None or not -len(call.first) <= axis < len(call.first):
        return None
    axis %= len(call.first)
    return (*call.first[:axis], *indices, *call.first[axis + 1 :])


def _concat(call: Call) -> Shape | None:
    shapes = [s for s in call.shapes if s is not None]
    axis = call.number("axis")
    if axis is None or not shapes or len({*map(len, shapes)}) > 1 or not -len(shapes[0]) <= axis < len(shapes[0]):
        return None
    met = tuple(_same(dims) for dims in zip(*shapes))
    return _without(met, [axis % len(met)])


def _same(dims: Sequence[int | str]) -> int | str:
    """Return the common size of equal dims: a number if any."""
    known = [d for d in dims if d != UNKNOWN]
    return next((d for d in known if isinstance(d, int)), known[0] if known else UNKNOWN)


def _broadcast(call: Call) -> Shape | None:
    if None in call.shapes:
        return None
    shapes = [s for s in call.shapes if s is not None]
    rank = max(map(len, shapes))
    return tuple(_met(dims) for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes)))


def _met(dims: Sequence[int | str]) -> int | str:
    """Return the size of broadcast dims; a symbol only if no second dim may be longer."""
    found = {d for d in dims if d != 1}
    numbers = [d for d in found if isinstance(d, int) and d != UNKNOWN]
    return numbers[0] if numbers else found.pop() if len(found) == 1 else 1 if not found else UNKNOWN


def _without(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(UNKNOWN if a in axes else d for a, d in enumerate(shape))


_RULES: Final[dict[str, Callable[[Call], Shape | None]]] = {
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "MatMul": _matmul,
    "Gather": _gather,
    **dict.fromkeys(_BROADCAST, _broadcast),
    "Concat": _concat,
}


def _integers(tensor: TensorProto) -> list[int]:
    return few(tensor, _MAX_SIZES, (tensor.INT64,))


def _dims(info: ValueInfoProto) -> list[str]:
    return [d.dim_param for d in info.type.tensor_type.shape.dim]
