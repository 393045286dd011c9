"""Equal nodes and equal constants become one."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnxopt.analysis.constants import MAX_BYTES, REFUSED, Contents, first_like, is_refused, is_told_more, may_train
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.model import functions_made_of, inner_scopes
from onnxopt.graph.node import Node
from onnxopt.graph.schema import is_deterministic
from onnxopt.operators import COMMUTATIVE
from onnxopt.pipeline import GraphPass, ModelPass, PassContext, PassInfo, option, register
from onnxopt.proto.messages import is_external, tensor_bytes

Seen = MutableMapping[Hashable, Node | None]
Inside = dict[Value, int]  # numbers for values computed in bodies

_MAX_HANDED: Final = 1 << 18  # bytes; a node that reads more takes far longer than handing the value to a body

# Without Max and Min: of 0 and -0 they may return either.
_COMMUTATIVE = COMMUTATIVE - {"Max", "Min"}


@register
class CommonSubexpressions(ModelPass):
    """Merges equal nodes, f(x) and f(x), in the common scope; a body reads results of the outer scope.

    Applies when: operator, inputs by position (in any order for commutative operators), attributes and bodies are
    equal.
    Constants are equal by type, dims and bytes, so a network exported twice is merged in a single run. Calls of the
    model's own functions are included if their operators are.
    Keeps: both nodes if both are outputs, two separate values of the interface; each body's own outputs.
    Not done: random and unknown operators, Dropout and BatchNormalization in training, also inside a body.
    """

    info = PassInfo("common-subexpressions", opt_level=1)

    def run(self, model: Model, ctx: PassContext) -> None:
        merging = _Merging(ctx, functions_made_of(model, _gives_the_same))
        for root in (*model.functions.values(), model.graph):
            if not root.skipped:
                merging.merge(root, {})


class _Merging:
    """A run over all scopes. `functions`: deterministic functions."""

    def __init__(self, ctx: PassContext, functions: frozenset[str]) -> None:
        self.ctx = ctx
        self.functions = functions
        self.contents = Contents()
        self.bodies: dict[Node, Hashable] = {}  # keys of compared bodies
        self.was: dict[Value, Value] = {}  # outputs that replaced another value: readers keep the other's key
        self.alone: dict[Node, Seen] = {}  # not examined: no other node reads the same values

    def merge(self, graph: Graph, seen: Seen) -> None:
        pure = {op for op in graph.by_op if self._is_pure(graph, op)}
        for node in graph:
            if node.bodies:
                for body in node.bodies.values():
                    if not body.skipped:
                        self.merge(body, ChainMap({}, seen))  # values computed in a body are not visible outside
            if node._op in pure:
                if _reads_alone(node):
                    self.alone[node] = seen
                else:
                    self._merge_node(node, seen)

    def _merge_node(self, node: Node, seen: Seen) -> None:
        """Merge a node into the first equal node, if any."""
        if not node.is_used or may_train(node):
            return
        told = (self._form, self._content, self._bodies_of) if node.bodies else (self._form, self._content)
        first = first_like(node, seen, told)
        if first is node or not _replaceable(node, first):
            return
        why = REFUSED if any(_is_refused(a, b) for a, b in _pairs(node, first)) else ""
        if self.ctx.spend("merged", at=node, unless=why):
            self._replace(node, first)

    def _is_pure(self, graph: Graph, op: str) -> bool:
        """Whether an operator or function is deterministic outside of training; nodes are checked for training mode."""
        if op in self.functions:
            return not any(node.proto.overload for node in graph.by_op[op])
        return graph.knows(op) and is_deterministic(op)

    def _replace(self, node: Node, first: Node) -> None:
        graph = node.scope
        for a, b in _pairs(node, first):
            reader = next(iter(b.users)) if len(b.users) == 1 else None
            if a.replace_all_uses_with(b) is a:  # an output keeps its name, and the first node produces it
                self.was[a] = b
            if reader in self.alone:  # an equal node may exist now
                self._merge_node(reader, self.alone.pop(reader))
        graph.remove(node)

    def _form(self, node: Node) -> Hashable:
        """Return a coarse key of a node: operator and inputs, constants ignored."""
        op, inputs = node.op, [None if v is None or v.constant else v for v in node.inputs]
        if self.was:
            inputs = [v and self.was.get(v, v) for v in inputs]
        return op, frozenset(inputs) if op in _COMMUTATIVE else tuple(inputs)

    def _content(self, node: Node) -> Hashable:
        return self._key(node, {})

    def _key(self, node: Node, inside: Inside) -> Hashable:
        """Return the full key of a node without its bodies."""
        if node.op == "Constant" and node.output.constant:
            return node.op, id(self.contents.first_like(node.output))
        attributes = sorted(
            (a.name, a.SerializeToString(deterministic=True))
            for a in node.proto.attribute[:]
            if not a.HasField("g") and not a.graphs
        )
        inputs = self._values(node.inputs, inside)
        if len(inputs) == 2 and node.op in _COMMUTATIVE:
            inputs.sort()
        return node.op, tuple(inputs), len(node.outputs), tuple(attributes)

    def _values(self, values: Sequence[Value | None], inside: Inside) -> list[int]:
        told = [v and self.was.get(v, v) for v in values] if self.was else values
        like = self.contents.first_like
        return [inside[v] if v in inside else id(like(v) if v is not None and v.constant else v) for v in told]

    def _bodies_of(self, node: Node) -> Hashable:
        """Return the key of a node's bodies; the node itself if they must not be merged."""
        found = self.bodies.get(node)
        if found is None:
            scopes = [s for body in node.bodies.values() for s in inner_scopes(body)]
            may_go = not any(s.skipped for s in scopes) and all(
                self._is_pure(s, op) and not any(map(may_train, nodes)) for s in scopes for op, nodes in s.by_op.items()
            )
            found = self.bodies[node] = self._bodies(node, {}) if may_go else node
        return found

    def _bodies(self, node: Node, inside: Inside) -> tuple[Hashable, ...]:
        return tuple((name, self._body(body, inside)) for name, body in sorted(node.bodies.items()))

    def _body(self, body: Graph, inside: Inside) -> Hashable:
        """Return the key of a body: nodes in order and outputs; computed values are numbered below any id."""
        for v in body.inputs:
            inside[v] = -1 - len(inside)
        nodes: list[Hashable] = []
        for node in body:
            made = [(i, v) for i, v in enumerate(node.outputs) if v is not None]
            nodes.append((self._key(node, inside), self._bodies(node, inside), tuple(i for i, _ in made)))
            for _, v in made:
                inside[v] = -1 - len(inside)
        return len(body.inputs), tuple(nodes), tuple(self._values(body.outputs, inside))


def _gives_the_same(graph: Graph, op: str) -> bool:
    """Whether nodes of a standard operator depend on their inputs only."""
    return graph.knows(op) and is_deterministic(op) and not any(map(may_train, graph.by_op[op]))


def _reads_alone(node: Node) -> bool:
    """Whether some input of the node has no other reader, so that no equal node can exist."""
    for v in node.inputs:
        if v is not None and len(v.users) == 1 and not v.constant:
            return True
    return False


def _pairs(node: Node, first: Node) -> list[tuple[Value, Value]]:
    """Return the outputs of both nodes in pairs."""
    return [(a, b) for a, b in zip(node.outputs, first.outputs) if a is not None and b is not None]


def _is_refused(a: Value, b: Value) -> bool:
    """Whether a runtime would reject the model after the replacement, with more known outside of a body."""
    if a.is_output:
        return is_told_more(b, a)
    return is_refused(a, b) if a.graph is not b.graph else is_told_more(a, b)


def _replaceable(node: Node, first: Node) -> bool:
    """Whether `first` has a distinct value for every used output of `node`. Graph outputs cannot share a value."""
    used = [(a, b) for a, b in zip(node.outputs, first.outputs) if a is not None and a.is_used]
    return not any(b is None or (a.is_output and (b.is_output or node.graph != first.graph)) for a, b in used)


@register
@dataclass(eq=False, repr=False)
class DeduplicateConstants(GraphPass):
    """Merges initializers of equal type, shape and bytes, and stores each in the innermost scope around its readers.

    Equal ones of bodies (both branches of an If) move to the outer graph. One read in a single body moves into the
    body: runtimes hand every outer value to every iteration of a Loop.
    Keeps: inputs, outputs, and constants named by annotations; external data, which is not read; small constants of
    bodies; large ones around bodies. A function cannot hold or read initializers.
    """

    info = PassInfo("deduplicate-constants", opt_level=1)
    max_bytes: int = option(MAX_BYTES, "larger constants are not compared")
    max_copy: int = option(1 << 10, "each body may have its own of up to this many bytes")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        contents = Contents(self.max_bytes)
        for value in _read_alone(graph):
            kept = contents.first_like(value)
            if kept is not value and ctx.spend("duplicate_constant", at=value):
                value.replace_all_uses_with(kept)
                graph.remove_initializer(value)
        if graph.owners and graph.holds_initializers:
            if graph.owner is None:
                self._share(graph, contents, ctx)
            _move_inwards(graph, ctx)

    def _share(self, graph: Graph, contents: Contents, ctx: PassContext) -> None:
        """Replace constants equal in two bodies, or in a body and `graph`, by a constant of `graph`."""
        outer: dict[Value, Value] = {}  # shared constants of `graph`, by first equal value
        for body in _bodies(graph):
            for value in _read_alone(body):
                if tensor_bytes(*value.constant_type()) <= self.max_copy:
                    continue
                first = contents.first_like(value)
                if first is value or not ctx.spend("duplicate_constant", at=value):
                    continue
                kept = first if first.graph is graph else outer.get(first)
                if kept is None:
                    kept = outer[first] = graph.constant(first.array, first.name)
                    _give_way(first, kept)
                _give_way(value, kept)


def _read_alone(graph: Graph) -> list[Value]:
    """Return the initializers that are only read: neither inputs nor outputs."""
    return [v for v in graph.initializers.values() if v.constant and v.users and not v.is_input and not v.output_count]


def _bodies(graph: Graph) -> Iterator[Graph]:
    """Yield nested bodies of operators that let them read outer values."""
    for owner in graph.owners:
        for body in owner.bodies.values():
            if not body.is_bound_by_name and not body.skipped:
                yield body
                yield from _bodies(body)


def _move_inwards(graph: Graph, ctx: PassContext) -> None:
    """Move constants of `graph` into the bodies that contain all their readers."""
    named = {annotation.tensor_name for annotation in graph.proto.quantization_annotation}
    for value in _read_alone(graph):
        body = _innermost(value)
        if body is graph or tensor_bytes(*value.constant_type()) > _MAX_HANDED:
            continue
        if value.name in named or (value.tensor is not None and is_external(value.tensor)):
            continue
        if ctx.spend("constant_into_body", at=value):
            value.tensor, value.stored = value.whole_tensor(), None
            body.add_initializer(value)


def _is_closed(scope: Graph) -> bool:
    return scope.skipped or scope.is_bound_by_name or not scope.holds_initializers


def _scopes_up_to(scope: Graph | None, outer: Graph) -> list[Graph]:
    """Return the scopes from `scope` to `outer`, the innermost first."""
    found = []
    while scope is not None and scope is not outer:
        found.append(scope)
        scope = scope.parent
    return [*found, outer]


def _innermost(value: Value) -> Graph:
    """Return the innermost scope around all readers of a value that passes may change and that holds initializers."""
    common: list[Graph] = []  # from the innermost to the scope of the value
    for user in value.users:
        scopes = _scopes_up_to(user.graph, value.graph)
        common = [s for s in common if s in scopes] if common else scopes
        if len(common) == 1:
            break
    closed = [i for i, s in enumerate(common[:-1]) if _is_closed(s)]
    return common[closed[-1] + 1 if closed else 0]


def _give_way(value: Value, kept: Value) -> None:
    scope = value.graph
    value.replace_all_uses_with(kept)
    scope.remove_initializer(value)
