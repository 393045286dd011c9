"""Extraction of the nodes between values of the main graph, or of a body and the graphs around the body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, TypeProto, ValueInfoProto

from onnxopt.analysis import types
from onnxopt.analysis.submodel import is_stored, reads
from onnxopt.errors import UsageError, few, nearest
from onnxopt.graph.dims import rename_dims
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.proto.messages import tensor_type, tensor_value_info

# -- bodies: their values by name, and their nodes in the main graph -------------------------------------------


def in_bodies(model: Model) -> dict[str, list[Value]]:
    """Return the values in bodies of the main graph, by name, and by scope path and name."""
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
    yield from (v for node in scope for v in node.results)


def only_candidate(model: Model, name: str, candidates: list[Value]) -> Value:
    """Return the only candidate. Raises UsageError if several bodies have a value of the name."""
    if len(candidates) == 1:
        return candidates[0]
    places = [f"`{v.graph.path} / {v.name}`" for v in candidates]
    hint = f"name one by its place: {few(places)}"
    if len({*places}) < len(places):
        hint = "`onnxopt optimize MODEL NAMED -O0 --name-nodes` names the nodes that hold them, to tell them apart"
    raise UsageError(f"{model.name}: {len(candidates)} bodies have a value called {name!r}", hint)


def innermost(model: Model, values: list[Value]) -> Graph:
    """Return the scope of a value from which all values are visible. Raises UsageError if there is none."""
    deepest = max((v.graph for v in values), key=lambda scope: len(_chain(scope)), default=model.graph)
    around = {model.graph, *_chain(deepest)}
    for v in values:
        if v.graph not in around:
            one = next(w for w in values if w.graph is deepest)
            message = f"`{v.name}` is in {v.graph.path}, `{one.name}` in {deepest.path}: no part has both"
            raise UsageError(f"{model.name}: {message}", "cut them one after the other")
    return deepest


def _chain(scope: Graph) -> list[Graph]:
    """Return a body and the enclosing bodies, outermost first."""
    found = []
    while scope.owner is not None and scope.owner.graph is not None:
        found.append(scope)
        scope = scope.owner.graph
    return found[::-1]


class InlinedBody:
    """The main graph with the nodes of a body, and of the enclosing bodies, in front of the nodes that own the bodies.

    `inputs`: the input of the main graph in place of each body input. `ends`: the outputs of the body. `owners`: the
    owners of the bodies, which run nothing now.
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
        """Return the value names, counted, without other bodies of the same owners, which belong to no part."""
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
        self._name_as_before(model, called, taken)
        known = (_info(self.inputs[v], declared.get(v)) for v in body.inputs)
        graph.proto.input.extend(info for info in known if info is not None)
        self._declare(graph.proto, proto, {name: v.name for v, name in called.items()})

    def _name_as_before(self, model: Model, called: Mapping[Value, str], taken: Counter[str]) -> None:
        """Name values as the file does, if no other value has the name."""
        for v, name in called.items():
            value, unique = self.inputs.get(v, v), taken[name] == 1
            if unique or value.is_input:
                value.rename(name if unique else model.names.fresh(name))

    def _declare(self, target: GraphProto, body: GraphProto, names: Mapping[str, str]) -> None:
        """Copy the declarations of the values of a body, without dim names, which hold in the body only."""
        for info in (*body.value_info, *body.output):
            if info.name in names and info.HasField("type"):
                said = target.value_info.add()
                said.CopyFrom(info)
                said.name = names[info.name]
                rename_dims(said.type, lambda name: "")
        for annotation in body.quantization_annotation:
            target.quantization_annotation.add().CopyFrom(annotation)

    def refuse_owners(self, model: Model, nodes: set[Node], ends: list[Value]) -> None:
        """Raise UsageError if a part needs an owner as a whole."""
        for owner in self.owners:
            if owner in nodes:
                needs = few([f"`{v.name}`" for v in ends])
                raise UsageError(
                    f"{model.name}: {needs} need{'s' * (len(ends) == 1)} all of {owner!r}, not a part of its body",
                    "name values inside the body only, or outside only",
                )


def _info(value: Value, declared: TypeProto | None) -> ValueInfoProto | None:
    """Return the type of a body input: known facts, else the declaration without dim names; None if unknown."""
    said = TypeProto()
    if declared is not None:
        said.CopyFrom(declared)
        rename_dims(said, lambda name: "")
    kind, dims = tensor_type(said)
    if value.dtype or kind:
        known = value.shape if value.shape is not None else dims
        return tensor_value_info(value.name, value.dtype or kind, known)
    return ValueInfoProto(name=value.name, type=said) if said.WhichOneof("value") else None


# -- nodes between values --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """The nodes that compute `outputs` from `inputs`.

    `unneeded`: named inputs not needed by any output; `left_out`: unnamed model outputs not computable from the inputs.
    `scope`: the place among the model's scopes of the body with these values, whose nodes are in the main graph now.
    """

    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]
    unneeded: list[str]
    left_out: list[str]
    scope: int


def cut(model: Model, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Cut:
    """Return the nodes between values of the main graph, or of a body and the enclosing scopes.

    Without `inputs` the cut starts at the inputs of model and body, as far as needed; without `outputs` it ends at the
    outputs of the model, or of the body, computable from the inputs. The nodes of such a body are in the main graph
    afterwards. Raises UsageError for unknown names, and for outputs that need further inputs.
    """
    named, ends, scope = _located(model, inputs, outputs)
    place = [*model.scopes()].index(scope)
    inlined = InlinedBody(model, scope)
    named, ends = ([inlined.inputs.get(v, v) for v in some] for some in (named, ends))
    begins = named or [v for v in model.graph.inputs if not v.constant]
    given = set(begins)
    _refuse_inputs(model, ends, given)
    found = _computable(model, ends, inlined, given)
    nodes, seen = _behind(found, given)
    inlined.refuse_owners(model, nodes, found)
    return Cut(
        nodes=[node for node in model.graph if node in nodes],
        inputs=[v for v in begins if v in seen],
        outputs=found,
        unneeded=[v.name for v in _without(named, seen)],
        left_out=[] if ends else [v.name for v in _without(inlined.ends, found)],
        scope=place,
    )


def _located(model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[list[Value], list[Value], Graph]:
    """Return (values named as inputs, values named as outputs, innermost scope). Raises UsageError without names."""
    if not inputs and not outputs:
        raise UsageError("neither inputs nor outputs are named", "name the values to cut at: one of both is enough")
    values = _values(model)
    named, ends = _find(model, values, inputs), _find(model, values, outputs)
    return named, ends, innermost(model, [*named, *ends])


def _without(values: Iterable[Value], known: Collection[Value]) -> list[Value]:
    return [v for v in values if v not in known]


def _computable(model: Model, ends: Sequence[Value], inlined: InlinedBody, given: Collection[Value]) -> list[Value]:
    """Return `ends`, or by default the outputs of the scope that `given` suffices for. Raises UsageError for a lack."""
    known, wanted = _computed(model, given), ends or _without(inlined.ends, given)
    found = [v for v in wanted if v in known or is_stored(v)]
    if not found or (ends and len(found) < len(ends)):
        raise _missing_inputs(model, _without(wanted, found), given, "input" if inlined.owners else "graph input")
    return found


def _refuse_inputs(model: Model, ends: Iterable[Value], given: Collection[Value]) -> None:
    """Raise UsageError for outputs that no node computes."""
    for v in ends:
        if v in given or (v.is_input and not is_stored(v)):
            raise UsageError(f"{model.name}: `{v.name}` is an input, which nothing computes", "name a value behind it")


def inlined_again(model: Model, found: Cut) -> Model:
    """Return another copy of the model that was cut, with the nodes of the same body in the main graph."""
    InlinedBody(model, [*model.scopes()][found.scope])
    return model


def _values(model: Model) -> dict[str, Value]:
    graph = model.graph
    values = {v.name: v for v in (*graph.inputs, *graph.initializers.values(), *graph.outputs)}
    for node in graph:
        values |= {v.name: v for v in (*reads(node), *node.outputs) if v is not None}
    return values


def _find(model: Model, values: dict[str, Value], names: Iterable[str]) -> list[Value]:
    """Return the values of these names. Raises UsageError for an unknown or ambiguous name."""
    found: dict[Value, None] = {}
    for name in [names] if isinstance(names, str) else names:
        inner = {} if name in values else in_bodies(model)
        if name in values:
            found[values[name]] = None
        elif name in inner:
            found[only_candidate(model, name, inner[name])] = None
        else:
            where = "the main graph or a body" if inner else "the main graph"
            raise UsageError(
                f"{model.name}: no value of {where} is called {name!r}", _near(model, [*values, *inner], name)
            )
    return list(found)


def _near(model: Model, values: Sequence[str], name: str) -> str:
    """Return a hint for a name without a value: a node, a value elsewhere, a name with a comma, or the nearest name."""
    elsewhere = next(filter(None, (_in_scope(scope, name) for scope in model.scopes())), "")
    if elsewhere:
        return elsewhere
    cut_up = [known for known in values if "," in known and name.strip() in map(str.strip, known.split(","))]
    if cut_up:
        return f"it has `{cut_up[0]}`: on a command line a comma in a name is written `\\,`"
    begins, ends = ([v.name for v in values] for values in (model.graph.inputs, model.graph.outputs))
    return nearest(name, values, f"it has the inputs {few(begins)}, the outputs {few(ends)}")


def _in_scope(scope: Graph, name: str) -> str:
    for node in scope:
        results = [v.name for v in node.results]
        if not scope.root.is_function and node.name == name:
            return f"it is a node, which computes {' and '.join(f'`{n}`' for n in results)}"
        if name in results:
            flat = "`onnxopt optimize MODEL FLAT -O0 --inline-functions`"
            return f"it is in {scope.path}, where the model cannot be cut: {flat} puts it in the main graph"
    return ""


def _computed(model: Model, given: Collection[Value]) -> set[Value]:
    """Return the values computable from `given` and stored constants."""
    known = set(given)
    for node in model.graph:
        if all(v in known or is_stored(v) for v in reads(node)):
            known.update(node.results)
    return known


def _behind(ends: Iterable[Value], given: Collection[Value]) -> tuple[set[Node], set[Value]]:
    """Return (nodes needed by `ends`, values read), stopping at `given`."""
    nodes: set[Node] = set()
    seen: set[Value] = set()
    waiting = list(ends)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer
        if value not in given and node is not None and node not in nodes:
            nodes.add(node)
            waiting.extend(reads(node))
    return nodes, seen


def _missing_inputs(model: Model, ends: list[Value], given: Collection[Value], kind: str) -> UsageError:
    seen = _behind(ends, given)[1]
    missing = [v.name for v in model.graph.inputs if v in seen and v not in given and not is_stored(v)]
    if not missing:
        return UsageError(f"{model.name}: no output lies behind these inputs", "name the outputs, or other inputs")
    who = f"{few([f'`{v.name}`' for v in ends])} also need{'s' * (len(ends) == 1)}"
    what = f"the {kind}{'s' * (len(missing) > 1)} {', '.join(f'`{n}`' for n in missing)}"
    return UsageError(f"{model.name}: {who} {what}", "add them to the inputs, or values computed from them")
