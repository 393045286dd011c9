"""Constants of a model: found, added, replaced."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from tests.cases.mutations import readers, value_types

Array = np.ndarray[Any, Any]

FLOATS: Final = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
INTEGERS: Final = (TensorProto.INT64, TensorProto.INT32)
FACTORS: Final = (-4.0, -2.0, -1.0, -0.5, 0.25, 0.5, 1.0, 2.0, 4.0)  # products and quotients of these are exact
POSITIVE: Final = (0.25, 1.0, 4.0, 16.0)  # and so are roots of these
EPSILON: Final = 2.0**-12  # what is added to one of POSITIVE less it


def names(model: ModelProto) -> set[str]:
    graph = model.graph
    made = {o for n in graph.node for o in n.output}
    return made | {v.name for v in (*graph.input, *graph.output, *graph.initializer)}


def fresh(model: ModelProto, stem: str) -> str:
    taken, k = names(model), 0
    while f"{stem}{k}" in taken:
        k += 1
    return f"{stem}{k}"


def stored(model: ModelProto, types: Sequence[int] = FLOATS) -> list[TensorProto]:
    """Returns the constants of the main graph of the given types."""
    overridable = {i.name for i in model.graph.input}
    return [t for t in model.graph.initializer if t.data_type in types and t.name not in overridable]


def put(tensor: TensorProto, array: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), tensor.name))


def add(model: ModelProto, array: Array, stem: str = "k") -> str:
    name = fresh(model, stem)
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def opset(model: ModelProto) -> int:
    return next((o.version for o in model.opset_import if not o.domain), 1)


def exact(rng: random.Random, shape: Sequence[int], dtype: np.dtype[Any], way: str = "") -> Array:
    """Numbers of which sums, products and quotients are exact."""
    choices: Sequence[float] = {"factors": FACTORS, "positive": POSITIVE, "": range(-3, 4)}[way]
    size = int(np.prod(shape, dtype=int))
    numbers = [rng.choice(choices)] * size if rng.random() < 0.1 else rng.choices(choices, k=size)
    return np.array(numbers, np.float64).reshape(shape).astype(dtype)


def met(model: ModelProto, name: str) -> list[int] | None:
    """Returns the shape of the other operand of a reader, 1 for symbols."""
    types = value_types(model) | {i.name: i.type for i in model.graph.input}
    for node, i in readers(model.graph):
        if node.input[i] == name:
            for other in node.input:
                if other != name and other in types and types[other].tensor_type.HasField("shape"):
                    return [d.dim_value if d.HasField("dim_value") else 1 for d in types[other].tensor_type.shape.dim]
    return None


def static(model: ModelProto) -> list[onnx.ValueInfoProto]:
    """Returns numeric inputs of known sizes without default."""
    given = {t.name for t in model.graph.initializer}
    found = [i for i in model.graph.input if i.name not in given and i.type.tensor_type.HasField("shape")]
    found = [i for i in found if all(d.HasField("dim_value") for d in i.type.tensor_type.shape.dim)]
    kinds = {i.name: helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type).kind for i in found}
    return [i for i in found if kinds[i.name] in "fiub"]


def read_instead(model: ModelProto, old: str, new: str) -> None:
    """Let all readers of `old`, also in bodies, read `new`, and remove unread constants."""
    for node, i in list(readers(model.graph)):
        if node.input[i] == old:
            node.input[i] = new
    for body in bodies(model.graph):
        for node in body.node:
            node.input[:] = [new if i == old else i for i in node.input]
    drop_unread(model)


def bodies(graph: GraphProto) -> list[GraphProto]:
    found = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    return found + [b for g in found for b in bodies(g)]


def drop_unread(model: ModelProto) -> None:
    read = {i for g in [model.graph, *bodies(model.graph)] for n in g.node for i in n.input}
    read |= {o.name for g in [model.graph, *bodies(model.graph)] for o in g.output}
    read |= {i.name for i in model.graph.input}
    kept = [t for t in model.graph.initializer if t.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
