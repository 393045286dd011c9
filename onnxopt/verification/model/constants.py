"""What Constant nodes hold, in whichever of its forms: exporters write single numbers and lists as often as tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

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


def numbers(tensor: TensorProto) -> list[float]:
    """Those of a small tensor, each once; none of what is no such."""
    from onnxopt.protos import tensor_to_array

    count = math.prod(tensor.dims)
    if not 0 < count <= _ELEMENTS or tensor.data_location != tensor.DEFAULT or tensor.data_type not in _NUMBERS:
        return []
    try:
        return list(dict.fromkeys(float(n) for n in tensor_to_array(tensor).reshape(-1).tolist()))
    except ValueError:  # it has not the elements that it should have
        return []


def single(tensor: TensorProto) -> int | None:
    """The integer, or boolean, that a tensor is which holds one; None of any other."""
    from onnxopt.protos import tensor_to_array

    whole = tensor.data_type in (tensor.INT32, tensor.INT64, tensor.BOOL)
    if not whole or math.prod(tensor.dims) != 1 or tensor.data_location != tensor.DEFAULT:
        return None
    try:
        return int(tensor_to_array(tensor).reshape(-1)[0])
    except ValueError:  # it has not the element that it should have
        return None
