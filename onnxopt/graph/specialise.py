"""Fixes dynamic dims of the inputs, before any other part reads the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from onnx import ValueInfoProto

from onnxopt.errors import UsageError, nearest
from onnxopt.graph.structure import interface_of
from onnxopt.proto.messages import tensor_type

if TYPE_CHECKING:
    from onnxopt.graph.model import Model


def specialise(model: Model, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Fix dims by symbol (`dims`) and whole input shapes (`shapes`) wherever the symbols occur in the main graph.

    Bodies are left alone, where the same name may denote another size. Returns the size of each symbol fixed; a dim
    without a name is called `input[axis]`. Raises UsageError for unknown names, and for sizes that contradict the model
    or each other.
    """
    if not (dims or shapes):
        return {}
    graph = model.proto.graph
    inputs = {i.name: i for i in graph.input if i.type.HasField("tensor_type")}
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
        for info in (*graph.input, *graph.output, *graph.value_info):
            for axis, dim in enumerate(tensor_type(info.type)[1] or ()):
                given = None if isinstance(dim, int) else fixed.get(dim or f"{info.name}[{axis}]")
                if given is not None:
                    info.type.tensor_type.shape.dim[axis].dim_value = given
        model.version += 1
        model.interface = interface_of(model.proto)
    return fixed


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
