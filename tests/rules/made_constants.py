"""Nodes that make a constant: from other storage, by an Expand of less, by a DequantizeLinear."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.rules.tensors import FLOATS, INTEGERS, Array, add, exact, fresh, met, opset, read_instead, static, stored

Maker = Callable[[ModelProto, random.Random, Array], tuple[list[NodeProto], str] | None]


def _node(model: ModelProto, op: str, *inputs: str, **attributes: Any) -> tuple[list[NodeProto], str]:
    name = fresh(model, "made")
    return [helper.make_node(op, list(inputs), [name], **attributes)], name


def _identity(model: ModelProto, rng: random.Random, array: Array) -> tuple[list[NodeProto], str] | None:
    return _node(model, "Identity", add(model, array))


def _constant(model: ModelProto, rng: random.Random, array: Array) -> tuple[list[NodeProto], str] | None:
    return _node(model, "Constant", value=numpy_helper.from_array(array))


def _cast(model: ModelProto, rng: random.Random, array: Array) -> tuple[list[NodeProto], str] | None:
    other = rng.choice(["float32", "float64", "int32", "int64"])
    back = helper.np_dtype_to_tensor_dtype(array.dtype)
    with np.errstate(all="ignore"):
        return _node(model, "Cast", add(model, array.astype(other)), to=back)


def _reshape(model: ModelProto, rng: random.Random, array: Array) -> tuple[list[NodeProto], str] | None:
    target = list(array.shape)
    if target and rng.random() < 0.5 and array.size:
        target[rng.randrange(len(target))] = -1
    return _node(model, "Reshape", add(model, array.reshape(-1)), add(model, np.array(target, np.int64)))


def _transpose(model: ModelProto, rng: random.Random, array: Array) -> tuple[list[NodeProto], str] | None:
    perm = rng.sample(range(array.ndim), array.ndim)
    return _node(model, "Transpose", add(model, np.transpose(array, np.argsort(perm))), perm=perm) if perm else None


def _fill(model: ModelProto, rng: random.Random, array: Array) -> tuple[list[NodeProto], str] | None:
    if opset(model) < 9 or array.size == 0:
        return None
    shape = add(model, np.array(array.shape, np.int64))
    return _node(model, "ConstantOfShape", shape, value=numpy_helper.from_array(array.reshape(-1)[:1]))


def _expand(model: ModelProto, rng: random.Random, array: Array) -> tuple[list[NodeProto], str] | None:
    """Of a number, or of an array that has some of the axes."""
    if opset(model) < 8 or array.size == 0 or not array.ndim:
        return None
    kept = [rng.random() < 0.5 for _ in array.shape]
    small = array[tuple(slice(None) if k else slice(0, 1) for k in kept)]
    while small.ndim and small.shape[0] == 1 and rng.random() < 0.3:
        small = small[0]
    return _node(model, "Expand", add(model, small), add(model, np.array(array.shape, np.int64)))


def _sum(model: ModelProto, rng: random.Random, array: Array) -> tuple[list[NodeProto], str] | None:
    if opset(model) < 7 or array.dtype.kind not in "fi":
        return None
    one = np.ones((), array.dtype)
    return _node(model, rng.choice(["Add", "Mul"]), add(model, array), add(model, one))


def _dequantize(model: ModelProto, rng: random.Random, array: Array) -> tuple[list[NodeProto], str] | None:
    if opset(model) < 10 or array.dtype != np.float32:
        return None
    q = np.clip(np.nan_to_num(array), -16, 16).astype(np.int8)
    scale = add(model, np.array(0.5, np.float32))
    zero = [add(model, np.array(rng.choice([0, 1]), np.int8))] if rng.random() < 0.5 else []
    return _node(model, "DequantizeLinear", add(model, q), scale, *zero)


MAKERS: Final[tuple[Maker, ...]] = (
    *(_identity, _constant, _cast, _reshape, _transpose, _fill, _expand, _expand, _sum, _dequantize),
)
_FEW: Final[tuple[Maker, ...]] = (_identity, _constant, _cast, _sum)  # for integers, which say where things are


def made(model: ModelProto, rng: random.Random) -> bool:
    """A node makes what was stored."""
    found = stored(model, (*FLOATS, *INTEGERS, TensorProto.BOOL))
    if not found:
        return False
    t = rng.choice(found)
    array = numpy_helper.to_array(t)
    result = rng.choice(_FEW if array.dtype.kind in "ib" else MAKERS)(model, rng, array)
    if result is None:
        return False
    nodes, name = result
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    read_instead(model, t.name, name)
    return True


def fill(model: ModelProto, rng: random.Random) -> bool:
    """Make an input or a constant an Expand of its elements along some axes, or of a number."""
    if opset(model) < 8:
        return False
    found: dict[str, tuple[list[int], int]] = {t.name: (list(t.dims), t.data_type) for t in stored(model)}
    for t in stored(model):
        if (shape := met(model, t.name)) is not None and rng.random() < 0.5:
            found[t.name] = shape, t.data_type
    for info in static(model):
        found[info.name] = [d.dim_value for d in info.type.tensor_type.shape.dim], info.type.tensor_type.elem_type
    found = {name: f for name, f in found.items() if any(n > 1 for n in f[0])}
    if not found:
        return False
    name = rng.choice(list(found))
    shape, elem_type = found[name]
    axis = rng.choice([i for i, n in enumerate(shape) if n > 1])
    one = rng.random() < 0.7
    small = [n if (i == axis if one else rng.random() < 0.4) else 1 for i, n in enumerate(shape)]
    while small and small[0] == 1 and rng.random() < 0.3:
        small.pop(0)
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    numbers = exact(rng, small, np.dtype(np.float64), "factors")
    held = numbers > 0 if dtype.kind == "b" else np.abs(numbers) if dtype.kind == "u" else numbers
    nodes, made = _node(model, "Expand", add(model, held.astype(dtype)), add(model, np.array(shape, np.int64)))
    for info in [i for i in model.graph.input if i.name == name]:
        model.graph.input.remove(info)
    model.graph.node.insert(0, nodes[0])
    read_instead(model, name, made)
    return True
