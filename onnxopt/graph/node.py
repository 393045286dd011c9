"""A node: an operator call backed by its NodeProto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import AttributeProto, NodeProto

from onnxopt.errors import EmissionError, ModelError
from onnxopt.graph.emission import admit, check_attribute, make_call
from onnxopt.proto.messages import Array, attribute_value, body_graphs, make_attribute, qualified, read_only

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.graph.value import Value


class Unknown:
    """An attribute value set by the caller of a function: false, and equal to nothing."""

    def __repr__(self) -> str:
        return "unknown"

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return id(self)


UNKNOWN: Final = Unknown()
# The attributes that hold the value of a Constant, with their types.
HELD: Final[dict[str, int]] = {
    "value": AttributeProto.TENSOR,
    "sparse_value": AttributeProto.SPARSE_TENSOR,
    "value_float": AttributeProto.FLOAT,
    "value_floats": AttributeProto.FLOATS,
    "value_int": AttributeProto.INT,
    "value_ints": AttributeProto.INTS,
    "value_string": AttributeProto.STRING,
    "value_strings": AttributeProto.STRINGS,
}
_DTYPES: Final[dict[int, type[Any]]] = {
    **dict.fromkeys((AttributeProto.FLOAT, AttributeProto.FLOATS), np.float32),
    **dict.fromkeys((AttributeProto.INT, AttributeProto.INTS), np.int64),
}
_TENSOR: Final = AttributeProto.TENSOR
_MAX_SCANNED_INPUTS: Final = 16  # up to this number of inputs a scan is faster than an index
_NO_BODIES: Final = MappingProxyType[str, "Graph"]({})


class Node:
    """A call of the qualified operator `op` (`Conv`, `com.microsoft::Gelu`); absent inputs and outputs are None.

    Attributes are decoded on first use. `bodies` are the graphs in its attributes. `graph` is None for a removed node
    and before insertion.
    """

    __slots__ = (
        "_attributes",
        "_op",
        "_places",
        "bodies",
        "graph",
        "inputs",
        "next",
        "outputs",
        "prev",
        "proto",
        "stale",
    )

    def __init__(self, proto: NodeProto, inputs: list[Value | None], outputs: list[Value | None]) -> None:
        self.proto = proto
        self._op = qualified(proto.op_type, proto.domain)
        self.inputs = inputs
        self.outputs = outputs
        self.bodies: Mapping[str, Graph] = _NO_BODIES  # most nodes have no bodies: they share an empty mapping
        self.graph: Graph | None = None
        self.prev: Node | None = None
        self.next: Node | None = None
        self.stale = False  # the names in the proto differ from `inputs` and `outputs`
        self._attributes: dict[str, AttributeProto] | None = None
        # value: input indices, for nodes with many inputs; made on first use
        self._places: dict[Value, set[int]] | None = None

    def copy(self, inputs: list[Value | None], outputs: list[Value | None]) -> Node:
        """Return a detached copy of the call with other inputs and outputs, without bodies."""
        proto = NodeProto()
        proto.CopyFrom(self.proto)
        return Node(proto, inputs, outputs)

    def _become(self, op: str) -> None:
        """Change the operator, keeping attributes and types. Raises EmissionError if the new schema forbids them."""
        graph = self.graph
        if graph is None or self.bodies or "Constant" in (op, self._op):
            raise EmissionError(f"{self!r} cannot become {op}", "make a node, and let it take over the results")
        domain, _, op_type = op.rpartition("::")
        make_call(graph, op_type, domain, self.inputs, self.outputs, {}, like=self.proto, place=self)
        del graph.by_op[self._op][self]
        self._op, self.proto.op_type, self.proto.domain = op, op_type, domain
        if not graph.by_op.get(op):
            admit(graph, self)
        graph.by_op[op][self] = None
        graph.touch(self)

    if TYPE_CHECKING:
        # the qualified name; may be set to an operator that accepts the same attributes and gives the same types
        op: str
    else:  # the attribute read most often: attrgetter avoids a Python frame
        op = property(attrgetter("_op"), _become)

    @property
    def name(self) -> str:
        return str(self.proto.name)

    @property
    def domain(self) -> str:
        return str(self.proto.domain)

    @property
    def output(self) -> Value:
        """The first output."""
        value = self.outputs[0]
        assert value is not None
        return value

    @property
    def attributes(self) -> dict[str, AttributeProto]:
        if self._attributes is None:
            self._attributes = {a.name: a for a in self.proto.attribute[:]}
        return self._attributes

    @property
    def keeps_dims(self) -> bool:
        """Whether a Reduce*, ArgMax or ArgMin keeps the reduced axes. Runtimes do so for `keepdims` = 1 only."""
        return bool(self.attr("keepdims", 1) == 1)

    @property
    def has_references(self) -> bool:
        """Whether an attribute refers to an attribute of the enclosing function, and is unknown here."""
        if (graph := self.graph) is not None and not (graph.model.functions and graph.root.is_function):
            return False  # references are illegal outside functions
        return any(a.ref_attr_name for a in self.proto.attribute[:])

    def input(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def places(self, value: Value) -> list[int]:
        """Return the indices of the inputs that read `value`, from an index for nodes with many inputs."""
        if len(self.inputs) <= _MAX_SCANNED_INPUTS:
            return [i for i, v in enumerate(self.inputs) if v is value]
        if self._places is None:
            self._places = {}
            for i, v in enumerate(self.inputs):
                if v is not None:
                    self._places.setdefault(v, set()).add(i)
        return sorted(self._places.get(value, ()))

    @property
    def operands(self) -> list[Value]:
        """The inputs that are present."""
        inputs = self.inputs
        return present(inputs) if None in inputs else [*inputs]  # type: ignore[list-item]  # usual: without a call

    @property
    def scope(self) -> Graph:
        """The graph or body that holds the node, which is neither new nor removed."""
        assert self.graph is not None, f"{self!r} is in no graph"
        return self.graph

    def operand(self, index: int) -> Value:
        """Return an operand that the standard requires."""
        value = self.inputs[index]
        assert value is not None, f"{self!r} lacks operand {index}"
        return value

    def around_in(self, scope: Graph | None) -> Node | None:
        """Return the node of `scope` around this node: itself, or the owner of a body; None outside of `scope`."""
        node: Node | None = self
        while node is not None and node.graph is not scope:
            node = node.graph.owner if node.graph is not None else None
        return node

    @property
    def results(self) -> list[Value]:
        """The outputs that are present."""
        outputs = self.outputs
        return present(outputs) if None in outputs else [*outputs]  # type: ignore[list-item]

    @property
    def is_used(self) -> bool:
        """Whether any output is read or is a graph output."""
        for v in self.outputs:
            if v is not None and (v.users or v.output_count):
                return True
        return False

    def used_outputs(self) -> list[int]:
        return [i for i, v in enumerate(self.outputs) if v is not None and v.is_used]

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the attribute's value, else the schema's default in the opset in force, else `default`."""
        attributes = self.attributes if self._attributes is None else self._attributes
        if name in attributes:
            found = attributes[name]
            if found.ref_attr_name:
                return self._referred(found)
            return self._value_of(found) if found.type == _TENSOR else attribute_value(found)
        # of a node just made: its results' graph
        graph = self.graph if self.graph is not None else next((v.graph for v in self.results), None)
        defined = graph.signature(self._op) if graph is not None else None
        return default if defined is None else defined.defaults.get(name, default)

    def _value_of(self, attribute: AttributeProto) -> Any:
        if attribute.type == AttributeProto.TENSOR and self.graph is not None and attribute.t.data_location:
            return self.graph.model.decode(attribute.t)
        return attribute_value(attribute)

    def _referred(self, attribute: AttributeProto) -> Unknown:
        """Return UNKNOWN for a reference to a function's attribute. Raises ModelError outside functions."""
        if self.graph is not None and not self.graph.root.is_function:
            raise ModelError(
                f"{self.graph.model.name}: {self.graph.path}: {self} refers to the attribute "
                f"`{attribute.ref_attr_name}` of a function, and is in none",
                "the file does not pass onnx.checker; export it again, or repair it",
            )
        return UNKNOWN

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute in place, or remove it (None). Raises EmissionError if the schema forbids the result."""
        made = make_attribute(name, value) if value is not None else None
        if self.graph is not None:
            check_attribute(self.graph, self, name, made)
        for i, a in enumerate(self.proto.attribute):
            if a.name == name:
                del self.proto.attribute[i]
                break
        if made is not None:
            self.proto.attribute.append(made)
        self._attributes = None
        if self.graph is not None:
            self.graph.touch(self)

    def adopt(self, proto: NodeProto) -> None:
        """Back the node by `proto`, a copy of its proto, and the nodes of its bodies, at every depth, by its parts.

        Otherwise names in bodies would be written into messages outside the model.
        """
        self.proto, self._attributes = proto, None
        for key, message in body_graphs(proto) if self.bodies else ():
            body = self.bodies[key]
            body.proto = message
            if not body.nodes_changed:  # changed bodies are rebuilt when they are written
                for node, copy in zip(body, message.node):
                    node.adopt(copy)
            for tensor in message.initializer:
                value = body.initializers.get(tensor.name)
                if value is not None and value.tensor is not None:
                    value.tensor = tensor

    def set_input(self, index: int, value: Value | None) -> None:
        """Make input `index` read `value`; trailing absent inputs are dropped."""
        old = self.inputs[index] if index < len(self.inputs) else None
        if old is value:
            return
        if value is not None and self.graph is not None and self.graph.model.debug:
            self.graph.model.check_use(value, self.graph, repr(self))
        while len(self.inputs) <= index:
            self.inputs.append(None)
        self.inputs[index] = value
        if self._places is not None:
            if old is not None:
                self._places[old].discard(index)
            if value is not None:
                self._places.setdefault(value, set()).add(index)
        while self.inputs and self.inputs[-1] is None:
            self.inputs.pop()
        self.stale = True
        if self.graph is not None:
            if value is not None:
                value.users[self] = value.users.get(self, 0) + 1
            if old is not None:
                self.graph.drop_use(old, self)
            self.graph.touch(self)

    def remove_input(self, index: int) -> None:
        """Remove input `index`; later inputs move up."""
        if index >= len(self.inputs):
            return
        old, self._places = self.inputs.pop(index), None
        while self.inputs and self.inputs[-1] is None:
            self.inputs.pop()
        self.stale = True
        if self.graph is not None:
            if old is not None:
                self.graph.drop_use(old, self)
            self.graph.touch(self)

    def remove_output(self, index: int) -> None:
        """Remove an unread output; later outputs move up."""
        for i, v in enumerate(self.outputs[index + 1 :], index):
            if v is not None:
                v.index = i
        del self.outputs[index : index + 1]
        self.stale = True
        if self.graph is not None:
            self.graph.touch(self)

    @property
    def holds_array(self) -> bool:
        """Whether the node is a dense Constant of known value, not a reference to a function's attribute."""
        return self.op == "Constant" and not self.has_references and "sparse_value" not in self.attributes

    def constant_array(self) -> Array:
        """Return the read-only array of a Constant node, in any attribute form except sparse_value."""
        for key, a in self.attributes.items():
            if HELD.get(key) != a.type:  # not the value attribute
                continue
            found = self._value_of(a)
            return found if key == "value" else read_only(np.array(found, dtype=_DTYPES.get(a.type, object)))
        raise ValueError("Constant without a value")

    def described(self, outputs: Iterable[str]) -> str:
        """Return a short description: operator, node name and the names of `outputs`."""
        label = f' "{self.name}"' if self.name else ""
        return f"{self.op}{label} -> {', '.join(outputs)}"

    def __repr__(self) -> str:
        return self.described(["" if v is None else v.name for v in self.outputs])


def producer(value: Value | None, *ops: str) -> Node | None:
    """Return the node that makes `value` if it is one of `ops` (any, without `ops`), else None."""
    node = value.producer if value is not None else None
    return node if node is not None and (not ops or node._op in ops) else None


def own_producer(value: Value | None, reader: Node, *ops: str) -> Node | None:
    """Return the node that makes `value` for `reader` alone, if it is one of `ops` (any, without `ops`), else None."""
    return producer(value, *ops) if value is not None and value.only_user is reader else None


def sole_reader(value: Value | None, *ops: str) -> Node | None:
    """Return the only reader of `value`, no graph output, if it is one of `ops` (any, without `ops`), else None."""
    node = value.only_user if value is not None else None
    return node if node is not None and (not ops or node._op in ops) else None


def present(values: Sequence[Value | None]) -> list[Value]:
    """Return the operands or results that are not absent."""
    if None in values:
        return [v for v in values if v is not None]
    return [*values]  # type: ignore[list-item]  # twice as fast, and the usual case


def array_of(value: Value | None) -> Array | None:
    """Return the data of a constant; None for an absent or computed value."""
    return value.array if value is not None and value.constant else None


def arrays_of(values: Iterable[Value | None]) -> list[Array] | None:
    """Return the data of constants; None if any of `values` is absent or computed."""
    given = list(values)
    constants = [v.array for v in given if v is not None and v.constant]
    return constants if len(constants) == len(given) else None
