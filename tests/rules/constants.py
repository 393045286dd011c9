"""The constants of a model in other forms: a number, a vector, a fill, made by a node, read elsewhere too."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.cases.mutations import readers, value_types

Array = np.ndarray[Any, Any]
Change = Callable[[ModelProto, random.Random], bool]  # False where there is nothing to change

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
    """The constants of the main graph that are of one of these types."""
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


# -- numbers -------------------------------------------------------------------------------------------------


def exact(rng: random.Random, shape: Sequence[int], dtype: np.dtype[Any], way: str = "") -> Array:
    """Numbers of which sums, products and quotients are exact."""
    choices: Sequence[float] = {"factors": FACTORS, "positive": POSITIVE, "": range(-3, 4)}[way]
    size = int(np.prod(shape, dtype=int))
    numbers = [rng.choice(choices)] * size if rng.random() < 0.1 else rng.choices(choices, k=size)
    return np.array(numbers, np.float64).reshape(shape).astype(dtype)


def redrawn(model: ModelProto, tensor: TensorProto, rng: random.Random) -> None:
    array = numpy_helper.to_array(tensor)
    read = {(n.op_type, i) for n, i in readers(model.graph) if n.input[i] == tensor.name}
    way = rng.choice(["factors", "factors", ""])
    if ("BatchNormalization", 4) in read:
        put(tensor, exact(rng, array.shape, array.dtype, "positive") - array.dtype.type(EPSILON))
        return
    put(tensor, exact(rng, array.shape, array.dtype, "factors" if ("Div", 1) in read else way))


def exact_numbers(model: ModelProto, rng: random.Random) -> bool:
    """All constants of floats that are more than a number, and what is added to variances."""
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
    """One constant has others: exact, ordinary, all the same, or none that is not zero."""
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
    """A constant of integers is another in one place, by one, or counted from the end."""
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
    """A constant is one number, of any rank up to its own."""
    found = [t for t in stored(model) if np.prod(t.dims, dtype=int)]
    if not found:
        return False
    t = rng.choice(found)
    array = numpy_helper.to_array(t)
    put(t, array.reshape(-1)[:1].reshape([1] * rng.randint(0, array.ndim + 1)))
    return True


def along_one_axis(model: ModelProto, rng: random.Random) -> bool:
    """A constant is a vector along one of its axes, or of those of what it meets."""
    found = stored(model)
    if not found:
        return False
    t = rng.choice(found)
    array = numpy_helper.to_array(t)
    shape = list(array.shape)
    if rng.random() < 0.5:
        shape = _met(model, t.name) or shape
    if not shape:
        return False
    axis = rng.randrange(len(shape))
    dims = [n if i == axis else 1 for i, n in enumerate(shape)]
    while dims and dims[0] == 1 and rng.random() < 0.5:
        dims.pop(0)
    put(t, exact(rng, dims, array.dtype, "factors"))
    return True


def in_full(model: ModelProto, rng: random.Random) -> bool:
    """A constant is as large as what it meets."""
    found = [(t, shape) for t in stored(model) if (shape := _met(model, t.name)) is not None]
    if not found:
        return False
    t, shape = rng.choice(found)
    put(t, exact(rng, shape, helper.tensor_dtype_to_np_dtype(t.data_type), "factors"))
    return True


def _met(model: ModelProto, name: str) -> list[int] | None:
    """The shape of the other operand of a node that reads this one, 1 for symbols."""
    types = value_types(model) | {i.name: i.type for i in model.graph.input}
    for node, i in readers(model.graph):
        if node.input[i] == name:
            for other in node.input:
                if other != name and other in types and types[other].tensor_type.HasField("shape"):
                    return [d.dim_value if d.HasField("dim_value") else 1 for d in types[other].tensor_type.shape.dim]
    return None


def _shared_shape(model: ModelProto, rng: random.Random) -> tuple[TensorProto, TensorProto] | None:
    found = [(a, b) for a in stored(model) for b in stored(model) if a.name != b.name and a.data_type == b.data_type]
    return rng.choice(found) if found else None


def one_for_two(model: ModelProto, rng: random.Random) -> bool:
    """What reads a constant reads another of its type."""
    pair = _shared_shape(model, rng)
    if pair is None:
        return False
    a, b = pair
    for node, i in list(readers(model.graph)):
        if node.input[i] == b.name:
            node.input[i] = a.name
    return True


# -- what makes a constant -----------------------------------------------------------------------------------

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
    for node, i in list(readers(model.graph)):
        if node.input[i] == t.name:
            node.input[i] = name
    for body in bodies(model.graph):
        renames(body, t.name, name)
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    drop_unread(model)
    return True


def fill(model: ModelProto, rng: random.Random) -> bool:
    """An input or a constant is an Expand of what it has along one axis, or along some, or of a number."""
    if opset(model) < 8:
        return False
    found: dict[str, tuple[list[int], int]] = {t.name: (list(t.dims), t.data_type) for t in stored(model)}
    for t in stored(model):
        if (shape := _met(model, t.name)) is not None and rng.random() < 0.5:
            found[t.name] = shape, t.data_type
    for info in _static(model):
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
    for node, i in list(readers(model.graph)):
        if node.input[i] == name:
            node.input[i] = made
    for body in bodies(model.graph):
        renames(body, name, made)
    for info in [i for i in model.graph.input if i.name == name]:
        model.graph.input.remove(info)
    model.graph.node.insert(0, nodes[0])
    drop_unread(model)
    return True


def _static(model: ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs of numbers, of known sizes, for which there is no default."""
    given = {t.name for t in model.graph.initializer}
    found = [i for i in model.graph.input if i.name not in given and i.type.tensor_type.HasField("shape")]
    found = [i for i in found if all(d.HasField("dim_value") for d in i.type.tensor_type.shape.dim)]
    kinds = {i.name: helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type).kind for i in found}
    return [i for i in found if kinds[i.name] in "fiub"]


def bodies(graph: GraphProto) -> list[GraphProto]:
    found = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    return found + [b for g in found for b in bodies(g)]


def renames(body: GraphProto, old: str, new: str) -> None:
    for node in body.node:
        node.input[:] = [new if i == old else i for i in node.input]


def drop_unread(model: ModelProto) -> None:
    read = {i for g in [model.graph, *bodies(model.graph)] for n in g.node for i in n.input}
    read |= {o.name for g in [model.graph, *bodies(model.graph)] for o in g.output}
    read |= {i.name for i in model.graph.input}
    kept = [t for t in model.graph.initializer if t.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def repeated(model: ModelProto, rng: random.Random) -> bool:
    """What a node repeats is a constant."""
    copied = {n.input[0] for n in model.graph.node if n.op_type in ("Expand", "Tile") and n.input}
    return _freeze(model, rng, [i for i in _static(model) if i.name in copied])


def frozen(model: ModelProto, rng: random.Random) -> bool:
    """An input is a constant."""
    return _freeze(model, rng, _static(model))


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

__all__ = ["CHANGES", "Change", "exact", "exact_numbers", "fresh", "names", "opset", "stored"]
