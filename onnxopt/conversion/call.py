"""A node for the table of older forms: operands, attributes with defaults, constants, types."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from onnx import NodeProto

from onnxopt.conversion.known import Known
from onnxopt.conversion.steps import Steps
from onnxopt.graph.schema import attribute_default
from onnxopt.proto.messages import Array, attribute_value, make_attribute, type_name


class Unsayable(Exception):
    """A call has no form before opset `since`; says why."""

    since = 0


class Call:
    """A call of an operator that opset `since` changed. `op` makes new nodes, see `Steps`."""

    def __init__(self, node: NodeProto, since: int, known: Known) -> None:
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
        """Return the value of a constant operand. Raises Unsayable for a computed operand."""
        found = self.known.constant(self.input(i))
        if found is None:
            raise Unsayable(f"`{what}` is computed, and has to be constant before opset {self.since}")
        return found

    def element_type(self, i: int = 0) -> int:
        """Return the element type of an operand; 0 for an unknown type."""
        return self.known.element_type(self.input(i))

    def needed_type(self, i: int = 0) -> int:
        """Return the element type of an operand. Raises Unsayable for an unknown type."""
        found = self.element_type(i)
        if not found:
            raise Unsayable(f"the type of `{self.input(i)}` is not known")
        return found

    def rank(self, i: int = 0) -> int:
        """Return the rank of an operand. Raises Unsayable for an unknown rank."""
        dims = self.known.shape(self.input(i))
        if dims is None:
            raise Unsayable(f"the rank of `{self.input(i)}` is not known")
        return len(dims)

    def size(self, axis: int, i: int = 0) -> int | None:
        """Return the size of an operand along an axis; None unless the size is a known number."""
        dims = self.known.shape(self.input(i))
        found = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
        return found if isinstance(found, int) else None

    def rewritten(
        self, *, inputs: Collection[str] | None = None, without: Collection[str] = (), **attributes: Any
    ) -> list[NodeProto]:
        """Return the steps so far, and the call with the given operands and attributes; None keeps the operands."""
        node = NodeProto()
        node.CopyFrom(self.node)
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

    def widely(self, wide: int, operands: Collection[int]) -> list[NodeProto]:
        """Return the call with these operands in a wider element type, and a Cast of the first result."""
        narrow = self.needed_type(min(operands))
        inputs = [self.cast(n, wide) if n and i in operands else n for i, n in enumerate(self.node.input)]
        result = self.known.fresh(f"{self.made[0]}_{type_name(wide).lower()}")
        nodes = self.rewritten(inputs=inputs)
        nodes[-1].output[0] = result
        self.op.nodes.clear()
        self.op("Cast", result, to=narrow, name=self.made[0])
        return [*nodes, *self.op.nodes]
