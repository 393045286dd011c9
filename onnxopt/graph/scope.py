"""A scope as passes read it: nodes in order, inputs, outputs, initializers, and the place among other scopes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onnxopt.graph.node import Node
from onnxopt.graph.schema import signature
from onnxopt.graph.value import Value
from onnxopt.plaintext import counted

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto

    from onnxopt.graph.graph import Graph
    from onnxopt.graph.model import Model
    from onnxopt.operators.signatures import Signature


class Scope:
    """The data of a `Graph`, and queries. The nodes are a doubly linked list: insertion takes constant time."""

    def __init__(self, model: Model, proto: GraphProto | FunctionProto, owner: Node | None, label: str) -> None:
        self.first: Node | None = None
        self.last: Node | None = None
        self.model = model
        self.proto = proto
        self.owner = owner  # the node that holds this body
        self.label = label  # "then_branch", or the function's name, or "main"
        self.is_function = not hasattr(proto, "initializer")
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.initializers: dict[str, Value] = {}
        self.by_op: defaultdict[str, dict[Node, None]] = defaultdict(dict)
        self.owners: dict[Node, None] = {}  # nodes that hold bodies
        self.size = 0
        self.opsets: dict[str, int] | None = None  # functions only: version by domain
        self.skipped = False  # passes leave the scope alone: `onnxopt.skip` in its metadata, or of a scope around
        self.nodes_changed = False
        self.initializers_changed = False
        self.deferred: list[Value] = []  # initializers written without their data
        self.pinned: set[Value] = set()  # initializers named by quantization annotations of the file

    def __iter__(self) -> Iterator[Node]:
        """Yield the nodes in order; nodes may be inserted, and the current node removed, while iterating."""
        node = self.first
        while node is not None:
            following = node.next
            yield node
            node = following if node.graph is None else node.next

    def __reversed__(self) -> Iterator[Node]:
        """Yield the nodes from last to first, under the same conditions."""
        node = self.last
        while node is not None:
            following = node.prev
            yield node
            node = following if node.graph is None else node.prev

    def arrange(self, nodes: Sequence[Node]) -> None:
        """Put the same nodes into the order given."""
        self.first = self.last = None
        for node in nodes:
            self._put(node, None)

    def _put(self, node: Node, before: Node | None) -> None:
        """Link a node before another node of the scope, or at the end."""
        preceding = before.prev if before is not None else self.last
        node.prev, node.next = preceding, before
        if preceding is None:
            self.first = node
        else:
            preceding.next = node
        if before is None:
            self.last = node
        else:
            before.prev = node

    def _take_out(self, node: Node) -> None:
        if node.prev is None:
            self.first = node.next
        else:
            node.prev.next = node.next
        if node.next is None:
            self.last = node.prev
        else:
            node.next.prev = node.prev

    def __len__(self) -> int:
        return self.size

    @property
    def parent(self) -> Graph | None:
        return self.owner.graph if self.owner is not None else None

    @property
    def root(self) -> Graph:
        """The main graph or function around this scope."""
        graph: Graph = self  # type: ignore[assignment]  # every scope is a Graph
        while graph.owner is not None and graph.owner.graph is not None:
            graph = graph.owner.graph
        return graph

    @property
    def path(self) -> str:
        """The scope's location for messages: `main / If "if_3" / then_branch`."""
        if self.owner is None or self.owner.graph is None:
            return self.label
        name = f' "{self.owner.name}"' if self.owner.name else ""
        return f"{self.owner.graph.path} / {self.owner.op}{name} / {self.label}"

    def opset(self, domain: str = "") -> int:
        """Return the version of `domain` in force here; 0 if it is not imported."""
        opsets = (self if self.owner is None else self.root).opsets or self.model.opsets
        name = "" if domain == "ai.onnx" else domain
        return opsets[name] if name in opsets else 0

    def opset_of(self, op: str) -> int:
        """Return the version of an operator's domain (qualified name) in force here; 0 if it is not imported."""
        opsets = (self if self.owner is None else self.root).opsets or self.model.opsets
        name = op.rpartition("::")[0] if "::" in op else ""
        return opsets[name] if name in opsets else 0

    def signature(self, op: str) -> Signature | None:
        """Return the signature of an operator in the version in force here; None if the standard has none."""
        return signature(op, self.opset_of(op))

    def is_pure(self, node: Node) -> bool:
        """Whether an unread node may be removed: operators outside the standard may have side effects."""
        return self.knows(node._op) or (not node.proto.overload and self.model.is_pure_function(node.op))

    def knows(self, op: str) -> bool:
        """Whether the standard defines this operator in the version in force here."""
        return self.signature(op) is not None

    @property
    def holds_initializers(self) -> bool:
        """Whether the scope can hold initializers. Functions cannot; before IR 4 each initializer must also be an
        input, and a body cannot add inputs."""
        return not self.is_function and (self.owner is None or self.model.ir_version >= 4)

    @property
    def is_bound_by_name(self) -> bool:
        """Whether inputs and outputs are bound by name outside: in the main graph, in functions, and in bodies of
        operators outside the standard. BeamSearch of com.microsoft, for example, looks for `input_ids`."""
        return self.owner is None or self.owner.graph is None or not self.owner.graph.knows(self.owner.op)

    def walk(self) -> Iterator[Node]:
        """Yield the nodes of this scope and of all nested bodies, each owner before its bodies."""
        for node in self:
            yield node
            for body in node.bodies.values():
                yield from body.walk()

    def needs_copy(self, value: Value) -> bool:
        """Whether this scope needs an Identity to list `value` as output under another name.

        True if the scope does not produce `value`, or lists it already: runtimes lose an output if two are the same
        value.
        """
        return value.producer is None or value.graph is not self or value.is_output

    def __str__(self) -> str:
        """Return the graph as text: a line for each node, with known types."""
        from onnxopt.graph.text import graph_text

        return graph_text(self)

    def __repr__(self) -> str:
        return f"Graph({self.path}, {counted(self.size, 'node')})"
