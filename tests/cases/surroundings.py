"""The same nodes elsewhere: in a branch, in a function, at another opset, of another type, of sizes nobody says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.cases.mutations import Mutation, Pick, value_types

TYPES: Final = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8)
OPSETS: Final = tuple(range(7, 25))


def forget_shapes(graph: GraphProto) -> None:
    """What a graph says of its values may be wrong where it is now."""
    del graph.value_info[:]
    for o in graph.output:
        if o.type.HasField("tensor_type"):
            o.type.tensor_type.ClearField("shape")


def say_anew(model: ModelProto) -> None:
    """The main graph says of its outputs how many axes inference finds, as a model has to, and nothing else."""
    forget_shapes(model.graph)
    types = value_types(model)
    for o in model.graph.output:
        if o.name in types and types[o.name].tensor_type.HasField("shape"):
            o.type.tensor_type.shape.SetInParent()
            for _ in types[o.name].tensor_type.shape.dim:
                o.type.tensor_type.shape.dim.add()


def renamed(graph: GraphProto, name: Callable[[str], str]) -> None:
    for scope in scopes(graph):
        for node in scope.node:
            node.input[:] = [name(i) for i in node.input]
            node.output[:] = [name(o) for o in node.output]
            node.name = node.name and name(node.name)
        for info in (*scope.input, *scope.output, *scope.initializer):
            info.name = name(info.name)


def scopes(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for a in node.attribute:
            if a.type == AttributeProto.GRAPH:
                yield from scopes(a.g)


def into_branches(model: ModelProto, pick: Pick) -> bool:
    """All nodes are in both branches of an If, with the weights or without."""
    graph = model.graph
    inputs = {i.name for i in graph.input}
    if inputs & {o.name for o in graph.output}:
        return False
    own = pick([True, False])  # the weights
    outside = inputs if own else inputs | {t.name for t in graph.initializer}
    call = helper.make_node("If", ["condition_"], [o.name for o in graph.output])
    for branch in ("then", "else"):
        body = GraphProto(name=branch, node=graph.node, output=graph.output)
        if own:
            body.initializer.extend(t for t in graph.initializer if t.name not in inputs)
        renamed(body, lambda n, b=branch: n if not n or n in outside else f"{b}_{n}")  # type: ignore[misc]
        forget_shapes(body)
        call.attribute.append(helper.make_attribute(f"{branch}_branch", body))
    del graph.node[:]
    if own:
        kept = [t for t in graph.initializer if t.name in inputs]
        del graph.initializer[:]
        graph.initializer.extend(kept)
    graph.node.append(call)
    graph.input.append(helper.make_tensor_value_info("condition_", TensorProto.BOOL, []))
    say_anew(model)
    return True


def into_function(model: ModelProto, pick: Pick) -> bool:
    """All nodes are in a function, which is called once or twice, with the weights or without."""
    graph = model.graph
    inputs = [i.name for i in graph.input]
    weights = [t.name for t in graph.initializer]
    outputs = [o.name for o in graph.output]
    if model.functions or len(model.opset_import) > 1 or {*inputs} & {*weights, *outputs}:
        return False
    nodes: list[NodeProto] = list(graph.node)
    if pick([True, False]):
        nodes = [*(helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer), *nodes]
        weights = []
        del graph.initializer[:]
    opsets = list(model.opset_import)
    model.functions.append(helper.make_function("local", "F", [*inputs, *weights], outputs, nodes, opsets))
    del graph.node[:]
    for ending in pick([[""], ["", "_again"]]):
        called = [o + ending for o in outputs]
        graph.node.append(helper.make_node("F", [*inputs, *weights], called, domain="local"))
        if ending:
            graph.output.extend(
                onnx.ValueInfoProto(name=name, type=o.type) for name, o in zip(called, list(graph.output))
            )
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.ir_version = max(model.ir_version, 8)
    say_anew(model)
    return True


def at_another_opset(model: ModelProto, pick: Pick) -> bool:
    """The model says another opset, and its functions do not."""
    model.opset_import[0].version = pick(OPSETS)
    return True


def of_another_type(model: ModelProto, pick: Pick) -> bool:
    """What was of one type is of another."""
    return converted(model, pick(TYPES), pick(TYPES))


def converted(model: ModelProto, before: int, after: int) -> bool:
    """Inputs, outputs, weights and Casts of the one type are of the other; False where there are none."""
    found = False
    for scope in scopes(model.graph):
        for info in (*scope.input, *scope.output, *scope.value_info):
            if info.type.tensor_type.elem_type == before:
                info.type.tensor_type.elem_type = after
                found = True
        tensors = [*scope.initializer, *(a.t for n in scope.node for a in n.attribute if a.type == a.TENSOR)]
        for tensor in tensors:
            if tensor.data_type == before:
                with np.errstate(all="ignore"):
                    array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(after))
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        for node in scope.node:
            for a in node.attribute:
                if node.op_type == "Cast" and a.name == "to" and a.i == before:
                    a.i = after
    return found and before != after


def of_any_size(model: ModelProto, pick: Pick) -> bool:
    """Inputs have symbols for numbers, one for each dim or for each number; nothing else says a shape."""
    shared = pick([True, False])
    numbers = [d for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_value]
    for k, d in enumerate(numbers):
        d.dim_param = f"D{d.dim_value}" if shared else f"D{d.dim_value}_{k}"
    say_anew(model)
    return bool(numbers)


def read_elsewhere(model: ModelProto, pick: Pick) -> bool:
    """A node reads another value that is there by then."""
    known = [*(i.name for i in model.graph.input), *(t.name for t in model.graph.initializer)]
    found = []
    for node in model.graph.node:
        found += [(node, i, len(known)) for i, name in enumerate(node.input) if name]
        known += [o for o in node.output if o]
    if not found:
        return False
    node, i, there = pick(found)
    node.input[i] = pick(known[:there])
    return True


SURROUNDINGS: Final[tuple[Mutation, ...]] = (
    *(into_branches, into_function, at_another_opset, of_another_type, of_any_size, read_elsewhere),
)
