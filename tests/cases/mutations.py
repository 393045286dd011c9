"""Small changes to a model, of the kind that a rule's guards are there for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, helper, numpy_helper

from onnxopt.proto.inference import infer_shapes, inferable

Pick = Callable[[Sequence[Any]], Any]
Mutation = Callable[[ModelProto, Pick], bool]  # False where there is nothing to change

FLOATS: Final = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
COMMUTATIVE: Final = ("Add", "Mul", "And", "Or", "Max", "Min", "Sum", "Equal")
NUMBERS: Final = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0)
FAR: Final = (1 << 63) - 2  # what one more is still an integer of 64 bits

# Attributes that the standard gives no meaning but for 0 and 1.
SWITCHES: Final = (
    *("allowzero", "ceil_mode", "count_include_pad", "exclusive", "is_test", "keepdims", "noop_with_empty_axes"),
    *("reverse", "saturate", "spatial", "training_mode", "transA", "transB"),
)


def value_types(model: ModelProto) -> dict[str, TypeProto]:
    """Of what the nodes of the main graph make; none for what is no model any more."""
    try:
        graph = infer_shapes(inferable(model), values=True).graph  # some of these onnx alone dies of
    except (ValueError, onnx.shape_inference.InferenceError):
        return {}
    made = {o for n in graph.node for o in n.output}
    return {v.name: v.type for v in (*graph.value_info, *graph.output) if v.name in made and v.type.WhichOneof("value")}


def readers(graph: GraphProto) -> Iterator[tuple[NodeProto, int]]:
    """(node, index) of each input of a node of the main graph that is given."""
    return ((n, i) for n in graph.node for i, name in enumerate(n.input) if name)


def fresh(graph: GraphProto) -> str:
    return f"new{len(graph.node)}_{len(graph.initializer)}_{len(graph.output)}"


def before(graph: GraphProto, node: NodeProto, new: NodeProto) -> None:
    graph.node.insert(next(i for i, n in enumerate(graph.node) if n is node or n == node), new)


def expose(model: ModelProto, pick: Pick) -> bool:
    """A value between becomes an output."""
    types = value_types(model)
    outputs = {o.name for o in model.graph.output}
    inner = sorted(set(types) - outputs)
    if not inner:
        return False
    name = pick(inner)
    model.graph.output.append(onnx.ValueInfoProto(name=name, type=types[name]))
    return True


def unfreeze(model: ModelProto, pick: Pick) -> bool:
    """A constant becomes an input."""
    weights = [t for t in model.graph.initializer if t.data_type in FLOATS]
    if not weights:
        return False
    t = pick(weights)
    model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    model.graph.initializer.remove(t)
    return True


def revalue(model: ModelProto, pick: Pick) -> bool:
    """A constant of floats gets another number in it, or is one number throughout."""
    weights = [t for t in model.graph.initializer if t.data_type in FLOATS and all(t.dims)]
    if not weights:
        return False
    t = pick(weights)
    array = numpy_helper.to_array(t).copy()
    array.reshape(-1)[: pick([1, array.size])] = pick(NUMBERS)
    t.CopyFrom(numpy_helper.from_array(array, t.name))
    return True


def widen(model: ModelProto, pick: Pick) -> bool:
    """A constant gets an axis of one in front."""
    weights = [t for t in model.graph.initializer if t.data_type in FLOATS]
    if not weights:
        return False
    pick(weights).dims.insert(0, 1)
    return True


def interpose(model: ModelProto, pick: Pick) -> bool:
    """An operator comes between a value and one that reads it."""
    graph = model.graph
    floats = {n for n, t in value_types(model).items() if t.tensor_type.elem_type in FLOATS}
    found = [(n, i) for n, i in readers(graph) if n.input[i] in floats]
    if not found:
        return False
    node, i = pick(found)
    new = helper.make_node(pick(["Identity", "Neg", "Relu", "Abs", "Sigmoid"]), [node.input[i]], [fresh(graph)])
    before(graph, node, new)
    node.input[i] = new.output[0]
    return True


def share(model: ModelProto, pick: Pick) -> bool:
    """Something else reads a value too."""
    types = value_types(model)
    floats = sorted(n for n, t in types.items() if t.tensor_type.elem_type in FLOATS)
    if not floats:
        return False
    name = pick(floats)
    new = helper.make_node(pick(["Neg", "Relu", "Identity"]), [name], [fresh(model.graph)])
    model.graph.node.append(new)
    model.graph.output.append(onnx.ValueInfoProto(name=new.output[0], type=types[name]))
    return True


def repeat(model: ModelProto, pick: Pick) -> bool:
    """A node is there twice, and one reader reads the second."""
    graph = model.graph
    found = [(n, i) for n, i in readers(graph) if any(n.input[i] in m.output for m in graph.node)]
    if not found:
        return False
    node, i = pick(found)
    source = next(m for m in graph.node if node.input[i] in m.output)
    new = NodeProto()
    new.CopyFrom(source)
    new.name = ""
    name = fresh(graph)
    new.output[:] = [name if o == node.input[i] else f"{name}_{k}" if o else "" for k, o in enumerate(source.output)]
    before(graph, node, new)
    node.input[i] = name
    return True


def swap(model: ModelProto, pick: Pick) -> bool:
    """The operands of a commutative operator change places."""
    found = [n for n in model.graph.node if n.op_type in COMMUTATIVE and len(n.input) == 2]
    if not found:
        return False
    node = pick(found)
    node.input[:] = node.input[::-1]
    return True


def turn_around(model: ModelProto, pick: Pick) -> bool:
    """The operands of any operator of two change places."""
    found = [n for n in model.graph.node if len(n.input) == 2]
    if not found:
        return False
    node = pick(found)
    node.input[:] = node.input[::-1]
    return True


def omit(model: ModelProto, pick: Pick) -> bool:
    """An input of a node is not given."""
    found = [(n, i) for n, i in readers(model.graph) if i > 0]
    if not found:
        return False
    node, i = pick(found)
    node.input[i] = ""
    while node.input and not node.input[-1]:
        node.input.pop()
    return True


def unname_dim(model: ModelProto, pick: Pick) -> bool:
    """A dim of an input that was a number is a symbol, or the other way round. None stays: docs/rewrites.md says what
    takes nothing as it was written, and not as one operator."""
    dims = [
        d for i in model.graph.input for d in i.type.tensor_type.shape.dim if not d.HasField("dim_value") or d.dim_value
    ]
    if not dims:
        return False
    d = pick(dims)
    if d.HasField("dim_value"):
        d.dim_param = f"D{d.dim_value}"
    else:
        d.dim_value = 2
    return True


def retune(model: ModelProto, pick: Pick) -> bool:
    """An attribute has another value."""
    found = [a for n in model.graph.node for a in n.attribute if a.type in (1, 2, 6, 7)]
    if not found:
        return False
    a = pick(found)
    if a.type == AttributeProto.INT:
        a.i = pick([0, 1] if a.name in SWITCHES else [0, 1, -1, 2, min(a.i, FAR) + 1])
    elif a.type == AttributeProto.FLOAT:
        a.f = pick(NUMBERS)
    elif a.ints:
        k = pick(range(len(a.ints)))
        a.ints[k] = pick([0, 1, -1, 2, min(a.ints[k], FAR) + 1])
    return True


def reindex(model: ModelProto, pick: Pick) -> bool:
    """A constant of integers (axes, a shape, positions) has another number in it."""
    found = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT64 and all(t.dims)]
    if not found:
        return False
    t = pick(found)
    array = numpy_helper.to_array(t).copy()
    k = pick(range(array.size))
    flat = array.reshape(-1)
    flat[k] = pick([0, 1, -1, 2, min(int(flat[k]), 1 << 40) + 1])
    t.CopyFrom(numpy_helper.from_array(flat.reshape(array.shape), t.name))
    return True


def drop_attribute(model: ModelProto, pick: Pick) -> bool:
    """An attribute takes its default."""
    found = [n for n in model.graph.node if n.attribute]
    if not found:
        return False
    node = pick(found)
    del node.attribute[pick(range(len(node.attribute)))]
    return True


MUTATIONS: Final[tuple[Mutation, ...]] = (
    *(expose, unfreeze, revalue, widen, interpose, share, repeat, swap, turn_around, omit, unname_dim, retune, reindex),
    drop_attribute,
)
