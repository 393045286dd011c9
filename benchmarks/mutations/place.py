"""A node of a result that can be broken, what is known around it, and the edit that breaks it."""

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
    """What takes the place of a node: other nodes, with constants of their own; and what that is, in words. `beyond`:
    it shows only where a size, or the number of trips, exceeds this."""

    nodes: list[NodeProto]
    what: str
    constants: list[TensorProto] = field(default_factory=list)
    beyond: int = 0


@dataclass(frozen=True)
class Known:
    """Of the values of a model by name: what makes them, which are constant, and type and shape in a run."""

    makers: Mapping[str, NodeProto]
    constants: Mapping[str, TensorProto]
    shapes: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


@dataclass
class Place:
    """A node: the `index`-th of the `scope`-th graph. `around`: the nodes whose bodies it is in, outermost first; in a
    function, those that call it.

    `before`: values that nodes before it in its graph make.
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
        """By which the place is recognised in a verdict: what it makes, or what the node makes that it is inside of."""
        return {o for n in (self.node, *self.around) for o in n.output if o}

    def input(self, i: int) -> str:
        return str(self.node.input[i]) if i < len(self.node.input) else ""

    def array(self, i: int) -> Any:
        """The constant that is the i-th input; None if it is none."""
        tensor = self.known.constants.get(self.input(i))
        return None if tensor is None else numpy_helper.to_array(tensor)

    def floats(self, i: int) -> Any:
        """The same if it is of a floating type that numpy has, and not empty."""
        tensor = self.known.constants.get(self.input(i))
        if tensor is None or tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE):
            return None
        return numpy_helper.to_array(tensor) if all(tensor.dims) else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        found = self.known.shapes.get(name)
        return found[1] if found else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """Its value; the default, too, where the caller of a function gives it."""
        found = (a for a in self.node.attribute if a.name == name and not a.ref_attr_name)
        return next((helper.get_attribute_value(a) for a in found), default)

    # -- edits ---------------------------------------------------------------------------------------------

    def copy(self) -> NodeProto:
        node = NodeProto()
        node.CopyFrom(self.node)
        return node

    def with_constants(self, arrays: Mapping[int, Any], what: str) -> Edit | None:
        """Other constants for these inputs, in the types they have; None where that changes nothing."""
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
    """The graph and all bodies inside, always in the same order, each with the nodes that it is inside of."""
    yield body, around
    for node in body.node:
        for a in node.attribute:
            for inner in [a.g] if a.type == AttributeProto.GRAPH else a.graphs:
                yield from scopes(inner, (*around, node))


def _functions(model: ModelProto) -> Iterator[tuple[FunctionProto, tuple[NodeProto, ...]]]:
    """Those that the graph, or a body in it, calls, each with its calls."""
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
    """Of the main graph and its bodies. What a caller may override is no constant."""
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
