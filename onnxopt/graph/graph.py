"""A scope of nodes: the main graph, a body of If/Loop/Scan, or the body of a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from onnxopt.errors import InvariantError, MistypedError
from onnxopt.graph.emission import admit, contradiction, describe_as, make_call, refusal
from onnxopt.graph.node import Node
from onnxopt.graph.scope import Scope
from onnxopt.graph.value import Value
from onnxopt.proto.messages import contiguous, element_type, make_node

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Graph(Scope):
    """Nodes in topological order, with an index by operator.

    All mutation goes through `make`, `insert`, `place`, `remove`, `move_after`, `inline`, `take_over`, `give_out`,
    `rename`, `drop_input`, `drop_output`, `give`, `constant`, `attach_constant`, `add_initializer`, `know` and
    `remove_initializer` here; `Node.op`, `Node.set_attr`, `Node.adopt`, `Node.set_input`, `Node.remove_input` and
    `Node.remove_output`; `Value.rename`, `Value.redirect_readers` and `Value.replace_all_uses_with`; and
    `Model.add_function`. Each updates users, index and version, and marks the nodes to be visited again by passes. Each
    node has all required outputs of its operator. No scope lists a value twice as output, unless the file did.
    """

    def touch(self, node: Node) -> None:
        self.model.version += 1
        self.model.mark(node)

    def drop_use(self, value: Value, node: Node) -> None:
        """Remove a single use of `value` by `node`."""
        if value.users[node] == 1:
            self._drop_uses((value,), node)
        else:
            value.users[node] -= 1

    def _drop_uses(self, values: Iterable[Value | None], node: Node) -> None:
        """Remove all uses of `values` by `node`; marks a sole remaining reader: it may now fuse with the producer."""
        for value in values:
            if value is not None:
                users = value.users
                if node in users:
                    del users[node]
                if not users:
                    if value.tensor is not None:
                        value.forget()
                elif len(users) == 1:
                    self.model.mark(*users)

    @overload
    def make(
        self, op: str, inputs: Sequence[Value | None], /, outputs: int, before: Node | None = None, **attributes: Any
    ) -> tuple[Value, ...]: ...
    @overload
    def make(
        self, op: str, inputs: Sequence[Value | None], /, *, before: Node | None = None, **attributes: Any
    ) -> Value: ...
    def make(
        self,
        op: str,
        inputs: Sequence[Value | None],
        /,
        outputs: int = 1,
        before: Node | None = None,
        **attributes: Any,
    ) -> Any:
        """Insert a new call of `op` (`Conv`, `com.microsoft::Gelu`) before a node, or at the end of the scope.

        Returns the output value, or a tuple of them if `outputs` > 1. Raises EmissionError if the call violates the
        operator's schema, and DomainError if the domain is not allowed.
        """
        operands = list(inputs)
        while operands and operands[-1] is None:
            operands.pop()
        domain, _, op_type = op.rpartition("::")
        results = [Value("", self) for _ in range(outputs)]
        node = Node(make_call(self, op_type, domain, operands, results, attributes, place=before), operands, [*results])
        first = next((v.name for v in operands if v is not None), op_type)
        for value in results:
            value.name, value.unasked = self.model.names.fresh(first, f"_{op_type}"), True
        self.insert(node, before)
        return results[0] if outputs == 1 else tuple(results)

    def insert(self, node: Node, before: Node | None = None) -> Node:
        """Insert a node made by a pass, with its bodies, before another node or at the end; updates users.

        Value names are written into the node's proto only when the model is written. Imports the operator's domain if
        missing. Raises DomainError if the domain is not allowed, and EmissionError for an unknown operator.
        """
        if not self.by_op.get(node._op):
            admit(self, node)
        if "::" in node._op:
            self.model.foreign.append(node)
        node.stale = True
        if self.model.debug:
            for v in node.inputs:
                self.model.check_use(v, self, repr(node))
        self.place(node, before)
        constant = node._op == "Constant" and node.holds_array
        for i, v in enumerate(node.outputs):
            if v is not None:
                v.producer, v.index, v.graph, v.constant = node, i, self, constant
                if self.model.debug:
                    self.model.gone.pop(v, None)
        self.touch(node)
        return node

    def place(self, node: Node, before: Node | None = None) -> None:
        """Insert a node of a file, unchecked and unmarked; the producer of its outputs is set already."""
        assert node.graph is None
        node.graph = self
        self._put(node, before)
        self.size += 1
        self.by_op[node._op][node] = None
        for v in node.inputs:
            if v is not None:
                users = v.users
                users[node] = users[node] + 1 if node in users else 1
        if node.bodies:
            self.owners[node] = None
            for body in node.bodies.values():
                body.owner = node
        self.nodes_changed = True

    def _still_read(self, node: Node, value: Value) -> InvariantError:
        reader = repr(next(iter(value.users))) if value.users else "an output of the graph"
        return InvariantError(
            f"{self.model.name}: {self.path}: {node!r} was to be removed, and `{value.name}` is read by {reader}",
            "this is a bug in the pass: value.replace_all_uses_with(other) comes first",
        )

    def reads_itself(self, value: Value, other: Value) -> InvariantError:
        """Return the error for replacing `value` by `other`, where `other` is computed from `value`."""
        return InvariantError(
            f"{self.model.name}: {self.path}: `{value.name}` was to be replaced by `{other.name}`, "
            f"which is made of it: {other.producer!r} would read itself",
            "behind a node that stays, an interpreter emits: return self.op.Abs(super().call_operator(node, args))",
        )

    def remove(self, node: Node) -> None:
        """Remove an unread node, and the uses made by its bodies. Raises InvariantError if an output is still read."""
        assert node.graph is self
        # The references are cleared, so the memory is freed at once and not by the garbage collector.
        for v in node.outputs:
            if v is not None and v.producer is node:
                if v.users or v.output_count:
                    raise self._still_read(node, v)
                v.producer = None
                if self.model.debug:
                    self.model.gone[v] = f"{node!r} was removed"
        if node.bodies:
            for body in node.bodies.values():
                body.release()
            self.owners.pop(node, None)
        model = self.model
        self._take_out(node)
        node.graph = None
        self.size -= 1
        del self.by_op[node._op][node]
        self.nodes_changed = True
        self._drop_uses(node.inputs, node)
        model.version += 1
        model.forget(node)
        node.inputs, node.outputs, node._places = [], [], None

    def move_after(self, node: Node, place: Node) -> None:
        """Move `node` directly behind `place`; only the order changes."""
        self._take_out(node)
        self._put(node, place.next)
        self.nodes_changed = True
        self.model.version += 1

    def release(self) -> None:
        """Drop the nodes of a function or body that is removed, and their uses of outer values."""
        for node in list(self):
            for body in node.bodies.values():
                body.release()
            for v in node.inputs:
                if v is not None and node in v.users:
                    self.drop_use(v, node)
            node.graph = None  # the node was removed with its owner
            self.model.forget(node)
        for v in self.outputs:
            v.output_count -= 1

    def inline(self, body: Graph, given: Sequence[Value] = ()) -> list[Value]:
        """Move the nodes and initializers of `body` in front of its owner, in this scope. Returns the body's outputs.

        `given`: values to replace the body's inputs. All moved values get fresh names, since bodies must not redefine a
        name visible around them.
        """
        owner, fresh = body.owner, self.model.names.fresh
        assert owner is not None and owner.graph is self
        instead = dict(zip(body.inputs, given))
        for value, outer in instead.items():
            value.redirect_readers(outer)
            outer.learn(value)
        for value in body.initializers.values():
            value.rename(fresh(value.name))
            value.graph = self
            self.initializers[value.name] = value
        self.initializers_changed = self.initializers_changed or bool(body.initializers)
        for node in list(body):
            body._take_out(node)
            self._put(node, owner)
            node.graph = self
            self.by_op[node.op][node] = None
            if node.bodies:
                self.owners[node] = None
            for v in node.outputs:
                if v is not None:
                    v.rename(fresh(v.name))
                    v.graph = self
            self.touch(node)
        self.size += body.size
        results = body.outputs
        for v in results:
            v.output_count -= 1
        body.by_op.clear()
        body.initializers, body.owners, body.outputs, body.size = {}, {}, [], 0
        body.nodes_changed = self.nodes_changed = True
        return [instead.get(v, v) for v in results]

    def take_over(self, value: Value, node: Node, index: int = 0, *, removed: bool = False) -> None:
        """Make `node` the producer of `value`; name, users and role as graph output stay.

        O(1): readers do not change. The old producer gets a new, unread output if the operator requires it, unless the
        caller removes the producer next (`removed`).
        """
        self._vacate(value, removed)
        while len(node.outputs) <= index:
            node.outputs.append(None)
        if self.model.debug:
            if (taken := node.outputs[index]) is not None:
                self.model.gone[taken] = f"`{value.name}` took its place"
            self.model.gone.pop(value, None)
        node.outputs[index] = value
        node.stale = True
        value.producer, value.index = node, index
        value.constant = node.holds_array
        value.array = None
        self.touch(node)
        for user in value.users:
            self.model.mark(user)

    def _vacate(self, value: Value, removed: bool) -> None:
        """Replace output `value` of its producer by a new, unread value; by None if optional or `removed` next."""
        node = value.producer
        if node is None or node.outputs[value.index] is not value:
            return
        left = None
        if not removed and node.graph is not None and not self.model.may_lack(node, value.index):
            left = Value(self.model.names.fresh(value.name, "_unread"), node.graph, node, value.index)
            left.learn(value)
            left.constant = node.holds_array
        node.outputs[value.index] = left
        node.stale = True

    def check_type(self, old: Value, new: Value) -> None:
        """Raise MistypedError if the known type of `new` differs from the type of `old`, the value to replace.

        Shapes are compared only in debug mode, since files may declare wrong ones.
        """
        if told := contradiction(old, new.known_dtype, new.known_shape if self.model.debug else None):
            raise refusal(self, old.producer, told, kind=MistypedError)

    def _copy(self, value: Value, of: Node | None) -> Value:
        """Return an Identity of `value`, described as the node `of`, behind the producer of `value` or behind `of`."""
        place = value.producer if value.graph is self and value.producer is not None else of
        node = Node(make_node("Identity", "", "", {}), [value], [])
        if of is not None:
            describe_as(node.proto, of.proto)
        copy = Value(self.model.names.fresh(value.name, "_Identity"), self)
        copy.unasked = True
        node.outputs.append(copy)
        self.insert(node, place.next if place is not None else None)
        return copy

    def give_out(self, output: Value, value: Value) -> Value:
        """Make graph output `output`, of unchanged name, carry `value`. Returns the value to read from now on.

        The result is `output`, or `value` if an Identity computes `output` from `value`.
        """
        old = output.producer
        if old is None:
            return value  # an input or initializer of the same content: no node can produce it
        kept = self.needs_copy(value)
        given = self._copy(value, old) if kept else value
        assert given.producer is not None
        given.redirect_readers(output)
        output.learn(given)
        self.take_over(output, given.producer, given.index)
        return value if kept else output

    def rename(self, value: Value, hint: str) -> None:
        """Give a value produced by this scope a fresh name: the present name and `hint`."""
        value.rename(self.model.names.fresh(value.name, hint))
        self.nodes_changed = True
        self.model.version += 1

    def drop_input(self, index: int) -> None:
        """Remove an unused input of this function or body. Its callers still pass the argument."""
        assert not self.inputs[index].is_used
        del self.inputs[index]
        if not self.is_function:
            del self.proto.input[index]
        self.model.version += 1

    def drop_output(self, index: int) -> None:
        """Remove an output of this function or body. Its callers still name the result."""
        self.outputs.pop(index).output_count -= 1
        if not self.is_function:
            del self.proto.output[index]
        self.model.version += 1

    def give(self, index: int, value: Value) -> None:
        """Set output `index` of this body to `value`, through an Identity for a value of another scope or an output."""
        assert self.owner is not None
        if value.graph is not self or value.is_output:
            value = self._copy(value, self.last)
        self.outputs[index].output_count -= 1
        self.outputs[index] = value
        value.output_count += 1
        self.model.version += 1

    def constant(self, array: ArrayLike, hint: str = "constant", before: Node | None = None) -> Value:
        """Return a new constant of this scope with the data `array`, named after `hint`.

        `before`: position of the Constant node, in a scope without initializers. A Python float becomes float64, as in
        numpy.
        """
        value = Value("", self)
        value.array = array if isinstance(array, np.ndarray) else np.asarray(array)
        self.attach_constant(value, hint, before)
        return value

    def attach_constant(self, value: Value, hint: str, before: Node | None = None) -> None:
        """Make a detached value, whose array is set, a constant of this scope under a fresh name.

        The constant is an initializer, or a Constant node before `before` in a scope without initializers.
        """
        made = value.array
        array = contiguous(made)
        if array is not made:
            value.array = array
        value.name = self.model.names.fresh(hint)
        value.graph, value.constant = self, True
        value.dtype, value.shape = element_type(array), array.shape
        if self.holds_initializers:
            self.initializers[value.name] = value
            self.initializers_changed = True
            self.model.version += 1
        else:
            self.insert(Node(make_node("Constant", "", "", {"value": array}), [], [value]), before)

    def add_initializer(self, value: Value, *, removed: bool = False) -> None:
        """Turn an existing value, whose array or tensor is set, into an initializer of this scope.

        The producer loses the output, or is removed next by the caller (`removed`); an outer scope the initializer.
        """
        self._vacate(value, removed)
        if self.model.debug:
            self.model.gone.pop(value, None)
        value.graph.initializers.pop(value.name, None)
        value.graph.initializers_changed = self.initializers_changed = True
        self.initializers[value.name] = value
        value.producer, value.index, value.graph = None, 0, self
        self.know(value)
        self.model.version += 1

    def know(self, value: Value) -> None:
        """Mark `value`, whose array or tensor is set, as constant; its producer stays."""
        if not value.constant:
            value.constant = True
            for user in value.users:
                self.model.mark(user)

    def remove_initializer(self, *values: Value) -> None:
        """Remove unread initializers."""
        for value in values:
            assert not value.users and not value.output_count
            del self.initializers[value.name]
            if self.model.debug:
                self.model.gone[value] = "it was removed from the initializers"
        self.initializers_changed = True
        self.model.version += 1
