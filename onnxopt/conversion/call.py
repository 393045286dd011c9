"""A node in conversion: known values, operands and attributes, new nodes; and the table of older forms."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onnxopt.graph.emission import describe_as
from onnxopt.graph.schema import attribute_default, find_schema
from onnxopt.proto.messages import (
    Array,
    all_nodes,
    array_to_tensor,
    attribute_value,
    body_graphs,
    is_external,
    make_attribute,
    make_node,
    numpy_dtype,
    tensor_bytes,
    tensor_to_array,
    tensor_type,
    tensor_type_proto,
    tensor_value_info,
    type_name,
)

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData
    from onnxopt.graph.value import Value


DATA_UP_TO: Final = 1 << 10  # bytes: converters read constants such as scales and axes; weights stay where they are
Dims = tuple[int | str | None, ...]


def skeleton(proto: ModelProto) -> ModelProto:
    """Return the model with an input in place of each large initializer. Names and nodes are the same."""
    skeleton = ModelProto(ir_version=max(proto.ir_version, 4))
    skeleton.opset_import.extend(proto.opset_import)
    graph, source = skeleton.graph, proto.graph
    graph.name = source.name or "main"
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    given = {i.name for i in source.input}
    for tensor in source.initializer:
        if tensor.name in given:
            continue
        if _is_large(tensor):
            graph.input.append(tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            graph.initializer.append(tensor)
    for sparse in source.sparse_initializer:
        graph.input.append(tensor_value_info(sparse.values.name, sparse.values.data_type, sparse.dims))
    return skeleton


def _is_large(tensor: TensorProto) -> bool:
    return bool(is_external(tensor)) or tensor_bytes(tensor.data_type, tensor.dims) > DATA_UP_TO


class KnownValues:
    """Names, constants, element types and shapes of the values of a model. `reads`: names read by nodes or callers.

    A name with different values in two bodies has no facts.
    """

    def __init__(self, proto: ModelProto) -> None:
        self.reads: set[str] = set()
        self._names: set[str] = set()
        self._twice: set[str] = set()  # names of values of two bodies
        self._constants: dict[str, TensorProto | AttributeProto] = {}
        self._types: dict[str, TypeProto | None] = {}
        self._values: dict[str, Value] = {}
        self._sizes: ShapeData
        self._learn(proto.graph, {i.name for i in proto.graph.input} if proto.ir_version >= 4 else set())

    def _learn(self, graph: GraphProto, overridden: set[str]) -> None:
        """Enter names, reads and small constants of a graph and its bodies."""
        outputs = {*chain.from_iterable(node.output for node in graph.node)} - {""}
        names = outputs.union(v.name for v in (*graph.input, *graph.initializer))
        self._twice |= self._names & names
        self._names |= names
        self.reads.update(o.name for o in graph.output)
        for tensor in graph.initializer:
            if tensor.name not in overridden and not _is_large(tensor):
                self._constants[tensor.name] = tensor
        for node in graph.node:
            self.reads.update(node.input)
            self._hold(node)
            for _, body in body_graphs(node):
                self._learn(body, set())

    def _hold(self, node: NodeProto) -> None:
        """Keep the value of a Constant."""
        if node.op_type == "Constant" and node.output and node.attribute and not _is_large(node.attribute[0].t):
            self._constants[node.output[0]] = node.attribute[0]

    def fresh(self, name: str) -> str:
        """Return a new name, derived from `name`."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def constant(self, name: str) -> Array | None:
        """Return the array of a small constant, or of integers that are the same in each run; None for other values."""
        held = self._held(name)
        content = self.content(name) if held is None else None
        if content is None or not all(isinstance(n, int) for n in content.flat):
            return held
        return np.array(content.tolist(), numpy_dtype(self.element_type(name))).reshape(content.shape)

    def content(self, name: str) -> Array | None:
        """Return the elements of a small integer tensor, as numbers and expressions of sizes; None if unknown."""
        held, value = self._held(name), self._value(name)
        return held.astype(object) if held is not None else self._sizes.content(value) if value is not None else None

    def sizes(self, name: str) -> tuple[Any, ...] | None:
        """Return the dims of a value, as numbers and expressions of sizes; None if the rank is unknown.

        Equal expressions are equal sizes; equal names in a body need not be.
        """
        value = self._value(name)
        if value is not None:
            return self._sizes.shape(value)
        dims = self.shape(name)
        return dims if dims is not None and all(isinstance(d, int) for d in dims) else None

    def _held(self, name: str) -> Array | None:
        held = self._constants.get(name) if name not in self._twice else None
        if held is None:
            return None
        return tensor_to_array(held) if isinstance(held, TensorProto) else np.asarray(attribute_value(held))

    def _value(self, name: str) -> Value | None:
        return self._values.get(name) if name not in self._twice else None

    def infer(self, proto: ModelProto, opset: int) -> None:
        """Infer the types of all values of `proto`, the model, and the elements of small integer tensors."""
        from onnxopt.analysis import types
        from onnxopt.analysis.shapes.sweep import ShapeData
        from onnxopt.graph.reader import read_model

        light = skeleton(proto)
        model = read_model(light)
        types.update(model)
        self._sizes = ShapeData()
        for scope in reversed([*model.scopes()]):  # bodies after the graphs around them
            found = (v for node in self._sizes.sweep(scope) for v in node.results)
            for value in (*scope.inputs, *found):
                self._values[value.name] = value
                if types.dtype(value):
                    kind = tensor_type_proto(types.dtype(value), types.shape(value))
                    self._types[value.name] = kind if self._types.get(value.name, kind) == kind else None
        self._declared(light.graph)
        for node in all_nodes(light.graph.node):  # types of sequences, which values do not hold
            if not self._types.keys() >= {*node.output} - {""}:
                self.infer_made(node, opset)

    def _declared(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            self._types.setdefault(tensor.name, tensor_type_proto(tensor.data_type, tuple(tensor.dims)))
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.type.WhichOneof("value"):
                self._types.setdefault(info.name, info.type)
        for node in graph.node:
            for _, body in body_graphs(node):
                self._declared(body)

    def infer_made(self, node: NodeProto, opset: int) -> None:
        """Infer the types of the results of a node from the types of the operands."""
        from onnxopt.proto.inference import infer_call

        self._hold(node)
        schema = find_schema(node.op_type, opset)
        given = dict.fromkeys(filter(None, node.input))
        types = {name: found for name in given if (found := self._types.get(name)) is not None}
        if schema is None or len(types) < len(given) or body_graphs(node):
            return
        data = {name: array_to_tensor(array, name) for name in given if (array := self.constant(name)) is not None}
        try:
            found = infer_call(schema, node, types, data, opset)
        except Exception:  # inference is an optional source of facts
            return
        for name, kind in found.items():
            self._types.setdefault(name, kind)

    def kind(self, name: str) -> TypeProto | None:
        return self._types.get(name)

    def element_type(self, name: str) -> int:
        """Return the element type of a tensor; 0 for an unknown type and for other values."""
        found = self._types.get(name)
        return tensor_type(found)[0] if found is not None else 0

    def shape(self, name: str) -> Dims | None:
        found = self._types.get(name)
        return tensor_type(found)[1] if found is not None else None


class Steps:
    """A list of new nodes of the standard, each with a single result. Names of results derive from `base`."""

    def __init__(self, known: KnownValues, base: str) -> None:
        self._known, self._base = known, base
        self.nodes: list[NodeProto] = []

    def __call__(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of the result: `name`, or a new name."""
        node = make_node(op, "", "", attributes)
        node.input.extend(inputs)
        node.output.append(name or self._known.fresh(f"{self._base}_{op.lower()}"))
        self.nodes.append(node)
        return str(node.output[0])

    def constant(self, array: Any, dtype: Any = np.int64) -> str:
        return self("Constant", value=np.array(array, dtype))


class Inexpressible(Exception):
    """A call has no form in the other opset; says why. `since`: the lowest opset that has the form, on the way down."""

    def __init__(self, why: str, since: int = 0) -> None:
        super().__init__(why)
        self.since = since


class Call:
    """A call of an operator that opset `since` changed. `op` makes new nodes, see `Steps`."""

    def __init__(self, node: NodeProto, since: int, known: KnownValues) -> None:
        self.node, self.since, self.known = node, since, known
        self.made = list(node.output)
        self.op = Steps(known, next(filter(None, node.output), node.op_type))

    def input(self, i: int) -> str:
        """Return the name of an operand; empty for an absent operand."""
        return str(self.node.input[i]) if i < len(self.node.input) else ""

    def output(self, i: int) -> str:
        """Return the name of a result with readers; empty for other results."""
        name = str(self.node.output[i]) if i < len(self.node.output) else ""
        return name if i == 0 or name in self.known.reads else ""

    def attr(self, name: str) -> Any:
        """Return the value of an attribute, or the default; None without a default."""
        given = next((a for a in self.node.attribute if a.name == name), None)
        return attribute_value(given) if given is not None else attribute_default(self.node.op_type, self.since, name)

    def constant(self, i: int, what: str) -> Array:
        """Return the value of a constant operand. Raises Inexpressible for a computed operand."""
        found = self.known.constant(self.input(i))
        if found is None:
            raise Inexpressible(f"`{what}` is computed, and has to be constant before opset {self.since}")
        return found

    def element_type(self, i: int = 0) -> int:
        """Return the element type of an operand; 0 for an unknown type."""
        return self.known.element_type(self.input(i))

    def needed_type(self, i: int = 0) -> int:
        """Return the element type of an operand. Raises Inexpressible for an unknown type."""
        found = self.element_type(i)
        if not found:
            raise Inexpressible(f"the type of `{self.input(i)}` is not known")
        return found

    def rank(self, i: int = 0) -> int:
        """Return the rank of an operand. Raises Inexpressible for an unknown rank."""
        dims = self.known.shape(self.input(i))
        if dims is None:
            raise Inexpressible(f"the rank of `{self.input(i)}` is not known")
        return len(dims)

    def size(self, axis: int, i: int = 0) -> int | None:
        """Return the size of an operand along an axis; None unless the size is a known number."""
        dims = self.known.shape(self.input(i))
        found = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
        return found if isinstance(found, int) else None

    def rewritten(
        self, *, inputs: Collection[str] | None = None, without: Collection[str] = (), **attributes: Any
    ) -> list[NodeProto]:
        """Return the steps so far, and the call with the given operands and attributes; None keeps the operands.

        The call has no name: another node may be the last one, which `copy_description` describes.
        """
        node = NodeProto()
        node.CopyFrom(self.node)
        _undescribe(node)
        if inputs is not None:
            del node.input[:]
            node.input.extend(inputs)
        dropped = {*without, *attributes}
        kept = [a for a in self.node.attribute if a.name not in dropped]
        del node.attribute[:]
        node.attribute.extend([*kept, *(make_attribute(k, v) for k, v in attributes.items() if v is not None)])
        return [*self.op.nodes, node]

    def cast(self, name: str, to: int) -> str:
        """Return the name of the value in the element type `to`."""
        return self.op("Cast", name, to=to) if self.known.element_type(name) != to else name

    def in_wider_type(self, wide: int, operands: Collection[int]) -> list[NodeProto]:
        """Return the call with these operands in a wider element type, and a Cast of the first result."""
        narrow = self.needed_type(min(operands))
        inputs = [self.cast(n, wide) if n and i in operands else n for i, n in enumerate(self.node.input)]
        result = self.known.fresh(f"{self.made[0]}_{type_name(wide).lower()}")
        nodes = self.rewritten(inputs=inputs)
        nodes[-1].output[0] = result
        self.op.nodes.clear()
        self.op("Cast", result, to=narrow, name=self.made[0])
        return [*nodes, *self.op.nodes]


def copy_description(made: NodeProto, node: NodeProto) -> None:
    """Give `made`, a node in place of `node`, the name, doc string and metadata of `node`."""
    _undescribe(made)
    describe_as(made, node)


def _undescribe(node: NodeProto) -> None:
    for field in ("name", "doc_string", "metadata_props"):
        node.ClearField(field)


Form: TypeAlias = Callable[[Call], "list[NodeProto] | None"]
TABLE: Final[dict[tuple[str, int], Form]] = {}  # by operator, and the opset that changed the operator


def before(since: int, *ops: str) -> Callable[[Form], Form]:
    """Return a decorator that enters a function as the form of these operators before the opset `since`.

    The first line of a form is its equation. A form returns nodes of the opset before, or None if the schemas of the
    standard decide: if the operator only takes more types since, or has an attribute whose default is the older
    behaviour. It raises Inexpressible if the older operator cannot do the same.
    """

    def enter(form: Form) -> Form:
        TABLE.update(dict.fromkeys(((op, since) for op in ops), form))
        return form

    return enter
