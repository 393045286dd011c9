"""Symbolic dims: names from a file are kept apart from names made by onnxopt; dims of inputs are fixed on request.

A computed dim is named by its expression, `{a*b}`; a dim invented by shape inference contains an `@`. A file may use
any name, even `a*b` or `{a*b}`. A name from a file is no expression: two dims are equal only if the names are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from onnx import GraphProto, TypeProto, ValueInfoProto

from onnxopt.errors import UsageError, nearest
from onnxopt.graph.structure import interface_of
from onnxopt.graph.value import Dim
from onnxopt.proto.messages import tensor_type

if TYPE_CHECKING:
    from onnxopt.graph.model import Model


def as_symbol(name: str) -> str:
    """Return the symbol for a name of a file: the name, or a quoted form for anything but a plain identifier.

    Names made by onnxopt are never quoted, so symbols from a file cannot collide with made ones.
    """
    if name.replace(".", "_").isidentifier() and name[0] != ".":
        return name
    if name.isascii() and name.isprintable() and not {'"', "\\", "@"} & {*name}:
        return f'"{name}"'  # the import of json takes longer than a small model
    import json

    return json.dumps(name).replace("@", "\\u0040")


def as_written(dim: Dim) -> Dim:
    """Return a dim with its symbol spelled as in the file."""
    if not (isinstance(dim, str) and dim.startswith('"') and dim.endswith('"')):
        return dim
    if "\\" not in dim:
        return dim[1:-1]
    import json

    return str(json.loads(dim))


def is_invented(dim: Dim) -> bool:
    """Whether a dim is a symbol invented by inference for an unnamed size."""
    return isinstance(dim, str) and "@" in dim


def rename_dims(kind: TypeProto, name: Callable[[str], str]) -> None:
    """Apply `name` to each named dim of a type, nested types included; an empty result makes the dim unknown."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        rename_dims(getattr(kind, which).elem_type, name)
    elif which == "map_type":
        rename_dims(kind.map_type.value_type, name)
    elif which in ("tensor_type", "sparse_tensor_type"):
        for dim in getattr(kind, which).shape.dim:
            if dim.dim_param:
                dim.dim_param = name(dim.dim_param)
                if not dim.dim_param:
                    dim.ClearField("dim_param")


def specialise(model: Model, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Fix dims by symbol (`dims`) and whole input shapes (`shapes`) wherever the symbols occur in the main graph.

    Bodies are left alone, where the same name may denote another size. Returns the size of each symbol fixed; a dim
    without a name is called `input[axis]`. Raises UsageError for unknown names, and for sizes that contradict the model
    or each other.
    """
    if not (dims or shapes):
        return {}
    inputs = {i.name: i for i in model.proto.graph.input if i.type.HasField("tensor_type")}
    fixed: dict[str, int] = {}
    symbols = {d.dim_param for i in inputs.values() for d in i.type.tensor_type.shape.dim if d.dim_param}
    for name, size in dims.items():
        if name not in symbols:
            raise UsageError(f"{model.name}: no input has a dim called {name!r}", _near(name, symbols, "dims"))
        _fix(fixed, name, size)
    for name, shape in shapes.items():
        if name not in inputs:
            raise UsageError(f"{model.name}: no input is called {name!r}", _near(name, inputs, "inputs"))
        _fix_shape(inputs[name], shape, fixed)
    if fixed:
        _write_sizes(model.proto.graph, fixed)
        model.version += 1
        model.interface = interface_of(model.proto)
    return fixed


def _write_sizes(graph: GraphProto, fixed: Mapping[str, int]) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        for axis, dim in enumerate(tensor_type(info.type)[1] or ()):
            size = None if isinstance(dim, int) else fixed.get(dim or f"{info.name}[{axis}]")
            if size is not None:
                info.type.tensor_type.shape.dim[axis].dim_value = size


def _fix(fixed: dict[str, int], name: str, size: int) -> None:
    if size < 0:
        raise UsageError(f"the size of {name!r} is {size}", "sizes are not negative")
    if fixed.setdefault(name, size) != size:
        raise UsageError(f"{name!r} is given as {fixed[name]} and as {size}", "give it once")


def _fix_shape(info: ValueInfoProto, shape: Sequence[int], fixed: dict[str, int]) -> None:
    dims = tensor_type(info.type)[1]
    if dims is None:
        raise UsageError(f"the rank of input {info.name!r} is unknown", "declare it in the model")
    if len(dims) != len(shape):
        sizes = ",".join("?" if d is None else str(d) for d in dims)
        raise UsageError(
            f"input {info.name!r} has {len(dims)} dims, {len(shape)} are given",
            f"give each of them: --shape {info.name}:{sizes}",
        )
    for axis, (dim, size) in enumerate(zip(dims, shape)):
        if not isinstance(dim, int):
            _fix(fixed, dim or f"{info.name}[{axis}]", size)
        elif dim != size:
            raise UsageError(f"dim {axis} of input {info.name!r} is {dim}, not {size}", "it is not dynamic")


def _near(name: str, known: Iterable[str], what: str) -> str:
    names = sorted(known)
    if not names:
        return f"its {what} have no names: --shape INPUT:1,3 fixes them" if what == "dims" else "it has none"
    return nearest(name, names, f"the {what} are {', '.join(names)}")
