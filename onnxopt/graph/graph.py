"""One scope of nodes: the main graph, a body of If/Loop/Scan, or a function's body."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from onnxopt.errors import InvariantError, MistypedError
from onnxopt.graph.emission import admit, contradiction, describe_as, make_call, refusal
from onnxopt.graph.node import Node
from onnxopt.graph.order import Order
from onnxopt.graph.schema import is_known
from onnxopt.graph.value import Value
from onnxopt.plaintext import counted
from onnxopt.protos import contiguous, element_type, make_node

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from onnx import FunctionProto, GraphProto

    from onnxopt.graph.model import Model


class Graph(Order):
    """Nodes in topological order, with an index by operator.

    All mutation goes through `make`, `insert`, `place`, `remove`, `move_after`, `inline`, `take_over`, `give_out`,
    `rename`, `drop_input`, `drop_output`, `give`, `constant`, `attach_constant`, `add_initializer`, `know` and
    `remove_initializer` here; `Node.op`, `Node.set_attr`, `Node.adopt`, `Node.set_input`, `Node.remove_input` and
    `Node.remove_output`; `Value.rename`, `Value.redirect_readers` and `Value.replace_all_uses_with`; and
    `Model.add_function`. Each keeps users, index and version right and tells the model's watcher which nodes to look at
    again. Each node gives out what its operator has to, and no scope gives out one value twice, unless its file did.
    """

    def __init__(self, model: Model, proto: GraphProto | FunctionProto, owner: Node | None, label: str) -> None:
        super().__init__()
        self.model = model
        self.proto = proto
        self.owner = owner  # the node whose body this is
        self.label = label  # "then_branch", or the function's name, or "main"
        self.is_function = not hasattr(proto, "initializer")
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.initializers: dict[str, Value] = {}
        self.by_op: defaultdict[str, dict[Node, None]] = defaultdict(dict)
        self.owners: dict[Node, None] = {}  # nodes with bodies
        self.size = 0
        self.opsets: dict[str, int] | None = None  # a function has its own
        self.skipped = False  # marked `onnxopt.skip` in its metadata, or inside a scope that is: passes leave it alone
        self.nodes_changed = False
        self.initializers_changed = False
        self.deferred: list[Value] = []  # initializers that were written without their data
        self.pinned: set[Value] = set()  # initializers that the file's annotations name

    # -- reading -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.size

    @property
    def parent(self) -> Graph | None:
        return self.owner.graph if self.owner is not None else None

    @property
    def root(self) -> Graph:
        """The main graph, or the function, around this scope."""
        graph = self
        while graph.owner is not None and graph.owner.graph is not None:
            graph = graph.owner.graph
        return graph

    @property
    def path(self) -> str:
        """`main / If "if_3" / then_branch`."""
        if self.owner is None or self.owner.graph is None:
            return self.label
        name = f' "{self.owner.name}"' if self.owner.name else ""
        return f"{self.owner.graph.path} / {self.owner.op}{name} / {self.label}"

    def opset(self, domain: str = "") -> int:
        """The version of `domain` in force here; 0 when it is not imported."""
        opsets = (self if self.owner is None else self.root).opsets or self.model.opsets
        return opsets.get("" if domain == "ai.onnx" else domain, 0)

    def is_pure(self, node: Node) -> bool:
        """May the node go when nothing reads it? What is not made of operators of the standard may have effects."""
        return self.knows(node._op) or (not node.proto.overload and self.model.is_pure_function(node.op))

    def knows(self, op: str) -> bool:
        """Does the standard define this operator, in the version in force here?"""
        return is_known(op, self.opset(op.rpartition("::")[0]))

    @property
    def holds_initializers(self) -> bool:
        """Functions have none; before IR 4 one must also be an input, which a body cannot add."""
        return not self.is_function and (self.owner is None or self.model.ir_version >= 4)

    @property
    def is_bound_by_name(self) -> bool:
        """Are its inputs and outputs known outside by their names? Those of the model and of functions are. Those of a
        body may be, unless the standard defines its operator: BeamSearch of com.microsoft looks for `input_ids`."""
        return self.owner is None or self.owner.graph is None or not self.owner.graph.knows(self.owner.op)

    def walk(self) -> Iterator[Node]:
        """Nodes of this scope and of all bodies inside, owners before their bodies."""
        for node in self:
            yield node
            for body in node.bodies.values():
                yield from body.walk()

    def __str__(self) -> str:
        """The graph as text: one line a node, types where they are known."""
        from onnxopt.graph.text import graph_text

        return graph_text(self)

    def __repr__(self) -> str:
        return f"Graph({self.path}, {counted(self.size, 'node')})"

    # -- changing ----------------------------------------------------------------------------------------

    def touch(self, node: Node) -> None:
        self.model.version += 1
        self.model.mark(node)

    def drop_use(self, value: Value, node: Node) -> None:
        """`node` reads `value` once less."""
        if value.users[node] == 1:
            self._drop_uses((value,), node)
        else:
            value.users[node] -= 1

    def _drop_uses(self, values: Iterable[Value | None], node: Node) -> None:
        """`node` does not read these any more; the last reader left may now be fusable with the producer."""
        for value in values:
            if value is not None:
                users = value.users
                users.pop(node, None)
                if not users:
                    if value.tensor is not None:
                        value.forget()
                elif len(users) == 1:
                    self.model.mark(next(iter(users)))

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
        """Insert a new call of `op` (`Conv`, `com.microsoft::Gelu`) before a node, or at the end.

        Its result, or with several `outputs` a tuple of them. Raises EmissionError for what the operator's definition
        does not allow, DomainError where its domain may not enter.
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
        """Insert a node that a pass made (and its bodies) before another, or at the end; its inputs gain it as user.
        The names of what it reads and makes are written when the model is.

        The domain of its operator is imported where it was not. Raises DomainError where it may not enter, and
        EmissionError for an operator that there is not.
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
        """Insert a node as it is, which a file has: nobody has looked at it yet, and its results know it."""
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
        """What is said where `other` is to take the place of a value of which it is made."""
        return InvariantError(
            f"{self.model.name}: {self.path}: `{value.name}` was to be replaced by `{other.name}`, "
            f"which is made of it: {other.producer!r} would read itself",
            "behind a node that stays, an interpreter emits: return self.op.Abs(super().call_operator(node, args))",
        )

    def remove(self, node: Node) -> None:
        """Remove a node nobody reads; uses made by its bodies go with it. Raises InvariantError if somebody does."""
        assert node.graph is self
        # No cycle is left behind: what only this node kept goes now, not when a collector finds it.
        for v in node.outputs:
            if v is not None and v.producer is node:
                if v.users or v.output_count:
                    raise self._still_read(node, v)
                v.producer = None
                if self.model.debug:
                    self.model.gone[v] = f"{node!r} was removed"
        if node.bodies:
            for body in node.bodies.values():
                body._release()
            self.owners.pop(node, None)
        model = self.model
        self._take_out(node)
        node.graph = None
        self.size -= 1
        del self.by_op[node._op][node]
        model.marked.pop(node, None)
        self.nodes_changed = True
        self._drop_uses(node.inputs, node)
        model.version += 1
        if model.watch is not None:
            model.watch(node)
        node.inputs, node.outputs, node._places = [], [], None

    def move_after(self, node: Node, place: Node) -> None:
        """Put `node` right behind `place`; only the order changes."""
        self._take_out(node)
        self._put(node, place.next)
        self.nodes_changed = True
        self.model.version += 1

    def _release(self) -> None:
        """Drop every use that this scope makes of values outside it, its owner being removed."""
        for node in list(self):
            for body in node.bodies.values():
                body._release()
            for v in node.inputs:
                if v is not None and node in v.users:
                    self.drop_use(v, node)
            node.graph = None  # removed with its owner
            self.model.marked.pop(node, None)
        for v in self.outputs:
            v.output_count -= 1

    def inline(self, body: Graph, given: Sequence[Value] = ()) -> list[Value]:
        """Move the nodes and initializers of `body` in front of its owner, which is a node of this scope, and return
        what the body gave out. `given`: what takes the place of its inputs. Names of values become fresh: what is
        visible here must not be defined in a body again."""
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
        """`node` produces `value` (object, name, users, graph output) in place of its producer.

        O(1): no reader changes. Its producer makes one in its place that nothing reads, where the operator has to, and
        the caller does not remove it next (`removed`).
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
        """What makes `value` makes another in its place, which nothing reads, or none, where the operator need not."""
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
        """Raise MistypedError where `new` is to take the place of `old`, and is of another type, as far as both are
        known. Sizes count in debug mode: files may say wrong ones."""
        if told := contradiction(old, new.known_dtype, new.known_shape if self.model.debug else None):
            raise refusal(self, old.producer, told, kind=MistypedError)

    def needs_copy(self, value: Value) -> bool:
        """Does this scope need an Identity to give out `value` under another name? It has to make it, and give it out
        under no name yet: runtimes lose one of two outputs that are one value."""
        return value.producer is None or value.graph is not self or value.is_output

    def _copy(self, value: Value, of: Node | None) -> Value:
        """An Identity of `value`, called as the node `of` is, right behind what makes `value`, or behind `of`."""
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
        """What lists `output`, which keeps its name, gives out what `value` is. Returns the value to read from now on:
        `output`, or `value` where an Identity makes `output` of it."""
        old = output.producer
        if old is None:
            return value  # an input, or an initializer: it is the same, and nothing can make it
        kept = self.needs_copy(value)
        given = self._copy(value, old) if kept else value
        assert given.producer is not None
        given.redirect_readers(output)
        output.learn(given)
        self.take_over(output, given.producer, given.index)
        return value if kept else output

    def rename(self, value: Value, hint: str) -> None:
        """Give what a node of this scope makes a fresh name like its own and `hint`."""
        value.rename(self.model.names.fresh(value.name, hint))
        self.nodes_changed = True
        self.model.version += 1

    def drop_input(self, index: int) -> None:
        """This function, or body, takes one input less, which nothing in it reads; whoever calls it still gives it."""
        assert not self.inputs[index].is_used
        del self.inputs[index]
        if not self.is_function:
            del self.proto.input[index]
        self.model.version += 1

    def drop_output(self, index: int) -> None:
        """This function, or body, gives out one value less; its calls still name it."""
        self.outputs.pop(index).output_count -= 1
        if not self.is_function:
            del self.proto.output[index]
        self.model.version += 1

    def give(self, index: int, value: Value) -> None:
        """This body gives out `value` in place of another: an Identity of it where another scope makes it, or it is
        given out already."""
        assert self.owner is not None
        if value.graph is not self or value.is_output:
            value = self._copy(value, self.last)
        self.outputs[index].output_count -= 1
        self.outputs[index] = value
        value.output_count += 1
        self.model.version += 1

    def constant(self, array: ArrayLike, hint: str = "constant", before: Node | None = None) -> Value:
        """A new constant of this scope holding `array`, called `hint` or like it. `before`: where a scope that cannot
        hold constants has a node for it. A float of Python's is float64, as for numpy."""
        value = Value("", self)
        value.array = array if isinstance(array, np.ndarray) else np.asarray(array)
        self.attach_constant(value, hint, before)
        return value

    def attach_constant(self, value: Value, hint: str, before: Node | None = None) -> None:
        """Make a detached value, whose array is set, a constant of this scope under a fresh name.

        It becomes an initializer, or where a scope cannot hold one a Constant node before `before`.
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
        """Make an existing value, whose array or tensor is set, an initializer of this scope; what made it makes it no
        more, or the caller removes that next (`removed`)."""
        self._vacate(value, removed)
        if self.model.debug:
            self.model.gone.pop(value, None)
        self.initializers[value.name] = value
        value.producer, value.index, value.graph = None, 0, self
        self.know(value)
        self.initializers_changed = True
        self.model.version += 1

    def know(self, value: Value) -> None:
        """`value`, whose array or tensor is set, is a constant from now on, whoever makes it."""
        if not value.constant:
            value.constant = True
            for user in value.users:
                self.model.mark(user)

    def remove_initializer(self, *values: Value) -> None:
        """Remove constants that nobody reads."""
        initializers = self.initializers
        for value in values:
            assert not value.users and not value.output_count
            del initializers[value.name]
            if self.model.debug:
                self.model.gone[value] = "it was removed from the initializers"
        self.initializers_changed = True
        self.model.version += 1
