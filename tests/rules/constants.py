"""Changes of a model's constants to other forms: a number, a vector, a fill, made by a node, with further readers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.cases.mutations import readers
from tests.rules.made_constants import fill, made
from tests.rules.tensors import EPSILON, FACTORS, FLOATS, INTEGERS, exact, fresh, met, put, static, stored

Change = Callable[[ModelProto, random.Random], bool]  # False where there is nothing to change


# -- numbers -------------------------------------------------------------------------------------------------


def redrawn(model: ModelProto, tensor: TensorProto, rng: random.Random) -> None:
    array = numpy_helper.to_array(tensor)
    read = {(n.op_type, i) for n, i in readers(model.graph) if n.input[i] == tensor.name}
    way = rng.choice(["factors", "factors", ""])
    if ("BatchNormalization", 4) in read:
        put(tensor, exact(rng, array.shape, array.dtype, "positive") - array.dtype.type(EPSILON))
        return
    put(tensor, exact(rng, array.shape, array.dtype, "factors" if ("Div", 1) in read else way))


def exact_numbers(model: ModelProto, rng: random.Random) -> bool:
    """Give exact numbers to all float constants with more than one element, and to terms added to variances."""
    found = [t for t in stored(model) if np.prod(t.dims, dtype=int) > 1]
    for t in found:
        redrawn(model, t, rng)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            kept = [a for a in node.attribute if a.name != "epsilon"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("epsilon", EPSILON)])
    return bool(found)


def other_numbers(model: ModelProto, rng: random.Random) -> bool:
    """Give other numbers to a constant: exact, ordinary, all equal, or with zeros."""
    found = stored(model)
    if not found:
        return False
    t = rng.choice(found)
    array = numpy_helper.to_array(t)
    way = rng.randrange(5)
    if way < 2:
        redrawn(model, t, rng)
    elif way == 2:
        put(t, np.random.default_rng(rng.getrandbits(32)).standard_normal(array.shape).astype(array.dtype))
    else:
        number = 0.0 if way == 3 else rng.choice((*FACTORS, 3.0, 6.0, -0.0))
        put(t, np.full(array.shape, number, array.dtype))
    return True


def other_integers(model: ModelProto, rng: random.Random) -> bool:
    """Change an integer constant in one place: by one, or counted from the end."""
    found = [t for t in stored(model, INTEGERS) if np.prod(t.dims, dtype=int)]
    if not found:
        return False
    t = rng.choice(found)
    array = numpy_helper.to_array(t).copy()
    flat, k = array.reshape(-1), rng.randrange(array.size)
    far = np.iinfo(array.dtype)
    around = [int(flat[k]) + d for d in (-1, 1, -2, 2, -4, 4) if far.min <= int(flat[k]) + d <= far.max]
    flat[k] = rng.choice([0, 1, -1, *around, far.max, far.min])
    put(t, flat.reshape(array.shape))
    return True


# -- shapes of constants -------------------------------------------------------------------------------------


def as_number(model: ModelProto, rng: random.Random) -> bool:
    """Make a constant a single number, of any rank up to its own."""
    found = [t for t in stored(model) if np.prod(t.dims, dtype=int)]
    if not found:
        return False
    t = rng.choice(found)
    array = numpy_helper.to_array(t)
    put(t, array.reshape(-1)[:1].reshape([1] * rng.randint(0, array.ndim + 1)))
    return True


def along_one_axis(model: ModelProto, rng: random.Random) -> bool:
    """Make a constant a vector along an axis of itself, or of its operand."""
    found = stored(model)
    if not found:
        return False
    t = rng.choice(found)
    array = numpy_helper.to_array(t)
    shape = list(array.shape)
    if rng.random() < 0.5:
        shape = met(model, t.name) or shape
    if not shape:
        return False
    axis = rng.randrange(len(shape))
    dims = [n if i == axis else 1 for i, n in enumerate(shape)]
    while dims and dims[0] == 1 and rng.random() < 0.5:
        dims.pop(0)
    put(t, exact(rng, dims, array.dtype, "factors"))
    return True


def in_full(model: ModelProto, rng: random.Random) -> bool:
    """Make a constant as large as its operand."""
    found = [(t, shape) for t in stored(model) if (shape := met(model, t.name)) is not None]
    if not found:
        return False
    t, shape = rng.choice(found)
    put(t, exact(rng, shape, helper.tensor_dtype_to_np_dtype(t.data_type), "factors"))
    return True


def _shared_shape(model: ModelProto, rng: random.Random) -> tuple[TensorProto, TensorProto] | None:
    found = [(a, b) for a in stored(model) for b in stored(model) if a.name != b.name and a.data_type == b.data_type]
    return rng.choice(found) if found else None


def one_for_two(model: ModelProto, rng: random.Random) -> bool:
    """Let a reader of a constant read another of the same type."""
    pair = _shared_shape(model, rng)
    if pair is None:
        return False
    a, b = pair
    for node, i in list(readers(model.graph)):
        if node.input[i] == b.name:
            node.input[i] = a.name
    return True


# -- who gives and reads a constant ------------------------------------------------------------------------


def repeated(model: ModelProto, rng: random.Random) -> bool:
    """What a node repeats is a constant."""
    copied = {n.input[0] for n in model.graph.node if n.op_type in ("Expand", "Tile") and n.input}
    return _freeze(model, rng, [i for i in static(model) if i.name in copied])


def frozen(model: ModelProto, rng: random.Random) -> bool:
    """An input is a constant."""
    return _freeze(model, rng, static(model))


def _freeze(model: ModelProto, rng: random.Random, found: Sequence[onnx.ValueInfoProto]) -> bool:
    if not found:
        return False
    info = rng.choice(found)
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    array = (
        np.abs(exact(rng, shape, np.dtype(np.int64))) if dtype.kind in "iub" else exact(rng, shape, dtype, "factors")
    )
    model.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), info.name))
    model.graph.input.remove(info)
    return True


def overridable(model: ModelProto, rng: random.Random) -> bool:
    """Callers may give another."""
    found = stored(model, (*FLOATS, *INTEGERS))
    if not found:
        return False
    t = rng.choice(found)
    model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    model.ir_version = max(model.ir_version, 4)
    return True


def tied(model: ModelProto, rng: random.Random) -> bool:
    """Something else reads a constant, too, or it is an output."""
    found = stored(model, (*FLOATS, *INTEGERS))
    if not found:
        return False
    t = rng.choice(found)
    name = fresh(model, "tied")
    model.graph.node.append(helper.make_node(rng.choice(["Identity", "Neg", "Abs"]), [t.name], [name]))
    model.graph.output.append(helper.make_tensor_value_info(name, t.data_type, t.dims))
    return True


CHANGES: Final[tuple[Change, ...]] = (
    *(other_numbers, other_integers, as_number, along_one_axis, in_full, one_for_two, made, fill, frozen, repeated),
    *(overridable, tied),
)
