"""Shapes of values, and elements of integer vectors computed from shapes."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import ClassVar, Final

from onnx import FunctionProto, GraphProto, NodeProto, TensorProto

from onnxopt.verification.model.calls import MAX_SIZES, UNKNOWN, Call, Known, Shape, UnknownShape
from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.nodes import few
from onnxopt.verification.model.operators import OPERATORS, STANDARD, WEIGHTS, WINDOWED, having

_INT64: Final = 7  # of TensorProto.DataType
_BATCH_AND_CHANNELS: Final = 2  # leading axes, before those of an image or of time
_LIKE: Final = having("like")
_BROADCAST: Final = having("broadcast")
_REDUCING: Final = frozenset(name for name in OPERATORS if name.startswith("Reduce"))


_NOTHING: Final = Known()


def shapes_of(graph: GraphProto, functions: Iterable[FunctionProto] = ()) -> dict[str, Known]:
    """Return the facts about values in terms of numbers and input symbols, as far as known."""
    found = Shapes(functions)
    for i in graph.input:
        dims = i.type.tensor_type.shape.dim
        if i.type.tensor_type.HasField("shape"):
            found.facts[i.name] = Known(
                tuple(d.dim_param or (d.dim_value if d.HasField("dim_value") else UNKNOWN) for d in dims)
            )
    found.walk(graph)
    return found.facts


class Shapes(Forward[Known]):
    """Forward analysis of shapes and elements."""

    MUST: ClassVar = True
    given: Collection[str] = ()

    def join(self, a: Known, b: Known) -> Known:
        x, y = a.shape, b.shape
        is_one_rank = x is not None and y is not None and len(x) == len(y)
        shape = _joined_dims(x or (), y or ()) if is_one_rank else None
        return Known(shape, a.elements if a.elements == b.elements else None)

    def known(self, name: str) -> Known:
        """Return the facts about a value. An overridable default has the given shape."""
        if name in self.facts or name not in self.constants:
            return self.facts.get(name, _NOTHING)
        found = self.integers(name)
        return Known(tuple(self.constants[name].dims), None if found is None else tuple(found))

    def integers(self, name: str) -> list[int] | None:
        """Return the elements of a constant integer tensor that is not fed, else None."""
        is_constant = name in self.constants and name not in self.given
        return integers_of(self.constants[name]) or None if is_constant else None

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[Known | None]) -> Sequence[Known | None]:
        return []  # carried values may change shape between iterations

    def see(self, call: Call) -> None:
        """Called with each node of a standard operator."""

    def transfer(self, node: NodeProto, reads: Sequence[Known | None]) -> Sequence[Known | None]:
        if node.domain not in STANDARD or not node.input:
            return [None] * len(node.output)
        call = Call(node, [self.known(name) for name in node.input], self.integers)
        self.see(call)
        made = Known(carried(call), ELEMENTS[node.op_type](call) if node.op_type in ELEMENTS else None)
        further = made if node.op_type == "Split" else _NOTHING
        return [None if k == _NOTHING else k for k in (made, *[further] * (len(node.output) - 1))]


def carried(call: Call) -> Shape | None:
    """Return the shape of the first result in terms of operand sizes, else None."""
    op = call.node.op_type
    if op in _LIKE:
        return call.shapes[0]
    try:
        return _RULES[op](call) if op in _RULES else None
    except UnknownShape:
        return None


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
    if axes is None and not call.is_given(1, "axes") and all(isinstance(d, int) and d > 0 for d in call.first):
        axes = [a for a, d in enumerate(call.first) if d == 1]
    return None if axes is None else tuple(d for a, d in enumerate(call.first) if a not in axes)


def _matmul(call: Call) -> Shape | None:
    a, b = call.shapes[:2]
    if a is None or b is None or min(len(a), len(b)) < 2:
        return None
    return *_broadcasted([a[:-2], b[:-2]]), a[-2], b[-1]


def _gather(call: Call) -> Shape | None:
    indices, axis = call.shapes[1], call.number("axis") or 0
    if indices is None or not -len(call.first) <= axis < len(call.first):
        return None
    axis %= len(call.first)
    return (*call.first[:axis], *indices, *call.first[axis + 1 :])


def _reshape(call: Call) -> Shape | None:
    """Return the elements of the target; 0 copies a dim, and -1 is computed if it is a number."""
    target = call.elements[1] if len(call.elements) > 1 else None  # an attribute in older opsets
    if target is None:
        return None
    dims, copies = call.shapes[0] or (), not call.number("allowzero")
    found = [dims[k] if n == 0 and copies and k < len(dims) else n or UNKNOWN for k, n in enumerate(target)]
    if found.count(UNKNOWN) == 1 and UNKNOWN not in dims and call.shapes[0] is not None:
        rest, made = Counter(dims), Counter(d for d in found if d != UNKNOWN)
        before, after = (list((x - y).elements()) for x, y in ((rest, made), (made, rest)))
        if all(isinstance(d, int) for d in (*before, *after)):
            found[found.index(UNKNOWN)] = math.prod(map(int, before)) // max(math.prod(map(int, after)), 1)
    return tuple(found)


def _split(call: Call) -> Shape | None:
    axis = call.number("axis") or 0
    return _without(call.first, [axis % len(call.first)]) if -len(call.first) <= axis < len(call.first) else None


def _reduced(call: Call) -> Shape | None:
    axes = call.axes(1, len(call.first))
    if axes is None:
        return None
    keeps = call.number("keepdims") != 0
    return tuple(1 if a in axes else d for a, d in enumerate(call.first) if keeps or a not in axes)


def _windowed(call: Call) -> Shape | None:
    """Return batch, channels of the weight or the operand, and unknown lengths."""
    if len(call.first) < _BATCH_AND_CHANNELS:
        return None
    batch, channels, *lengths = call.first
    if call.node.op_type in WEIGHTS:
        weight = call.shapes[1] if WEIGHTS[call.node.op_type] == (1, 1, 1) else None
        channels = weight[0] if weight else UNKNOWN
    return batch, channels, *[UNKNOWN] * len(lengths)


def _gemm(call: Call) -> Shape | None:
    a, b = call.shapes[:2]
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return a[1 if call.number("transA") else 0], b[0 if call.number("transB") else 1]


def _concat(call: Call) -> Shape | None:
    shapes = [s for s in call.shapes if s is not None]
    axis = call.number("axis")
    if axis is None or not shapes or len({*map(len, shapes)}) > 1 or not -len(shapes[0]) <= axis < len(shapes[0]):
        return None
    met, axis = tuple(_same(dims) for dims in zip(*shapes)), axis % len(shapes[0])
    lengths = [s[axis] for s in shapes]
    is_known = len(shapes) == len(call.shapes) and all(isinstance(d, int) and d > 0 for d in lengths)
    return *met[:axis], sum(map(int, lengths)) if is_known else UNKNOWN, *met[axis + 1 :]


def _same(dims: Sequence[int | str]) -> int | str:
    """Return the common size of equal dims: a number if any."""
    known = [d for d in dims if d != UNKNOWN]
    return next((d for d in known if isinstance(d, int)), known[0] if known else UNKNOWN)


def _broadcast(call: Call) -> Shape | None:
    shapes = [s for s in call.shapes if s is not None]
    return _broadcasted(shapes) if len(shapes) == len(call.shapes) else None


def _broadcasted(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    return tuple(_met(dims) for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes)))


def _met(dims: Sequence[int | str]) -> int | str:
    """Return the size of broadcast dims; a symbol only if no second dim may be longer."""
    found = {d for d in dims if d != 1}
    numbers = [d for d in found if isinstance(d, int) and d != UNKNOWN]
    return numbers[0] if numbers else found.pop() if len(found) == 1 else 1 if not found else UNKNOWN


def _joined_dims(a: Shape, b: Shape) -> Shape:
    """Return the dims equal in both shapes, else unknown."""
    return tuple(m if m == n else UNKNOWN for m, n in zip(a, b))


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
    "Reshape": _reshape,
    "Expand": lambda call: None if (e := call.elements[1]) is None else _broadcasted([call.first, e]),
    "Split": _split,
    "Gemm": _gemm,
    "Shape": lambda call: None if (found := _measured(call)) is None else (len(found),),
    "Resize": lambda call: (UNKNOWN,) * len(call.first),
    "ConstantOfShape": lambda call: call.elements[0],
    "Range": lambda call: (UNKNOWN,),
    **dict.fromkeys(_REDUCING, _reduced),
    **dict.fromkeys(WINDOWED, _windowed),
}


def _picked(call: Call) -> Shape | None:
    """Return the elements at constant places."""
    elements, places = call.elements[0], call.integers(1, "")
    if elements is None or places is None or not all(-len(elements) <= n < len(elements) for n in places):
        return None
    return tuple(elements[n] for n in places)


def _cut(call: Call) -> Shape | None:
    """Return the elements between constant ends."""
    start, end = call.integers(1, "starts"), call.integers(2, "ends")
    if call.elements[0] is None or start is None or end is None or call.is_given(4, "steps"):
        return None
    return call.elements[0][start[0] : end[0]]


def _joined(call: Call) -> Shape | None:
    """Return the elements of all vectors."""
    known = [e for e in call.elements if e is not None]
    return tuple(n for part in known for n in part) if len(known) == len(call.elements) else None


def _computed(compute: Callable[[int, int], int], call: Call) -> Shape | None:
    """Return the elements of a result of two vectors: numbers of positive numbers, else unknown."""
    a, b = call.elements[:2]
    if a is None or b is None or (len(a) != len(b) and 1 not in (len(a), len(b))):
        return None
    count = max(len(a), len(b))
    pairs = zip(a * (count // len(a)), b * (count // len(b)))
    return tuple(
        compute(m, n) if isinstance(m, int) and isinstance(n, int) and m > 0 < n else UNKNOWN for m, n in pairs
    )


def _chosen(call: Call) -> Shape | None:
    """Return the elements equal in both choices, else unknown."""
    a, b = call.elements[1:]
    return None if a is None or b is None or len(a) != len(b) else _joined_dims(a, b)


def _measured(call: Call) -> Shape | None:
    start, end = call.number("start"), call.number("end")
    return call.shapes[0] if call.shapes[0] is None else call.first[start:end]


def _product(call: Call) -> Shape | None:
    """Return the product of a vector's positive numbers, else unknown."""
    elements = call.elements[0]
    if elements is None or call.number("noop_with_empty_axes"):
        return None
    numbers = [n for n in elements if isinstance(n, int) and n > 0]
    return (math.prod(numbers) if len(numbers) == len(elements) else UNKNOWN,)


# Elements of a result, by operator.
ELEMENTS: Final[dict[str, Callable[[Call], Shape | None]]] = {
    "Shape": _measured,
    "Gather": _picked,
    "ReduceProd": _product,
    "Concat": _joined,
    "Slice": _cut,
    "Where": _chosen,
    "Add": partial(_computed, operator.add),
    "Sub": partial(_computed, operator.sub),
    "Mul": partial(_computed, operator.mul),
    "Div": partial(_computed, operator.floordiv),
    "Mod": partial(_computed, operator.mod),
    "Reshape": lambda call: call.elements[0] if len(call.shapes[0] or ()) < 2 else None,
    "Cast": lambda call: call.elements[0] if call.number("to") == _INT64 else None,  # others may wrap, or round
    **dict.fromkeys(("Identity", "Squeeze", "Unsqueeze"), lambda call: call.elements[0]),
}


def integers_of(tensor: TensorProto) -> list[int]:
    return few(tensor, MAX_SIZES, (tensor.INT64, tensor.INT32))
