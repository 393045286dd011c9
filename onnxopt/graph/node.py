"""A node: one operator call, backed by the NodeProto it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import AttributeProto, NodeProto

from onnxopt.errors import EmissionError, ModelError
from onnxopt.graph.emission import admit, check_attribute, make_call
from onnxopt.graph.schema import attribute_default
from onnxopt.protos import (
    Array,
    attribute_value,
    body_graphs,
    make_attribute,
    qualified,
    read_only,
)

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.graph.value import Value


class Unknown:
    """The value of an attribute that a function's caller decides: equal to nothing, true for no guard."""

    def __repr__(self) -> str:
        return "unknown"

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return id(self)


UNKNOWN: Final = Unknown()
# The attributes that say what a Constant holds, with their types.
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
_FEW: Final = 16  # inputs that are looked through sooner than indexed
_NONE: Final = MappingProxyType[str, "Graph"]({})


class Node:
    """`op` is the qualified operator name (`Conv`, `com.microsoft::Gelu`); absent inputs and outputs are None.

    Attributes are decoded on first use. `bodies` are the graphs in its attributes. A node outside any graph
    has `graph` None: it was removed, or is not inserted yet.
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
        self.bodies: Mapping[str, Graph] = _NONE  # most have none: one object, or each would have one of its own
        self.graph: Graph | None = None
        self.prev: Node | None = None
        self.next: Node | None = None
        self.stale = False  # the proto's input and output names no longer say what the lists say
        self._attributes: dict[str, AttributeProto] | None = None
        self._places: dict[Value, set[int]] | None = None  # where a node of many inputs reads a value, once asked

    def copy(self, inputs: list[Value | None], outputs: list[Value | None]) -> Node:
        """The same call, without bodies, of other values; in no graph yet."""
        proto = NodeProto()
        proto.CopyFrom(self.proto)
        return Node(proto, inputs, outputs)

    def _become(self, op: str) -> None:
        """What setting `op` does. Raises EmissionError for what the other operator's definition does not allow."""
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
        op: str  # the qualified name; another may be set that takes the attributes, and gives the types, that there are
    else:  # what is asked most of all is read in C, without a frame of Python's
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
        """Does a Reduce, ArgMax or ArgMin keep the axes that it reduces? To runtimes only `keepdims` = 1 says so."""
        return bool(self.attr("keepdims", 1) == 1)

    @property
    def has_references(self) -> bool:
        """Does an attribute refer to the enclosing function's attributes? Then its value is unknown here."""
        if (graph := self.graph) is not None and not graph.root.is_function:
            return False  # elsewhere they are illegal
        for a in self.proto.attribute[:]:
            if a.ref_attr_name:
                return True
        return False

    def input(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def places(self, value: Value) -> list[int]:
        """The inputs that read `value`. Of a Concat of thousands they are indexed: each may be asked for."""
        if len(self.inputs) <= _FEW:
            found = []
            for i, v in enumerate(self.inputs):
                if v is value:
                    found.append(i)
            return found
        if self._places is None:
            self._places = {}
            for i, v in enumerate(self.inputs):
                if v is not None:
                    self._places.setdefault(v, set()).add(i)
        return sorted(self._places.get(value, ()))

    @property
    def is_used(self) -> bool:
        """Does anything read one of its outputs?"""
        for v in self.outputs:
            if v is not None and (v.users or v.output_count):
                return True
        return False

    def used_outputs(self) -> list[int]:
        return [i for i, v in enumerate(self.outputs) if v is not None and v.is_used]

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value; else the schema's default for the opset in force; else `default`."""
        attributes = self.attributes if self._attributes is None else self._attributes
        found = attributes.get(name)
        if found is not None:
            if found.ref_attr_name:
                return self._referred(found)
            return self._said(found) if found.type == _TENSOR else attribute_value(found)
        if self.graph is not None:
            schema = attribute_default(self._op, self.graph.opset(self._op.rpartition("::")[0]), name)
            if schema is not None:
                return schema
        return default

    def _said(self, attribute: AttributeProto) -> Any:
        if attribute.type == AttributeProto.TENSOR and self.graph is not None and attribute.t.data_location:
            return self.graph.model.decode(attribute.t)
        return attribute_value(attribute)

    def _referred(self, attribute: AttributeProto) -> Unknown:
        """A function's attribute. Outside of functions nobody gives it a value: raises ModelError."""
        if self.graph is not None and not self.graph.root.is_function:
            raise ModelError(
                f"{self.graph.model.name}: {self.graph.path}: {self} refers to the attribute "
                f"`{attribute.ref_attr_name}` of a function, and is in none",
                "the file does not pass onnx.checker; export it again, or repair it",
            )
        return UNKNOWN

    def set_attr(self, name: str, value: Any) -> None:
        """Set (None: remove) an attribute in place. Raises EmissionError for what the operator does not have."""
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
        """Be backed by `proto`, a copy of what backs the node now. The only way to change it: what stands in the node's
        bodies, at every depth, is backed by the copy too, or its names would be written into what nobody reads."""
        self.proto, self._attributes = proto, None
        for key, message in body_graphs(proto) if self.bodies else ():
            body = self.bodies[key]
            body.proto = message
            if not body.nodes_changed:  # else they are put into it when it is written
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
        """Read one value less: those behind move up."""
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
        """Make one value less, which nobody reads: those behind move up."""
        for i, v in enumerate(self.outputs[index + 1 :], index):
            if v is not None:
                v.index = i
        del self.outputs[index : index + 1]
        self.stale = True
        if self.graph is not None:
            self.graph.touch(self)

    @property
    def holds_array(self) -> bool:
        """Is it a Constant whose array is known: dense, and not what a caller of the function says?"""
        return self.op == "Constant" and not self.has_references and "sparse_value" not in self.attributes

    def constant_array(self) -> Array:
        """What a Constant node holds, in any of its attribute forms except sparse_value; read-only."""
        for key, a in self.attributes.items():
            if HELD.get(key) != a.type:  # it says nothing of the value
                continue
            found = self._said(a)
            return found if key == "value" else read_only(np.array(found, dtype=_DTYPES.get(a.type, object)))
        raise ValueError("Constant without a value")

    def described(self, outputs: Iterable[str]) -> str:
        """In a few words, with the names of what it makes."""
        label = f' "{self.name}"' if self.name else ""
        return f"{self.op}{label} -> {', '.join(outputs)}"

    def __repr__(self) -> str:
        return self.described(["" if v is None else v.name for v in self.outputs])
