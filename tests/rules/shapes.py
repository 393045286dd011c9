"""Changes of a drawn instance: sizes, ranks, axes, opsets, types, and surrounding bodies."""

from __future__ import annotations

import copy
import random
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

from tests.cases.mutations import value_types
from tests.cases.surroundings import converted, forget_shapes, renamed, say_anew
from tests.opsets import at_opset
from tests.rules.constants import Change
from tests.rules.tensors import add, opset

SIZES: Final = (0, 1, 1, 2, 3, 4, 5)
TYPES: Final = (
    *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT32, TensorProto.BOOL),
)


def _dims(model: ModelProto) -> list[onnx.TensorShapeProto.Dimension]:
    return [d for i in model.graph.input for d in i.type.tensor_type.shape.dim]


def resized(model: ModelProto, rng: random.Random) -> bool:
    """Change a size everywhere: in inputs, weights, and constants that hold sizes."""
    numbers = sorted({d.dim_value for d in _dims(model) if d.HasField("dim_value")})
    if not numbers:
        return False
    before = rng.choice(numbers)
    after = rng.choice([*SIZES, *numbers])
    if before == after:
        return False
    constants = rng.random() < 0.8
    for d in _dims(model):
        if d.HasField("dim_value") and d.dim_value == before:
            d.dim_value = after
    for t in model.graph.initializer:
        array = numpy_helper.to_array(t)
        if array.dtype == np.int64 and array.ndim <= 1:
            if constants and before > 1:
                array = np.where(array == before, after, array)
        for axis, n in enumerate(array.shape if t.data_type != TensorProto.INT64 else ()):
            if n == before and n:
                array = np.take(array, np.arange(after) % n, axis)
        t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), t.name))
    say_anew(model)
    return True


def resized_input(model: ModelProto, rng: random.Random) -> bool:
    """Change one dim of one input."""
    dims = [d for d in _dims(model) if d.HasField("dim_value")]
    if not dims:
        return False
    rng.choice(dims).dim_value = rng.choice(SIZES)
    say_anew(model)
    return True


def deepened(model: ModelProto, rng: random.Random) -> bool:
    """All inputs, or one, have an axis more in front."""
    infos = [i for i in model.graph.input if i.type.tensor_type.HasField("shape")]
    if not infos:
        return False
    size = rng.choice([1, 2, 2, 3])
    for info in infos if rng.random() < 0.7 else [rng.choice(infos)]:
        dims = [copy.deepcopy(d) for d in info.type.tensor_type.shape.dim]
        del info.type.tensor_type.shape.dim[:]
        info.type.tensor_type.shape.dim.add().dim_value = size
        info.type.tensor_type.shape.dim.extend(dims)
    if rng.random() < 0.5:
        for a in (a for n in model.graph.node for a in n.attribute if a.name in ("axis", "axes", "perm")):
            if a.name == "axis" and a.i >= 0:
                a.i += 1
            elif a.name == "axes":
                a.ints[:] = [k + (k >= 0) for k in a.ints]
            elif a.name == "perm":
                a.ints[:] = [0, *(k + 1 for k in a.ints)]
    say_anew(model)
    return True


def flattened(model: ModelProto, rng: random.Random) -> bool:
    """An input has an axis less."""
    infos = [i for i in model.graph.input if i.type.tensor_type.shape.dim]
    if not infos:
        return False
    for info in infos if rng.random() < 0.5 else [rng.choice(infos)]:
        del info.type.tensor_type.shape.dim[rng.randrange(len(info.type.tensor_type.shape.dim))]
    say_anew(model)
    return True


def unknown(model: ModelProto, rng: random.Random) -> bool:
    """Make a dim of an input a symbol that ends in its size, shared with other dims or not."""
    dims = [d for d in _dims(model) if d.HasField("dim_value")]
    if not dims:
        return False
    shared = rng.random() < 0.5
    for k, d in enumerate(rng.sample(dims, rng.randint(1, len(dims)))):
        d.dim_param = f"n{d.dim_value}" if shared else f"{'abcdefghijklmnop'[k % 16]}{d.dim_value}"
    say_anew(model)
    return True


def rankless(model: ModelProto, rng: random.Random) -> bool:
    """Nothing is said of the shapes of what is made, in between and in the end."""
    say_anew(model)
    return True


def from_the_end(model: ModelProto, rng: random.Random) -> bool:
    """An axis is counted from the end, or from the front."""
    types = value_types(model) | {i.name: i.type for i in model.graph.input}
    found = []
    for node in model.graph.node:
        for a in node.attribute:
            if a.name == "axis" and node.input and node.input[0] in types:
                found.append((a, len(types[node.input[0]].tensor_type.shape.dim)))
    if not found:
        return False
    a, rank = rng.choice(found)
    a.i += -rank if a.i >= 0 else rank
    return True


def with_default(model: ModelProto, rng: random.Random) -> bool:
    """An attribute is written at its default."""
    found = []
    for node in model.graph.node:
        if node.domain or not onnx.defs.has(node.op_type, opset(model)):
            continue
        written = {a.name for a in node.attribute}
        for name, a in onnx.defs.get_schema(node.op_type, opset(model)).attributes.items():
            if name not in written and a.default_value.type != AttributeProto.UNDEFINED:
                found.append((node, a.default_value))
    if not found:
        return False
    node, default = rng.choice(found)
    node.attribute.append(default)
    return True


def of_opset(model: ModelProto, rng: random.Random) -> bool:
    """In the form of another opset."""
    wanted = rng.choice([7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 24])
    if wanted == opset(model):
        return False
    made = at_opset(model, wanted)
    if made is None:
        return False
    model.CopyFrom(made)
    return True


def of_type(model: ModelProto, rng: random.Random) -> bool:
    """Replace one element type by another."""
    return converted(model, *rng.sample(TYPES, 2))


def again(model: ModelProto, rng: random.Random) -> bool:
    """Duplicate all nodes, on the same inputs or on the results of the first ones."""
    graph = model.graph
    if len(graph.node) > 20 or model.functions:
        return False
    outside = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    second = GraphProto()
    second.CopyFrom(graph)
    renamed(second, lambda n: n if not n or n in outside else f"again_{n}")
    if rng.random() < 0.5:
        given = {t.name for t in graph.initializer}
        inputs = [i for i in graph.input if i.name not in given]
        if not inputs:
            return False
        old, new = rng.choice(inputs).name, rng.choice(list(graph.output)).name
        for node in second.node:
            node.input[:] = [new if i == old else i for i in node.input]
    graph.node.extend(second.node)
    graph.output.extend(second.output)
    say_anew(model)
    return True


def into_loop(model: ModelProto, rng: random.Random) -> bool:
    """Make all nodes the body of a Loop with collected results."""
    graph = model.graph
    if {i.name for i in graph.input} & {o.name for o in graph.output} or opset(model) < 11:
        return False
    own = rng.random() < 0.5  # the weights
    inputs = {i.name for i in graph.input}
    outside = inputs if own else inputs | {t.name for t in graph.initializer}
    body = GraphProto(name="body", node=graph.node)
    body.input.extend(
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
        ]
    )
    body.node.append(helper.make_node("Identity", ["goes_on"], ["still"]))
    body.output.append(helper.make_tensor_value_info("still", TensorProto.BOOL, []))
    body.output.extend(graph.output)
    if own:
        body.initializer.extend(t for t in graph.initializer if t.name not in inputs)
    renamed(body, lambda n: n if not n or n in outside else f"in_{n}")
    for o in list(body.output)[1:]:
        o.type.tensor_type.ClearField("shape")
    kept = [t for t in graph.initializer if not own or t.name in inputs]
    outputs = [o.name for o in graph.output]
    del graph.node[:]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    trips = add(model, np.array(rng.choice([1, 1, 2, 3]), np.int64), "trips")
    graph.node.append(helper.make_node("Loop", [trips, ""], outputs, body=body))
    say_anew(model)
    return True


def into_scan(model: ModelProto, rng: random.Random) -> bool:
    """All nodes are the body of a Scan, over one axis more of all inputs."""
    graph = model.graph
    given = {t.name for t in graph.initializer}
    if any(i.name in given for i in graph.input) or not graph.input or opset(model) < 11 or model.functions:
        return False
    if {i.name for i in graph.input} & {o.name for o in graph.output}:
        return False
    body = GraphProto()
    body.CopyFrom(graph)
    body.name = "step"
    renamed(body, lambda n: n and f"in_{n}")
    forget_shapes(body)
    inputs, outputs = [i.name for i in graph.input], [o.name for o in graph.output]
    del graph.node[:]
    del graph.initializer[:]
    size = rng.choice([1, 2, 3])
    for info in graph.input:
        dims = [copy.deepcopy(d) for d in info.type.tensor_type.shape.dim]
        del info.type.tensor_type.shape.dim[:]
        info.type.tensor_type.shape.dim.add().dim_value = size
        info.type.tensor_type.shape.dim.extend(dims)
    graph.node.append(helper.make_node("Scan", inputs, outputs, num_scan_inputs=len(inputs), body=body))
    say_anew(model)
    return True


CHANGES: Final[tuple[Change, ...]] = (
    *(resized, resized_input, deepened, flattened, unknown, rankless, from_the_end, with_default, of_opset, of_type),
    *(again, into_loop, into_scan),
)
