"""Values of Constant nodes, in every attribute form."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from onnxopt.proto.element_types import FLOATS, INTEGERS

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto


_ELEMENTS: Final = 64  # in a constant
_NUMERIC: Final = FLOATS | INTEGERS


def constants(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, TensorProto]]:
    """Yield (name, tensor) of the Constant nodes."""
    for node in nodes:
        if node.op_type == "Constant" and node.output and (found := held(node)) is not None:
            yield node.output[0], found


def held(node: NodeProto) -> TensorProto | None:
    """Return a Constant's value as a tensor; None for sparse values."""
    from onnx import TensorProto

    for a in node.attribute:
        if a.name == "value":
            return a.t
        if a.name == "value_float":
            return TensorProto(data_type=TensorProto.FLOAT, float_data=[a.f])
        if a.name == "value_int":
            return TensorProto(data_type=TensorProto.INT64, int64_data=[a.i])
        if a.name == "value_string":
            return TensorProto(data_type=TensorProto.STRING, string_data=[a.s])
        if a.name == "value_floats":
            return TensorProto(data_type=TensorProto.FLOAT, dims=[len(a.floats)], float_data=a.floats)
        if a.name == "value_ints":
            return TensorProto(data_type=TensorProto.INT64, dims=[len(a.ints)], int64_data=a.ints)
        if a.name == "value_strings":
            return TensorProto(data_type=TensorProto.STRING, dims=[len(a.strings)], string_data=a.strings)
    return None


def few(tensor: TensorProto, most: int, types: Collection[int]) -> list[Any]:
    """Return the elements of a small tensor: of a type in `types`, with 1 to `most` elements.

    [] for any further tensor, and for unreadable data.
    """
    from onnxopt.proto.messages import tensor_to_array

    if not 0 < math.prod(tensor.dims) <= most or tensor.data_type not in types:
        return []
    try:
        return list(tensor_to_array(tensor).reshape(-1).tolist())
    except ValueError:
        return []


def numbers(tensor: TensorProto) -> list[float]:
    """Return the distinct elements of a small numeric tensor; [] for any further tensor."""
    return list(dict.fromkeys(map(float, few(tensor, _ELEMENTS, _NUMERIC))))


def single(tensor: TensorProto) -> int | None:
    """Return the element of an integer or boolean tensor with a single element, else None."""
    return next(map(int, few(tensor, 1, (tensor.INT32, tensor.INT64, tensor.BOOL))), None)
