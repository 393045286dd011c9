"""What Constant nodes hold, in whichever of its forms: exporters write single numbers and lists as often as tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from onnxopt.element_types import FLOATS, INTEGERS

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto


_ELEMENTS: Final = 64  # of a constant
_NUMBERS: Final = FLOATS | INTEGERS


def constants(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, TensorProto]]:
    """(name, what it holds) of the Constants among these."""
    for node in nodes:
        if node.op_type == "Constant" and node.output and (found := held(node)) is not None:
            yield node.output[0], found


def held(node: NodeProto) -> TensorProto | None:
    """The tensor of a Constant; None where it has another form, which no number is read from."""
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
    """The elements of a tensor of one of these types that has at most `most`; none of any other tensor, and of one
    whose data are not where they should be."""
    from onnxopt.protos import tensor_to_array

    if not 0 < math.prod(tensor.dims) <= most or tensor.data_type not in types:
        return []
    try:
        return list(tensor_to_array(tensor).reshape(-1).tolist())
    except ValueError:
        return []


def numbers(tensor: TensorProto) -> list[float]:
    """Those of a small tensor, each once; none of what is no such."""
    return list(dict.fromkeys(map(float, few(tensor, _ELEMENTS, _NUMBERS))))


def single(tensor: TensorProto) -> int | None:
    """The integer, or boolean, that a tensor is which holds one; None of any other."""
    return next(map(int, few(tensor, 1, (tensor.INT32, tensor.INT64, tensor.BOOL))), None)
