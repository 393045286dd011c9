"""Sizes computed through floats: rounded ratios, as `math.ceil(length / 2)`, and the scale factors of a Resize.

Float32 is exact up to more than any axis length. For such sizes x / k is exact if k is a power of two. Otherwise the
quotient differs from the next integer by at least 1/k, more than the rounding error. As long as this holds, also after
a sum, Ceil and Floor give the same as for the exact quotient.

Runtimes divide each size of a Resize by its dim in float32, as exporters do for scales. For a multiple of the dim, or
an even fraction by a power of two, the quotient is exact, as is the size computed from the factor.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Final, NamedTuple

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import cuts_of, where_known
from onnxopt.analysis.shapes.symbolic import Size, divide, is_at_least, quotient
from onnxopt.graph.node import Node, producer
from onnxopt.graph.value import Value
from onnxopt.operators import COMMUTATIVE
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData


_MAX_DIM: Final = 1 << 23  # assumed largest dim
_MAX_DIM_IF_ROUNDED: Final = 1 << 22  # the same, if the division rounds
# Up to here float32 holds all integers; the reciprocal bounds the relative rounding error.
_MAX_EXACT_FLOAT: Final = 1 << 24
_WIDE_FLOATS: Final = frozenset((TensorProto.FLOAT, TensorProto.DOUBLE))
_MAX_CHAIN: Final = 12  # nodes in a chain
_MAX_ADDEND: Final = 1 << 16  # largest number added, or divisor
_MAX_FACTOR: Final = 1 << 8  # largest factor of a Resize
_MAX_COUNTED: Final = 4  # largest factor, other than powers of two, for which products with a dim are exact
_MAX_SCALES: Final = 16  # numbers in a list of scales


def _float_maker(v: Value | None, kinds: Container[int], *ops: str) -> Node | None:
    """Return the producer, one of `ops` (any, without `ops`), of a float value of these types, or None."""
    node = producer(v, *ops)
    return node if node is not None and not node.has_references and types.dtype(v) in kinds else None


# -- rounded ratios -------------------------------------------------------------------------------------------


class _Ratio(NamedTuple):
    """`sizes` / `over`, with an absolute value below `reach`.

    `apart`: minimum distance of a non-integer ratio's float from the next integer; None while floats are exact.
    """

    sizes: Array
    over: int
    reach: float
    apart: float | None = None

    def checked(self) -> _Ratio | None:
        """Return the ratio, or None if its float may be an integer when the ratio is not."""
        if self.apart is None:
            return self if self.reach * self.over <= _MAX_EXACT_FLOAT else None
        apart = self.apart - self.reach / _MAX_EXACT_FLOAT
        return self._replace(apart=apart) if apart > 0 and self.reach <= _MAX_EXACT_FLOAT else None


def rounded(s: ShapeData, cast: Node) -> Array | None:
    """Return the integers from a Cast of a rounded ratio of sizes.

    None in models with bodies, which may never run: runtimes do not follow sizes through floats, and might reject the
    resulting constants.
    """
    if s.is_beside_bodies(cast):
        return None
    found = _ratio(s, cast.inputs[0], _MAX_CHAIN)
    if found is None or found.over == 1:
        return found and found.sizes
    minima, over = s.minima, found.over
    # Cast truncates.
    return where_known(lambda e: quotient(e, over) if is_at_least(e, 0, minima) else None, found.sizes)


def _ratio(s: ShapeData, v: Value | None, steps: int) -> _Ratio | None:
    node = _float_maker(v, _WIDE_FLOATS)
    if node is None or not steps:
        return None
    if node.op == "Cast":
        return _exact_ratio(s, node.inputs[0])
    if node.op in ("Ceil", "Floor"):
        inner = _ratio(s, node.inputs[0], steps - 1)
        return inner and _rounded(inner, up=node.op == "Ceil")
    return _computed_ratio(s, node, steps) if node.op in ("Add", "Div", "Mul", "Sub") else None


def _computed_ratio(s: ShapeData, node: Node, steps: int) -> _Ratio | None:
    """Return the ratio computed by arithmetic with a number."""
    for place in (1, 0) if node.op in COMMUTATIVE else (1,):
        number = _number(node.inputs[place])
        if number is not None:
            inner = _ratio(s, node.inputs[1 - place], steps - 1)
            widens = inner is not None and number.ndim > inner.sizes.ndim
            return None if inner is None or widens else _computed(node.op, inner, int(number.item()))
    return None


def _exact_ratio(s: ShapeData, v: Value | None) -> _Ratio | None:
    """Return the ratio of integers exact in float: a dim of a tensor, a fraction, or a dim plus a small number."""
    sizes = s.content(v)
    if v is None or sizes is None:
        return None
    far = 0
    for _ in range(_MAX_CHAIN):
        nearer = _nearer(v)
        if nearer is None:
            break
        v, far = nearer[0], far + nearer[1]
    if far > _MAX_ADDEND or not s.is_picked(v):
        return None
    if any(isinstance(e, int) and abs(e) > _MAX_DIM for e in sizes.reshape(-1).tolist()):
        return None
    return _Ratio(sizes, 1, _MAX_DIM + far).checked()


def _small_constant(v: Value | None) -> list[int]:
    """Return the elements of a small constant, rounded towards 0; none for another value."""
    if v is None or not v.constant or v.array.size > _MAX_CHAIN:
        return []
    return [int(e) for e in v.array.reshape(-1)]


def _nearer(v: Value) -> tuple[Value, int] | None:
    """Return (operand, largest number added) of an Add, Sub or Div by constants, or None."""
    node = producer(v, "Add", "Div", "Sub")
    if node is None:
        return None
    a, b = node.inputs[:2]
    if node.op == "Add" and a is not None and a.constant:
        a, b = b, a
    numbers = _small_constant(b)
    if a is None or not numbers or (node.op == "Div" and min(numbers) <= 0):
        return None
    return a, 0 if node.op == "Div" else max(map(abs, numbers))


def _computed(op: str, ratio: _Ratio, number: int) -> _Ratio | None:
    sizes, over, reach, _ = ratio
    if op in ("Add", "Sub"):
        added = (number if op == "Add" else -number) * over
        return ratio._replace(sizes=where_known(lambda e: e + added, sizes), reach=reach + abs(number)).checked()
    if number < 1 or over != 1:
        return None
    if op == "Mul":
        return _Ratio(where_known(lambda e: e * number, sizes), 1, reach * number).checked()
    if _is_power(number):
        return _Ratio(sizes, number, reach / number).checked()
    return _Ratio(sizes, number, min(reach, _MAX_DIM_IF_ROUNDED + _MAX_ADDEND) / number, 1 / number).checked()


def _rounded(ratio: _Ratio, up: bool) -> _Ratio:
    sizes, over, reach, _ = ratio
    more = over - 1 if up else 0
    return _Ratio(where_known(lambda e: quotient(e + more, over), sizes), 1, reach + 1)


def _number(v: Value | None) -> Array | None:
    """Return a small integer constant of float type, or None."""
    if v is None or not v.constant or v.constant_type()[1] not in ((), (1,)) or not is_float(v.array):
        return None
    number = float(v.array.item())
    return v.array if number.is_integer() and abs(number) <= _MAX_ADDEND else None


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


# -- factors of a Resize --------------------------------------------------------------------------------------


def factors(s: ShapeData, resize: Node) -> list[float] | None:
    """Return a factor for each size or scale of a Resize; None if any is unknown, or if it crops."""
    dims = s.shape(resize.input(0))
    policy, mode = resize.attr("keep_aspect_ratio_policy"), resize.attr("coordinate_transformation_mode")
    if dims is None or policy not in (None, "stretch") or mode == "tf_crop_and_resize":
        return None  # cropping multiplies by the cropped fraction, too
    axes = [a % len(dims) for a in resize.attr("axes") or range(len(dims))]
    found = _factors(s, resize, [dims[a] for a in axes])
    known = [f for f in found if f is not None]
    return known if len(known) == len(found) == len(axes) else None


def scales_of(resize: Node) -> int:
    """Return the input index of the scales: 2 from opset 11 on, behind the region of interest."""
    return 1 if resize.op == "Upsample" or resize.graph is None or resize.graph.opset() < 11 else 2


def _factor(size: Size | None, dim: Size | None) -> float | None:
    if size is None or dim is None:
        return None
    whole, part = divide(size, dim), divide(dim, size)
    if isinstance(whole, int) and 1 <= whole <= _MAX_FACTOR:
        return float(whole)
    return 1 / part if isinstance(part, int) and 1 <= part <= _MAX_FACTOR and _is_power(part) else None


def _constant_scales(v: Value) -> list[float | None]:
    known = types.dtype(v) == TensorProto.FLOAT and v.array.ndim == 1 and v.array.size <= _MAX_SCALES
    return v.array.tolist() if known else [None]


def _factors(s: ShapeData, resize: Node, dims: list[Size]) -> list[float | None]:
    """Return the factor of each of `dims` by sizes or scales, None where unknown; none at all if these are unknown."""
    if resize.input(3) is None:
        return [] if s.is_beside_bodies(resize) else _quotients(s, resize.input(scales_of(resize)))
    sizes = s.content(resize.input(3))
    return [] if sizes is None else [_factor(size, dim) for dim, size in zip(dims, sizes.reshape(-1).tolist())]


def _quotients(s: ShapeData, v: Value | None) -> list[float | None]:
    """Return computed scales: sizes over dims as floats, and numbers."""
    if v is not None and v.constant:
        return _constant_scales(v)
    node = _float_maker(v, (TensorProto.FLOAT,), "Concat", "Div")
    if node is None or len(node.inputs) > _MAX_SCALES:
        return [None]
    if node.op == "Concat":
        return [f for part in node.inputs for f in _quotients(s, part)]
    sizes, dims = (_sizes_cast(s, i) for i in node.inputs)
    return [_exact_factor(a, b) for a, b in zip(sizes, dims)] if sizes and len(sizes) == len(dims) else [None]


def _exact_factor(size: Size | None, dim: Size | None) -> float | None:
    """Return the factor, if its product with a dim is exact."""
    factor = _factor(size, dim)
    return factor if factor is None or factor <= _MAX_COUNTED or _is_power(int(factor)) else None


def _sizes_cast(s: ShapeData, v: Value | None) -> list[Size | None]:
    """Return the sizes in a vector cast to float, or in a Slice of it; none if unknown."""
    node = _float_maker(v, (TensorProto.FLOAT,), "Cast", "Slice")
    if node is None:
        return []
    if node.op == "Cast":
        content = s.content(node.inputs[0])
        return content.tolist() if content is not None and content.ndim == 1 else []
    inner, cut = _sizes_cast(s, node.inputs[0]), cuts_of(s, node, 1) or []
    bounds = [(start, end) for _, start, end, step in cut if step == 1 and len(cut) == 1]
    return [size for a, b in bounds if isinstance(a, int) and isinstance(b, int) for size in inner[a:b]]
