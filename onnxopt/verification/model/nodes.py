"""Nodes of a model: topological order, values read, Constant nodes, calls of functions, and inferred types."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Sequence
from typing import Any, Final

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxopt.proto.element_types import FLOATS, INTEGERS
from onnxopt.proto.messages import attribute_value, tensor_to_array
from onnxopt.verification.model.operators import WITH_BODIES

# -- constants --------------------------------------------------------------------------------------------

MAX_SIZES: Final = 12  # elements of a vector of sizes
_ELEMENTS: Final = 64  # in a constant
_NUMERIC: Final = FLOATS | INTEGERS


def constants(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, TensorProto]]:
    """Yield (name, tensor) of the Constant nodes."""
    for node in nodes:
        if node.op_type == "Constant" and node.output and (found := held(node)) is not None:
            yield node.output[0], found


def held(node: NodeProto) -> TensorProto | None:
    """Return a Constant's value as a tensor; None for sparse values."""
    return next((found for a in node.attribute if (found := held_as(a.name, a)) is not None), None)


# Attributes of Constant besides `value`: (code of the type, field with the elements, field of a single element).
_FORMS: Final = {
    "value_float": (1, "float_data", "f"), "value_int": (7, "int64_data", "i"), "value_string": (8, "string_data", "s"),
}  # fmt: skip


def held_as(form: str, a: AttributeProto) -> TensorProto | None:
    """Return the value of a Constant as a tensor, else None. `form`: name of the attribute in the Constant."""
    if form == "value":
        return a.t
    if form in _FORMS:
        code, field, single = _FORMS[form]
        return TensorProto(data_type=code, **{field: [getattr(a, single)]})
    if form.removesuffix("s") in _FORMS:
        code, field, _ = _FORMS[form.removesuffix("s")]
        elements = getattr(a, form.removeprefix("value_"))
        return TensorProto(data_type=code, dims=[len(elements)], **{field: elements})
    return None


def few(tensor: TensorProto, most: int, types: Collection[int]) -> list[Any]:
    """Return the elements of a small tensor: of a type in `types`, with 1 to `most` elements.

    [] for any further tensor, and for unreadable data.
    """
    if not 0 < math.prod(tensor.dims) <= most or tensor.data_type not in types:
        return []
    try:
        return list(tensor_to_array(tensor).reshape(-1).tolist())
    except ValueError:
        return []


def integers(tensor: TensorProto) -> list[int]:
    """Return the elements of a short integer tensor; [] for any further tensor."""
    return few(tensor, MAX_SIZES, (tensor.INT64, tensor.INT32))


def numbers(tensor: TensorProto) -> list[float]:
    """Return the distinct elements of a small numeric tensor; [] for any further tensor."""
    return list(dict.fromkeys(map(float, few(tensor, _ELEMENTS, _NUMERIC))))


def value_of(node: NodeProto, name: str, default: Any) -> Any:
    """Return the value of an attribute: a number, text, a list or an array."""
    return next((attribute_value(a) for a in node.attribute if a.name == name), default)


def adds_up(node: NodeProto) -> bool:
    """Return whether a scattering node reduces the elements of a repeated index."""
    return bool(node.op_type.startswith("Scatter") and value_of(node, "reduction", "none") != "none")


def int_of(node: NodeProto, name: str, default: int = 0) -> int:
    """Return an integer attribute."""
    return next((a.i for a in node.attribute if a.name == name), default)


# -- inputs -----------------------------------------------------------------------------------------------


def required(graph: GraphProto) -> list[ValueInfoProto]:
    """Return the inputs without initializer."""
    initializers = {t.name for t in graph.initializer}
    return [i for i in graph.input if i.name not in initializers]


def overridable(model: ModelProto) -> set[str]:
    """Return the inputs, whose initializers are defaults; none if every initializer has to be listed as an input."""
    return {i.name for i in model.graph.input} if model.ir_version >= 4 else set()


# -- order ------------------------------------------------------------------------------------------------


def ordered(nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """Return the nodes in topological order, unchanged if already sorted."""
    read = set[str]()
    for node in nodes:
        read.update(node.input[:])
        read.discard("")
        if not read.isdisjoint(node.output[:]):
            return [nodes[i] for i in in_order(nodes, [list(reads_of(n)) for n in nodes])]
    return nodes


def in_order(nodes: Sequence[NodeProto], reads: Sequence[Sequence[str]]) -> list[int]:
    """Return indices in topological order, unchanged if already sorted. `reads`: values read, by node."""
    maker = {o: i for i, n in enumerate(nodes) for o in n.output[:] if o}
    done: dict[int, None] = {}
    for root in range(len(nodes)):
        stack = [root]
        while stack:
            i = stack[-1]
            before = [maker[r] for r in reads[i] if r in maker and maker[r] not in done and maker[r] != i]
            if i in done or not before or len(stack) > len(nodes):
                done[stack.pop()] = None
            else:
                stack += before
    return list(done)


def reads_of(node: NodeProto) -> Iterator[str]:
    """Yield the values read by a node, including values captured by its bodies."""
    for name in node.input[:]:
        if name:
            yield name
    for a in node.attribute[:]:
        for body in (a.g,) if a.HasField("g") else a.graphs:
            yield from captured(body)


def captured(body: GraphProto) -> Iterator[str]:
    """Yield the values read by a body from outside."""
    made = {i.name for i in body.input} | {t.name for t in body.initializer}
    made |= {t.values.name for t in body.sparse_initializer}
    for node in body.node[:]:
        yield from (name for name in reads_of(node) if name not in made)
        made.update(node.output)
    yield from (o.name for o in body.output if o.name not in made)


def bodies_of(node: NodeProto) -> Sequence[GraphProto]:
    """Return the bodies of a node. Attributes of standard operators without bodies are not searched."""
    if node.op_type not in WITH_BODIES and not node.domain:
        return ()
    return [body for a in node.attribute[:] for body in ((a.g,) if a.HasField("g") else a.graphs)]


def deciding_of(node: NodeProto) -> Sequence[str]:
    """Return the operands of an If or Loop that decide which parts run; "" for a missing operand."""
    return list(node.input[: {"If": 1, "Loop": 2}.get(node.op_type, 0)])


def first_of(node: NodeProto) -> str:
    """Return the first named output of a node, or ""."""
    return next(filter(None, node.output[:]), "")


def inside(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, including nodes in bodies at any depth."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from inside(body.node)


def operator_names(nodes: Iterable[NodeProto]) -> frozenset[str]:
    """Return the operator types of nodes, including nodes in bodies."""
    return frozenset(node.op_type for node in inside(nodes))


def operators_of(graph: GraphProto, functions: Iterable[FunctionProto]) -> frozenset[str]:
    """Return the operator types in a graph and functions, including bodies."""
    return operator_names(n for body in (graph, *functions) for n in body.node)


# -- functions --------------------------------------------------------------------------------------------

Name = tuple[str, str]  # domain and name


class Functions:
    """The functions of a model."""

    def __init__(self, model: ModelProto) -> None:
        self._all: list[FunctionProto] = list(model.functions)
        self._places: dict[Name, list[int]] = {}
        for i, f in enumerate(self._all):
            self._places.setdefault((domain_of(f.domain), _named(f.name, f.overload)), []).append(i)
        # By index of a function: the functions that it calls.
        self._called_by = functools.cache(lambda i: self._called(self._all[i].node))
        self.holding = functools.cache(self._holding)  # asked by each body of a model

    @property
    def names(self) -> KeysView[Name]:
        """The (domain, name) of the functions."""
        return self._places.keys()

    def of(self, node: NodeProto) -> FunctionProto | None:
        """Return the function called by a node, else None."""
        places = self._places.get(operator_of(node)) if self._places else None
        return self._all[places[0]] if places else None

    def needed(self, nodes: Iterable[NodeProto]) -> list[FunctionProto]:
        """Return the functions called by nodes, directly or indirectly, in the model's order."""
        found = new = self._called(nodes) if self._places else set()
        while new:
            new = set[int]().union(*map(self._called_by, new)) - found
            found = found | new
        return [self._all[i] for i in sorted(found)]

    def _called(self, nodes: Iterable[NodeProto]) -> set[int]:
        return {i for node in inside(nodes) for i in self._places.get(operator_of(node), ())}

    def _holding(self, is_one: Callable[[NodeProto], bool]) -> set[Name]:
        """Return the functions with a node that satisfies `is_one`, directly or in called functions."""
        found = {i for i, f in enumerate(self._all) if any(map(is_one, inside(f.node)))}
        while new := {i for i in range(len(self._all)) if not found.isdisjoint(self._called_by(i))} - found:
            found |= new
        return {name for name, places in self._places.items() if not found.isdisjoint(places)}


def operator_of(node: NodeProto) -> Name:
    """Return (domain, name) of the operator or function of a node."""
    return domain_of(node.domain), _named(node.op_type, node.overload)


def _named(name: str, overload: str) -> str:
    """Return a function's name with overload, the runtimes' key."""
    return f"{name}:{overload}" if overload else name


def domain_of(name: str) -> str:
    """Return a domain's canonical name. The standard domain has two, used interchangeably."""
    return "" if name == "ai.onnx" else name


def is_part(node: NodeProto) -> bool:
    """Return whether a node has a body that may not run."""
    return node.op_type in ("If", "Loop")


def holds(node: NodeProto, is_one: Callable[[NodeProto], bool], functions: Collection[Name]) -> bool:
    """Return whether a node, or a node in its bodies, satisfies `is_one` or calls one of `functions`."""
    return any(is_one(n) or (bool(functions) and operator_of(n) in functions) for n in inside([node]))


def inferred_infos(model: ModelProto) -> Iterator[ValueInfoProto]:
    """Yield the inferred types of values; those in bodies first."""
    from onnxopt.proto.inference import InferenceError, infer_shapes, inferable

    try:
        graphs = [infer_shapes(inferable(model)).graph]
    except InferenceError:  # wrong declared shapes, accepted by runtimes: infer types without them
        model = type(model).FromString(model.SerializeToString())
        for info in (*model.graph.value_info, *model.graph.output):
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
        graphs = [infer_shapes(inferable(model)).graph]
    for graph in graphs:
        graphs += [body for node in graph.node for body in bodies_of(node)]
    for graph in reversed(graphs):
        yield from (*graph.input, *graph.value_info, *graph.output)
