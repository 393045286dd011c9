"""A fixed dim of the inputs becomes a symbol, in all operands that hold the number."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from onnx import ValueInfoProto

from onnxopt.analysis import types
from onnxopt.conversion.axis_rules import track
from onnxopt.conversion.axis_tracking import AxisTracker, Results, TrackedAxis
from onnxopt.errors import UsageError, nearest
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.dims import as_symbol, as_written
from onnxopt.graph.model import values_read
from onnxopt.graph.node import Node
from onnxopt.graph.structure import interface_of
from onnxopt.passes.basics.canonicalize import LiftConstants
from onnxopt.passes.basics.constant_folding import ConstantFolding
from onnxopt.passes.basics.dead_code import DeadCode
from onnxopt.pipeline import Sequential, execute
from onnxopt.proto.messages import tensor_type

ALL_INPUTS: Final = "*:0"  # the first axis of all inputs


def make_dynamic(model: Model, places: Mapping[str, str]) -> dict[str, int]:
    """Make dims symbols: `places` names the symbol of each `INPUT:AXIS`; `*:0` is the first axis of all inputs.

    Returns the number that each symbol replaces. Raises UsageError for places that do not exist or are dynamic, and
    with the node where the dim cannot follow.
    """
    # Constants that are computed would hide the numbers.
    execute(Sequential((LiftConstants(), ConstantFolding(), DeadCode())), model)
    sizes: dict[str, int] = {}
    for name in dict.fromkeys(places.values()):
        axes = _axes(model, name, [place for place, given in places.items() if given == name])
        sizes[name] = _convert(model, name, axes)
    return sizes


def _axes(model: Model, name: str, places: list[str]) -> dict[Value, int]:
    """Return the axis of each input that becomes the symbol. Raises UsageError."""
    inputs = {v.name: v for v in model.graph.inputs if v.name not in model.graph.initializers}
    if as_symbol(name) in chain.from_iterable(types.shape(v) or () for v in inputs.values()):
        raise UsageError(f"{model.name}: {name!r} is a dynamic dim already", f"--dim {name}=SIZE gives it a size")
    found: dict[Value, int] = {}
    for place in places:
        if place == ALL_INPUTS:
            found |= {v: 0 for v in inputs.values() if isinstance(next(iter(types.shape(v) or ()), None), int)}
            continue
        value, axis = _place(model, inputs, place)
        if found.setdefault(value, axis) != axis:
            raise UsageError(f"{model.name}: {name!r} is given to two axes of input {value.name!r}", "to one, at most")
    if not found:
        raise UsageError(f"{model.name}: no input has a fixed first axis", "its inputs are dynamic, or have no axes")
    _refuse_sizes(model, name, {v.name: (types.shape(v) or ())[axis] for v, axis in found.items()})
    return found


def _place(model: Model, inputs: Mapping[str, Value], place: str) -> tuple[Value, int]:
    """Return the input and the axis of `INPUT:AXIS`. Raises UsageError unless the dim is a number."""
    whose, _, number = place.rpartition(":")
    axis = int(number)
    if whose not in inputs:
        hint = nearest(whose, inputs, f"the inputs are {', '.join(inputs)}")
        raise UsageError(f"{model.name}: no input is called {whose!r}", hint)
    dims = types.shape(inputs[whose])
    if dims is None or not 0 <= axis < len(dims):
        count = "an unknown number of" if dims is None else str(len(dims))
        raise UsageError(f"{model.name}: input {whose!r} has no axis {axis}: it has {count} dims", "the first is 0")
    if not isinstance(dims[axis], int):
        raise UsageError(f"{model.name}: dim {axis} of input {whose!r} is dynamic already: {as_written(dims[axis])}")
    return inputs[whose], axis


def _refuse_sizes(model: Model, name: str, sizes: Mapping[str, Any]) -> None:
    """Raise UsageError for inputs of different sizes, and for the size 0."""
    if len({*sizes.values()}) > 1:
        told = ", ".join(f"{whose}: {size}" for whose, size in sizes.items())
        hint = f"--make-dynamic INPUT:0={name} for each input of the batch"
        raise UsageError(f"{model.name}: {name!r} would be of different sizes: {told}", hint)
    if 0 in sizes.values():
        raise UsageError(f"{model.name}: {name!r} would be a dim of no place", "a sample is one place, or more")


def _convert(model: Model, name: str, axes: Mapping[Value, int]) -> int:
    graph = model.graph
    whose, axis = next(iter(axes.items()))
    size = (types.shape(whose) or ())[axis]
    assert isinstance(size, int)
    types.refresh_allowed(model)
    c = AxisTracker(model, as_symbol(name), size, axes)
    _track_all(c, graph)
    _refuse_size_outputs(c, model, name)
    if not any(v in c.at for v in graph.outputs):
        raise UsageError(f"{model.name}: no output follows {name!r}", "none is made of these inputs, sample by sample")
    _declare(c, name)
    return size


def _refuse_size_outputs(c: AxisTracker, model: Model, name: str) -> None:
    """Raise UsageError for an output that holds the size, not an axis of the size."""
    sizes = [v.name for v in model.graph.outputs if c.has_symbol(v)]
    if not sizes:
        return
    others = [v.name for v in model.graph.outputs if v.name not in sizes]
    hint = f"--outputs {','.join(others)} leaves sizes out" if others else "the model has no other output"
    message = f"output `{sizes[0]}` holds a size that follows {name!r}, which no sample has"
    raise UsageError(f"{model.name}: {message}", hint)


def _track_all(c: AxisTracker, graph: Graph) -> None:
    """Carry the dim through the nodes of the main graph, or of a branch."""
    for node in list(graph):
        if c.computes_size(node):
            continue
        read = values_read(node) if node.bodies else node.operands
        if not any(v in c.at or c.has_symbol(v) for v in read):
            c.evaluate(node)
            continue
        outputs = list(node.outputs)
        found = _through_branches(c, node) if node.op == "If" else track(c, node)
        for value, tracked in zip(outputs, found):
            if value is not None and tracked is not None:
                c.dims(node, value)
                c.follow(value, tracked)


def _through_branches(c: AxisTracker, node: Node) -> Results:
    """Return the axis in each result of an If: both branches have to give the same."""
    condition = node.input(0)
    if condition in c.at or c.has_symbol(condition):
        c.refuse(node, f"the condition depends on {c.name!r}")
    branches = list(node.bodies.values())
    for body in branches:
        _track_all(c, body)
    found: list[TrackedAxis | None] = []
    for given in zip(*(body.outputs for body in branches)):
        tracked = {c.at.get(v) for v in given}
        if len(tracked) > 1 or any(map(c.has_symbol, given)):
            c.refuse(node, f"its branches do not give {c.name!r} along one axis")
        found.append(tracked.pop())
    return found


def _declare(c: AxisTracker, name: str) -> None:
    """Declare the symbol in inputs and outputs, and drop declarations of other values that follow."""
    model = c.model
    for value in c.at:
        value.shape = tuple(d if isinstance(d, int) else d.name for d in c.now.dims[value])
    ends = {v.name: tracked for v, tracked in c.at.items() if v.is_input or v.is_output}
    follows = {v.name for v in c.at}
    for proto in (scope.proto for scope in model.scopes() if not scope.is_function):
        for info in (*proto.input, *proto.output):
            if info.name in ends:
                _declare_dim(info, name, ends[info.name])
        kept = [info for info in proto.value_info if info.name not in follows]
        del proto.value_info[:]
        proto.value_info.extend(kept)
    model.version += 1
    model.analyses.clear()
    model.interface = interface_of(model.proto)


def _declare_dim(info: ValueInfoProto, name: str, tracked: TrackedAxis) -> None:
    """Declare the symbol at the axis; an unknown size for a multiple of the dim."""
    listed = tensor_type(info.type)[1]
    if listed is None or len(listed) <= tracked.axis:
        return
    dim = info.type.tensor_type.shape.dim[tracked.axis]
    dim.Clear()
    if tracked.outer == tracked.inner == 1:
        dim.dim_param = name
