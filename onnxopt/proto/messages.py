"""Tensors, attributes and types as plain Python; the only import of onnx.helper and onnx.numpy_helper.

All functions are pure functions of protobuf messages. Loops for each node or tensor read repeated fields as slices:
protobuf ends a loop over the field itself by an IndexError with a message, which takes longer than the loop.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxopt.proto import element_types

Array = np.ndarray[Any, np.dtype[Any]]

DEFAULT_DOMAINS: Final = ("", "ai.onnx")

# Types with numpy's format in raw_data; the rest (packed 4-bit, strings) take onnx's slower path.
_RAW: Final[dict[int, np.dtype[Any]]] = {
    t.code: t.dtype.newbyteorder("<") for t in element_types.TYPES if t.kind in "fiub" and not t.is_foreign
}
_TYPES: Final = {dtype: data_type for data_type, dtype in _RAW.items()}
# The field of elements outside raw_data, and its element type; the rest takes onnx's slower path.
_FIELDS: Final[dict[int, tuple[str, type[np.number[Any]]]]] = {
    TensorProto.FLOAT: ("float_data", np.float32),
    TensorProto.DOUBLE: ("double_data", np.float64),
    TensorProto.INT64: ("int64_data", np.int64),
    **dict.fromkeys((TensorProto.UINT32, TensorProto.UINT64), ("uint64_data", np.uint64)),
    **dict.fromkeys((TensorProto.INT32, TensorProto.INT16, TensorProto.UINT16), ("int32_data", np.int32)),
    **dict.fromkeys((TensorProto.INT8, TensorProto.UINT8), ("int32_data", np.int32)),
}
# The format of elements whose bits are numbers in int32_data.
_BITS: Final[dict[int, np.dtype[Any]]] = {
    t.code: np.dtype(f"<u{t.bits // 8}")
    for t in element_types.TYPES
    if t.name in ("bool", "float16") or (t.is_foreign and t.bits >= 8)
}
BODY_TYPES: Final = frozenset({AttributeProto.GRAPH, AttributeProto.GRAPHS})  # of attributes
is_external: Final[Callable[[TensorProto], int]] = attrgetter("data_location")  # DEFAULT is 0, EXTERNAL is 1
INLINE_BELOW: Final = 1024  # bytes: onnx writes smaller tensors into the model (`size_threshold` of `onnx.save`)
_SIZES_BELOW: Final = 1 << 14  # bytes of a list of integers, for example the sizes of a Split with many outputs

_QUALIFIED: Final[dict[tuple[str, str], str]] = {}
_MAX_CACHED_NAMES: Final = 1 << 10


def leads_away(location: str) -> bool:
    """Whether a location of external data leads out of the model's folder, on any system.

    Models move between machines: drives, shares and `..` of Windows (`..\\w`, `C:w`, `\\\\?\\w`) are refused on every
    system, so that a model reads the same files everywhere. Links are not followed here.
    """
    return any(name.anchor or ".." in name.parts for name in (PurePosixPath(location), PureWindowsPath(location)))


def qualified(op_type: str, domain: str) -> str:
    """Return the key of an operator: `Conv` in the default domain, `com.microsoft::Gelu` elsewhere.

    Equal keys are the same object: comparisons then touch no further memory.
    """
    known = _QUALIFIED.get((op_type, domain))
    if known is not None:
        return known
    if len(_QUALIFIED) >= _MAX_CACHED_NAMES:  # names from files; an `lru_cache` keeps an order and is slower
        _QUALIFIED.clear()
    _QUALIFIED[op_type, domain] = made = op_type if domain in DEFAULT_DOMAINS else f"{domain}::{op_type}"
    return made


def type_name(data_type: int) -> str:
    """Return `FLOAT`, `INT64`, …; the number for types newer than the installed onnx."""
    try:
        return str(TensorProto.DataType.Name(data_type))
    except ValueError:
        return str(data_type)


def numpy_dtype(data_type: int) -> np.dtype[Any]:
    """Return the numpy dtype of an ONNX element type (ml_dtypes for bfloat16, float8 and int4)."""
    found = _RAW.get(data_type) or element_types.BY_CODE.get(data_type)
    if isinstance(found, np.dtype):
        return found
    return found.dtype if found is not None else np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))


def element_type(array: Array) -> int:
    """Return the ONNX element type of a numpy array."""
    known = _TYPES.get(array.dtype)
    return known if known is not None else element_types.of(array.dtype).code


def tensor_bytes(data_type: int, dims: Iterable[int]) -> int:
    """Return the bytes of a dense tensor in memory; a string counts as 8 bytes."""
    count = math.prod(dims)
    if data_type in _RAW:
        return count * _RAW[data_type].itemsize
    known = element_types.BY_CODE.get(data_type)
    return (count * known.bits + 7) // 8 if known is not None else count * 8


def belongs_inside(tensor: TensorProto) -> bool:
    """Whether a tensor's data belong into the model file even if the model has external data.

    Runtimes read shapes and axes when they load a model, and refuse external ones.
    """
    data_type, size = tensor.data_type, tensor_bytes(tensor.data_type, tensor.dims[:])
    may_be_sizes = data_type in (TensorProto.INT64, TensorProto.INT32) and len(tensor.dims) == 1
    return data_type != TensorProto.STRING and 0 <= size < (_SIZES_BELOW if may_be_sizes else INLINE_BELOW)


def put_inside(tensor: TensorProto, data: bytes) -> None:
    """Store `data` in an external tensor, which becomes internal."""
    tensor.raw_data = data
    forget_location(tensor)


def forget_location(tensor: TensorProto) -> None:
    """Remove the reference to external data from a tensor."""
    tensor.ClearField("data_location")
    del tensor.external_data[:]


def training_graphs(proto: ModelProto) -> list[GraphProto]:
    """Return the graphs of the training information; their nodes read values of the main graph by name."""
    return [graph for info in proto.training_info for graph in (info.initialization, info.algorithm)]


def all_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Yield every TensorProto that may hold data: initializers, attributes, and default attributes of functions, in all
    bodies and functions."""
    stack: list[GraphProto] = [proto.graph, *training_graphs(proto)]
    nodes: list[NodeProto] = [n for f in proto.functions for n in f.node]
    for function in proto.functions:
        for a in function.attribute_proto:
            yield from _tensors_of(a, stack)
    while stack or nodes:
        if stack:
            graph = stack.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes.extend(graph.node)
        while nodes:
            for a in nodes.pop().attribute[:]:
                yield from _tensors_of(a, stack)


def _tensors_of(a: AttributeProto, stack: list[GraphProto]) -> Iterator[TensorProto]:
    """Yield the tensors of an attribute, and push its graphs onto the stack."""
    if a.type == AttributeProto.TENSOR:
        yield a.t
    elif a.type == AttributeProto.TENSORS:
        yield from a.tensors
    elif a.type == AttributeProto.GRAPH:
        stack.append(a.g)
    elif a.type == AttributeProto.GRAPHS:
        stack.extend(a.graphs)
    elif a.type in (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS):
        several = a.type == AttributeProto.SPARSE_TENSORS
        for sparse in a.sparse_tensors if several else (a.sparse_tensor,):
            yield from (sparse.values, sparse.indices)


def read_only(array: Array) -> Array:
    array.setflags(write=False)  # `flags.writeable = False` takes twice as long
    return array


def contiguous(array: Array) -> Array:
    """Return a read-only, C-contiguous view or copy."""
    flags = array.flags
    if not flags.c_contiguous:
        array = array.copy(order="C")
        flags = array.flags
    if flags.writeable:
        array = read_only(array.view())
    return array


def tensor_to_array(tensor: TensorProto, stored: memoryview | None = None) -> Array:
    """Return a read-only array of an inline tensor, which shares the bytes of the message if possible.

    `stored`: the bytes of raw_data, if not in the message. Raises ValueError for a tensor without its elements, such as
    an external tensor.
    """
    if tensor.data_location and stored is None:
        raise ValueError("its data lie beside the model")
    data_type = tensor.data_type
    raw = _RAW.get(data_type)
    if raw is None and data_type in _BITS and sys.byteorder == "little":
        raw = numpy_dtype(data_type)
    data = tensor.raw_data if stored is None else stored
    if raw is not None and (data or tensor.HasField("raw_data")):
        array, dims = np.frombuffer(data, raw), tensor.dims[:]
        return array if dims == [array.size] else array.reshape(dims)
    if stored is not None:
        tensor = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=bytes(stored))
    elif raw is not None and data_type in _FIELDS and not tensor.HasField("segment"):
        field, wide = _FIELDS[data_type]
        return read_only(np.array(getattr(tensor, field)[:], wide).astype(raw, copy=False).reshape(tensor.dims[:]))
    elif raw is not None and data_type in _BITS and not tensor.HasField("segment"):
        bits = np.array(tensor.int32_data[:], np.int32).astype(_BITS[data_type])
        return read_only(bits.view(raw).reshape(tensor.dims[:]))
    return read_only(np.asarray(onnx.numpy_helper.to_array(tensor)))


def array_to_tensor(array: Array, name: str) -> TensorProto:
    """Return a TensorProto with `raw_data` (strings: `string_data`)."""
    tensor = TensorProto()
    fill_tensor(tensor, array, name)
    return tensor


def is_raw(array: Array) -> bool:
    """Whether the array's memory has the format of `raw_data`."""
    raw = _RAW.get(element_type(array))
    return raw is not None and array.dtype == raw and array.flags.c_contiguous


def describe_tensor(tensor: TensorProto, array: Array, name: str) -> None:
    """Set name, type and dims of an empty TensorProto to those of `array`, without its data."""
    tensor.name, tensor.data_type = name, element_type(array)
    tensor.dims.extend(array.shape)


def fill_tensor(tensor: TensorProto, array: Array, name: str) -> None:
    """Store `array` in an empty TensorProto."""
    data_type = element_type(array)
    raw = _RAW.get(data_type) or _BITS.get(data_type)
    if raw is None:
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(array), name))
        return
    describe_tensor(tensor, array, name)
    if data_type not in _RAW:
        array = array.view(f"u{raw.itemsize}")
    tensor.raw_data = (array if array.dtype == raw else array.astype(raw)).tobytes()


def make_attribute(name: str, value: Any) -> AttributeProto:
    """Return an AttributeProto of an int, float, str, bytes, list, ndarray, TensorProto or GraphProto."""
    if isinstance(value, AttributeProto):
        copy = AttributeProto()
        copy.CopyFrom(value)
        copy.name = name
        return copy
    if isinstance(value, np.ndarray):
        return AttributeProto(name=name, type=AttributeProto.TENSOR, t=array_to_tensor(value, ""))
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, bool):
        value = int(value)
    elif isinstance(value, (list, tuple)) and all(type(i) is int for i in value):
        return AttributeProto(name=name, type=AttributeProto.INTS, ints=value)
    if type(value) is int:
        return AttributeProto(name=name, type=AttributeProto.INT, i=value)
    if type(value) is float:
        return AttributeProto(name=name, type=AttributeProto.FLOAT, f=value)
    if type(value) is str:
        return AttributeProto(name=name, type=AttributeProto.STRING, s=value.encode("utf-8", "surrogateescape"))
    return onnx.helper.make_attribute(name, value)


def attribute_value(attribute: AttributeProto) -> Any:
    """Return the Python value of an attribute: int, float, str, list, read-only array, or the message itself."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.INTS:
        return attribute.ints[:]
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "surrogateescape")
    if kind == AttributeProto.FLOATS:
        return attribute.floats[:]
    if kind == AttributeProto.STRINGS:
        return [s.decode("utf-8", "surrogateescape") for s in attribute.strings[:]]
    if kind == AttributeProto.TENSOR:
        return tensor_to_array(attribute.t)
    return onnx.helper.get_attribute_value(attribute)


def make_node(op_type: str, domain: str, name: str, attributes: Mapping[str, Any]) -> NodeProto:
    proto = NodeProto(op_type=op_type, domain=domain, name=name)
    proto.attribute.extend(make_attribute(k, v) for k, v in attributes.items() if v is not None)
    return proto


def body_graphs(proto: NodeProto) -> list[tuple[str, GraphProto]]:
    """Return the graphs in a node's attributes, with the attribute's name (`name[i]` for lists of graphs).

    For any operator, also one that has no body in the standard: such a body reads outer values too. Called for every
    node; most calls take half a microsecond.
    """
    attributes = proto.attribute
    if not attributes or BODY_TYPES.isdisjoint([a.type for a in attributes[:]]):
        return []
    found: list[tuple[str, GraphProto]] = []
    for a in attributes:
        if a.type == AttributeProto.GRAPH and a.HasField("g"):
            found.append((a.name, a.g))
        elif a.type == AttributeProto.GRAPHS:
            found.extend((f"{a.name}[{i}]", g) for i, g in enumerate(a.graphs))
    return found


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes and the nodes of their bodies."""
    for node in nodes:
        yield node
        for _, body in body_graphs(node):
            yield from all_nodes(body.node[:])


def attribute_bytes(proto: NodeProto) -> tuple[bytes, ...]:
    """Return the serialized attributes of a node, sorted: equal for calls with equal attributes in any order."""
    return tuple(sorted(a.SerializeToString(deterministic=True) for a in proto.attribute[:]))


def fields(message: Any, leave_out: Collection[str] = (), only: Collection[str] = ()) -> dict[str, Any]:
    """Return the set fields by name, as arguments for a partial copy: without `leave_out`, or only those in `only`."""
    return {f.name: v for f, v in message.ListFields() if f.name not in leave_out and (not only or f.name in only)}


def tensor_type(value_type: TypeProto) -> tuple[int, tuple[int | str | None, ...] | None]:
    """Return (element type, shape) of a dense tensor type; (0, None) for sequences, maps, optionals, unknown types.

    A dimension is an int, the name of a symbol, or None; an absent shape is None.
    """
    if value_type.WhichOneof("value") != "tensor_type":
        return 0, None
    tensor = value_type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    given = tensor.shape.dim[:]
    sizes = [d.dim_value for d in given]
    if not sizes or min(sizes) > 0:
        return tensor.elem_type, tuple(sizes)
    dims: list[int | str | None] = []
    for d, size in zip(given, sizes):
        if size > 0:
            dims.append(size)
        else:
            dims.append(d.dim_param or (0 if size == 0 and d.HasField("dim_value") else None))
    return tensor.elem_type, tuple(dims)


def type_proto_text(value_type: TypeProto) -> str:
    """Return a type as text: `float[batch, 3, 224, 224]`; `sequence(float[2])`."""
    data_type, dims = tensor_type(value_type)
    if data_type:
        shape = "[...]" if dims is None else f"[{', '.join('?' if d is None else str(d) for d in dims)}]"
        return type_name(data_type).lower() + (shape if dims != () else "")
    kind = value_type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return f"{kind.removesuffix('_type')}({type_proto_text(getattr(value_type, kind).elem_type)})"
    return str(kind or "?").removesuffix("_type")


def tensor_type_proto(data_type: int, dims: Iterable[int | str | None] | None) -> TypeProto:
    """Return the TypeProto of an element type and dims, the inverse of `tensor_type`."""
    kind = TypeProto()
    kind.tensor_type.elem_type = data_type
    if dims is not None:
        shape = kind.tensor_type.shape
        shape.SetInParent()  # a scalar has a shape without dims
        for d in dims:
            if isinstance(d, str):
                shape.dim.add(dim_param=d)
            else:
                shape.dim.add(dim_value=d)  # None sets none
    return kind


def tensor_value_info(name: str, data_type: int, dims: Iterable[int | str | None] | None) -> ValueInfoProto:
    return ValueInfoProto(name=name, type=tensor_type_proto(data_type, dims))


def of_any_shape(kind: TypeProto) -> TypeProto:
    """Return a type without shape, also of elements of a sequence or optional."""
    copy = TypeProto()
    copy.CopyFrom(kind)
    inner = copy
    while (which := inner.WhichOneof("value")) in ("sequence_type", "optional_type"):
        inner = getattr(inner, which).elem_type
    if which == "tensor_type":
        inner.tensor_type.ClearField("shape")
    return copy


def is_below_zero(kind: TypeProto) -> bool:
    return any(dim.dim_value < 0 for dim in kind.tensor_type.shape.dim)
