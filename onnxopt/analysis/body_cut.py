"""Bodies that a part of a model is cut from: their values by name, and their nodes in the main graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from onnx import GraphProto, TypeProto, ValueInfoProto

from onnxopt.analysis import types
from onnxopt.errors import UsageError, few
from onnxopt.graph.dims import rename_dims
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.proto.messages import tensor_type, tensor_value_info


def in_bodies(model: Model) -> dict[str, list[Value]]:
    """Values of bodies of the main graph by name, and by the path of their scope and the name."""
    found: dict[str, list[Value]] = {}
    for scope in model.scopes():
        if scope.owner is None or scope.root.is_function:
            continue
        for v in _own_values(scope):
            for name in (v.name, f"{scope.path} / {v.name}", f"{scope.path.removeprefix('main / ')} / {v.name}"):
                found.setdefault(name, []).append(v)
    return found


def _own_values(scope: Graph) -> Iterator[Value]:
    yield from (*scope.inputs, *(v for v in scope.initializers.values() if not v.is_input))
    yield from (v for node in scope for v in node.outputs if v is not None)


def the_one(model: Model, name: str, candidates: list[Value]) -> Value:
    """The only value of that name. Raises UsageError where several bodies have one."""
    if len(candidates) == 1:
        return candidates[0]
    places = [f"`{v.graph.path} / {v.name}`" for v in candidates]
    hint = f"name one by its place: {few(places)}"
    if len({*places}) < len(places):
        hint = "`onnxopt optimize MODEL NAMED -O0 --name-nodes` names the nodes that hold them, to tell them apart"
    raise UsageError(f"{model.name}: {len(candidates)} bodies have a value called {name!r}", hint)


def innermost(model: Model, values: list[Value]) -> Graph:
    """The scope of these values in which those around it can be seen. Raises UsageError where there is none."""
    deepest = max((v.graph for v in values), key=lambda scope: len(_chain(scope)), default=model.graph)
    around = {model.graph, *_chain(deepest)}
    for v in values:
        if v.graph not in around:
            one = next(w for w in values if w.graph is deepest)
            message = f"`{v.name}` is in {v.graph.path}, `{one.name}` in {deepest.path}: no part has both"
            raise UsageError(f"{model.name}: {message}", "cut them one after the other")
    return deepest


def _chain(scope: Graph) -> list[Graph]:
    """A body and the bodies around it, the outermost first."""
    found = []
    while scope.owner is not None and scope.owner.graph is not None:
        found.append(scope)
        scope = scope.owner.graph
    return found[::-1]


class Opened:
    """The main graph with the nodes of a body, and of those around it, in front of the nodes that hold them.

    `inputs`: what takes the place of each input of a body, an input of the main graph. `ends`: what the body gives out.
    `owners`: the nodes that held them, which run nothing now.
    """

    def __init__(self, model: Model, scope: Graph) -> None:
        chain = _chain(scope)
        self.inputs: dict[Value, Value] = {}
        self.ends: list[Value] = list(dict.fromkeys(scope.outputs))
        self.owners = [body.owner for body in chain if body.owner is not None]
        if not chain:
            return
        types.update(model)
        taken = self._names_elsewhere(model, chain)
        for body in chain:
            self._open(model, body, taken)
        self.ends = list(dict.fromkeys(self.inputs.get(v, v) for v in self.ends))

    def _names_elsewhere(self, model: Model, chain: list[Graph]) -> Counter[str]:
        """The names of all values but those of other bodies of the same nodes, which are in no part."""
        beside = {body for owner in self.owners for body in owner.bodies.values() if body not in chain}
        return Counter(
            v.name
            for scope in model.scopes()
            if not scope.root.is_function and beside.isdisjoint(_chain(scope))
            for v in _own_values(scope)
        )

    def _open(self, model: Model, body: Graph, taken: Counter[str]) -> None:
        graph, proto = model.graph, body.proto
        called = {v: v.name for v in _own_values(body)}
        declared = dict(zip(body.inputs, (i.type for i in proto.input)))  # which may be called otherwise here
        for v in body.inputs:
            given = self.inputs[v] = Value(v.name, graph)
            given.is_input = True
            graph.inputs.append(given)
        graph.inline(body, [self.inputs[v] for v in body.inputs])
        for v, name in called.items():
            value = self.inputs.get(v, v)
            if taken[name] == 1:  # as the file calls it
                value.rename(name)
            elif value.is_input:
                value.rename(model.names.fresh(name))
        known = (_info(self.inputs[v], declared.get(v)) for v in body.inputs)
        graph.proto.input.extend(info for info in known if info is not None)
        self._declare(graph.proto, proto, {name: v.name for v, name in called.items()})

    def _declare(self, target: GraphProto, body: GraphProto, names: Mapping[str, str]) -> None:
        """What the file says of values of the body; the names of dims hold in a body alone."""
        for info in (*body.value_info, *body.output):
            if info.name in names and info.HasField("type"):
                said = target.value_info.add()
                said.CopyFrom(info)
                said.name = names[info.name]
                rename_dims(said.type, lambda name: "")
        for annotation in body.quantization_annotation:
            target.quantization_annotation.add().CopyFrom(annotation)

    def refuse_owners(self, model: Model, nodes: set[Node], ends: list[Value]) -> None:
        """Raise UsageError where a part needs a node as a whole that holds one of its values."""
        for owner in self.owners:
            if owner in nodes:
                needs = few([f"`{v.name}`" for v in ends])
                raise UsageError(
                    f"{model.name}: {needs} need{'s' * (len(ends) == 1)} all of {owner!r}, not a part of its body",
                    "name values inside the body only, or outside only",
                )


def _info(value: Value, declared: TypeProto | None) -> ValueInfoProto | None:
    """The type of what a body is given: what is known, else what the body says, without its names of dims; None where
    nobody says one."""
    said = TypeProto()
    if declared is not None:
        said.CopyFrom(declared)
        rename_dims(said, lambda name: "")
    kind, dims = tensor_type(said)
    if value.dtype or kind:
        known = value.shape if value.shape is not None else dims
        return tensor_value_info(value.name, value.dtype or kind, known)
    return ValueInfoProto(name=value.name, type=said) if said.WhichOneof("value") else None
