"""A node as the table of older forms sees it: operands, attributes with their defaults, constants, types."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from onnx import NodeProto

from onnxopt.conversion.known import Known
from onnxopt.conversion.steps import Steps
from onnxopt.graph.schema import attribute_default
from onnxopt.protos import Array, attribute_value, make_attribute, type_name


class Unsayable(Exception):
    """A call has no form before opset `since`; says why."""

    since = 0


class Call:
    """A call of an operator that is another one before opset `since`. `op` makes new nodes, see `Steps`."""

    def __init__(self, node: NodeProto, since: int, known: Known) -> None:
        self.node, self.since, self.known = node, since, known
        self.made = list(node.output)
        self.op = Steps(known, next(filter(None, node.output), node.op_type))

    def input(self, i: int) -> str:
        """The name of an operand; empty where it is absent."""
        return str(self.node.input[i]) if i < len(self.node.input) else ""

    def output(self, i: int) -> str:
        """The name of a result that is read; empty for another."""
        name = str(self.node.output[i]) if i < len(self.node.output) else ""
        return name if i == 0 or name in self.known.reads else ""

    def attr(self, name: str) -> Any:
        """What an attribute says, or its default; None without one."""
        given = next((a for a in self.node.attribute if a.name == name), None)
        return attribute_value(given) if given is not None else attribute_default(self.node.op_type, self.since, name)

    def constant(self, i: int, what: str) -> Array:
        """What an operand holds. Raises Unsayable where it is computed."""
        found = self.known.constant(self.input(i))
        if found is None:
            raise Unsayable(f"`{what}` is computed, and has to be constant before opset {self.since}")
        return found

    def element_type(self, i: int = 0) -> int:
        """Of an operand; 0 where that is not known."""
        return self.known.element_type(self.input(i))

    def needed_type(self, i: int = 0) -> int:
        """The same. Raises Unsayable where it is not known."""
        found = self.element_type(i)
        if not found:
            raise Unsayable(f"the type of `{self.input(i)}` is not known")
        return found

    def rank(self, i: int = 0) -> int:
        """Of an operand. Raises Unsayable where it is not known."""
        dims = self.known.shape(self.input(i))
        if dims is None:
            raise Unsayable(f"the rank of `{self.input(i)}` is not known")
        return len(dims)

    def size(self, axis: int, i: int = 0) -> int | None:
        """Of an operand along an axis, if it is a known number."""
        dims = self.known.shape(self.input(i))
        found = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
        return found if isinstance(found, int) else None

    def rewritten(
        self, *, inputs: Collection[str] | None = None, without: Collection[str] = (), **attributes: Any
    ) -> list[NodeProto]:
        """The steps so far, and the call with other operands and attributes; None: as they are."""
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
        """The value in another element type."""
        return self.op("Cast", name, to=to) if self.known.element_type(name) != to else name

    def widely(self, wide: int, operands: Collection[int]) -> list[NodeProto]:
        """The call with these operands in a wider element type, and its first result as it was."""
        narrow = self.needed_type(min(operands))
        inputs = [self.cast(n, wide) if n and i in operands else n for i, n in enumerate(self.node.input)]
        result = self.known.fresh(f"{self.made[0]}_{type_name(wide).lower()}")
        nodes = self.rewritten(inputs=inputs)
        nodes[-1].output[0] = result
        self.op.nodes.clear()
        self.op("Cast", result, to=narrow, name=self.made[0])
        return [*nodes, *self.op.nodes]
