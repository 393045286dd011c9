"""A node of a result that can be broken, known facts around it, and the edit that breaks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

# Where a place is: made by a rewrite; beside what one made, read by it or reading it; where none came near, which is
# where quantization and most decisions are.
WHERE: Final = ("made", "beside", "elsewhere")


@dataclass
class Edit:
    """A replacement of a node: nodes with their constants, and a description.

    `beyond`: the size, or the number of trips, above which the edit shows.
    """

    nodes: list[NodeProto]
    what: str
    constants: list[TensorProto] = field(default_factory=list)
    beyond: int = 0


@dataclass(frozen=True)
class Known:
    """Values of a model by name: their makers, constants, and types and shapes in a run."""

    makers: Mapping[str, NodeProto]
    constants: Mapping[str, TensorProto]
    shapes: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


@dataclass
class Place:
    """A node, the `index`-th of the `scope`-th graph.

    `around`: nodes whose bodies contain it, outermost first; in a function, its callers. `before`: values of earlier
    nodes of its graph.
    """

    node: NodeProto
    scope: int
    index: int
    around: tuple[NodeProto, ...]
    before: Sequence[str]
    known: Known
    original: Known
    where: str

    @property
    def op(self) -> str:
        return str(self.node.op_type)

    @property
    def outputs(self) -> set[str]:
        """Returns the names that identify the place in a verdict: outputs of the node, or of the nodes around it."""
        return {o for n in (self.node, *self.around) for o in n.output if o}

    def input(self, i: int) -> str:
        return str(self.node.input[i]) if i < len(self.node.input) else ""

    def array(self, i: int) -> Any:
        """Returns the constant i-th input; None if it is not constant."""
        tensor = self.known.constants.get(self.input(i))
        return None if tensor is None else numpy_helper.to_array(tensor)

    def floats(self, i: int) -> Any:
        """Returns the same for non-empty arrays of numpy's floating types."""
        tensor = self.known.constants.get(self.input(i))
        if tensor is None or tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE):
            return None
        return numpy_helper.to_array(tensor) if all(tensor.dims) else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        found = self.known.shapes.get(name)
        return found[1] if found else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """Returns the value of an attribute, or the default given by the caller of a function."""
        found = (a for a in self.node.attribute if a.name == name and not a.ref_attr_name)
        return next((helper.get_attribute_value(a) for a in found), default)

    # -- edits ---------------------------------------------------------------------------------------------

    def copy(self) -> NodeProto:
        node = NodeProto()
        node.CopyFrom(self.node)
        return node

    def with_constants(self, arrays: Mapping[int, Any], what: str) -> Edit | None:
        """Returns the edit with other constants for some inputs, in their types; None without a change."""
        node, constants = self.copy(), []
        for i, array in arrays.items():
            old = self.array(i)
            new = np.asarray(array)
            if old is not None:
                new = new.astype(old.dtype)
                if new.shape == old.shape and np.array_equal(new, old):
                    continue
            constants.append(numpy_helper.from_array(np.ascontiguousarray(new).reshape(new.shape), f"broken_{i}"))
            node.input.extend([""] * (i + 1 - len(node.input)))
            node.input[i] = constants[-1].name
        return Edit([node], what, constants) if constants else None

    def with_attributes(self, what: str, **values: Any) -> Edit | None:
        node, had = self.copy(), {name: self.attribute(name) for name in values}
        if had == values:
            return None
        kept = [a for a in node.attribute if a.name not in values]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.extend(helper.make_attribute(name, v) for name, v in values.items())
        return Edit([node], what)

    def with_inputs(self, names: Sequence[str], what: str) -> Edit | None:
        if list(names) == list(self.node.input):
            return None
        node = self.copy()
        node.input[:] = names
        return Edit([node], what)

    def with_op(self, op: str) -> Edit:
        node = self.copy()
        node.op_type = op
        return Edit([node], f"{self.op} became {op}")

    def passed_on(self, i: int, what: str) -> Edit:
        """The i-th input is the output."""
        return Edit([helper.make_node("Identity", [self.input(i)], [self.node.output[0]], self.node.name)], what)


Body = GraphProto | FunctionProto


def scopes(body: Body, around: tuple[NodeProto, ...] = ()) -> Iterator[tuple[Body, tuple[NodeProto, ...]]]:
    """Yields the graph and all inner bodies, always in the same order, each with the nodes around it."""
    yield body, around
    for node in body.node:
        for a in node.attribute:
            for inner in [a.g] if a.type == AttributeProto.GRAPH else a.graphs:
                yield from scopes(inner, (*around, node))


def _functions(model: ModelProto) -> Iterator[tuple[FunctionProto, tuple[NodeProto, ...]]]:
    """Yields the functions called by the graph or its bodies, each with its calls."""
    calls: dict[tuple[str, str], list[NodeProto]] = {}
    for graph, around in scopes(model.graph):
        for node in graph.node:
            calls.setdefault((node.domain, node.op_type), []).append(around[0] if around else node)
    for function in model.functions:
        if found := calls.get((function.domain, function.name)):
            yield function, tuple(found)


def _every(model: ModelProto) -> Iterator[tuple[Body, tuple[NodeProto, ...]]]:
    yield from scopes(model.graph)
    for function, calls in _functions(model):
        yield from scopes(function, calls)


def know(model: ModelProto, shapes: Mapping[str, tuple[str, tuple[int, ...]]] | None = None) -> Known:
    """Returns facts on the main graph and its bodies. Overridable initializers are not constant."""
    return _know(model.graph, {i.name for i in model.graph.input}, shapes or {})


def _know(body: Body, given: set[str], shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> Known:
    makers: dict[str, NodeProto] = {}
    constants: dict[str, TensorProto] = {}
    for graph, _ in scopes(body):
        if isinstance(graph, GraphProto):
            constants.update((t.name, t) for t in graph.initializer if t.name not in given)
        for node in graph.node:
            makers.update((o, node) for o in node.output if o)
            if node.op_type == "Constant":
                constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return Known(makers, constants, shapes)


def places(model: ModelProto, known: Known, original: Known, made: set[str]) -> list[Place]:
    """Every node but constants; `made` are the values whose producers rewrites made."""
    touched = made | {name for name in known.constants if name not in original.constants}
    touched |= {i for o in made if o in known.makers for i in known.makers[o].input if i}
    found = []
    here = known
    for s, (graph, around) in enumerate(_every(model)):
        if isinstance(graph, FunctionProto):  # its bodies follow it
            here = _know(graph, set(), {})
        before: list[str] = []
        for i, node in enumerate(graph.node):
            if node.op_type != "Constant":
                beside = here is known and not touched.isdisjoint((*node.input, *node.output))
                new = here is known and not made.isdisjoint(node.output)
                where = WHERE[0 if new else 1 if beside else 2]
                found.append(Place(node, s, i, around, tuple(before), here, original, where))
            before += [o for o in node.output if o]
    return found


def broken(model: ModelProto, place: Place, edit: Edit) -> ModelProto:
    """A copy of the model with the edit at its place."""
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = next(g for s, (g, _) in enumerate(_every(copy)) if s == place.scope)
    del graph.node[place.index]
    for node in reversed(edit.nodes):
        graph.node.insert(place.index, node)
    if isinstance(graph, GraphProto):
        graph.initializer.extend(edit.constants)
    else:
        for t in edit.constants:
            graph.node.insert(0, helper.make_node("Constant", [], [t.name], value=t))
    return copy
