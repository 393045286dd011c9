"""Scale factors of a Resize with sizes or scales computed from its input.

Runtimes divide each size by its dim in float32, as exporters do for scales. For a multiple of the dim, or an even
fraction by a power of two, the quotient is exact, as is the size computed from the factor: axes are shorter than
float32's exact range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.slicing import cuts_of
from onnxopt.analysis.shapes.symbolic import Size, divide
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

_MAX_FACTOR: Final = 1 << 8  # largest factor
_COUNTED: Final = 4  # largest factor, other than powers of two, for which products with a dim are exact
_MAX_SCALES: Final = 16  # numbers in a list of scales


def factors(s: ShapeData, resize: Node) -> list[float] | None:
    """Return a factor for each size or scale of a Resize; None if any is unknown, or if it crops."""
    dims = s.shape(resize.input(0))
    policy, mode = resize.attr("keep_aspect_ratio_policy"), resize.attr("coordinate_transformation_mode")
    if dims is None or policy not in (None, "stretch") or mode == "tf_crop_and_resize":
        return None  # cropping multiplies by the cropped fraction, too
    at, sizes = scales_of(resize), s.content(resize.input(3))
    axes = [a % len(dims) for a in resize.attr("axes") or range(len(dims))]
    if resize.input(3) is None:
        found = [] if s.is_beside_bodies(resize) else _quotients(s, resize.input(at))
    else:
        given: list[Size | None] = [] if sizes is None else sizes.reshape(-1).tolist()
        found = [_factor(size, dims[a]) for a, size in zip(axes, given, strict=False)]
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


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


def _quotients(s: ShapeData, v: Value | None) -> list[float | None]:
    """Return computed scales: sizes over dims as floats, and numbers."""
    node = v.producer if v is not None else None
    if v is None or types.dtype(v) != TensorProto.FLOAT or (node is not None and node.has_references):
        return [None]
    if v.constant:
        return v.array.tolist() if v.array.ndim == 1 and v.array.size <= _MAX_SCALES else [None]
    if node is not None and node.op == "Concat" and len(node.inputs) <= _MAX_SCALES:
        return [f for part in node.inputs for f in _quotients(s, part)]
    if node is None or node.op != "Div":
        return [None]
    sizes, dims = (_counted(s, i) for i in node.inputs)
    if sizes is None or dims is None or len(sizes) != len(dims):
        return [None]
    found = map(_factor, sizes, dims)
    return [f if f is None or f <= _COUNTED or _is_power(int(f)) else None for f in found]


def _counted(s: ShapeData, v: Value | None) -> list[Size | None] | None:
    """Return the sizes in a vector cast to float, or in a Slice of it."""
    node = v.producer if v is not None else None
    if v is None or node is None or types.dtype(v) != TensorProto.FLOAT or node.has_references:
        return None
    if node.op == "Cast":
        content = s.content(node.inputs[0])
        return content.tolist() if content is not None and content.ndim == 1 else None
    inner = _counted(s, node.inputs[0]) if node.op == "Slice" and node.inputs[0] is not v else None
    cut = cuts_of(s, node, 1) if inner is not None else None
    if inner is None or cut is None or len(cut) != 1:
        return None
    _, start, end, step = cut[0]
    return inner[start:end] if isinstance(start, int) and isinstance(end, int) and step == 1 else None
