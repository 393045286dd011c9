"""The same operator on the same inputs gives the same result: compute it once."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, MutableMapping, Sequence

from onnxopt.analysis.purity import may_train
from onnxopt.analysis.refusal import REFUSED, is_refused, is_told_more
from onnxopt.analysis.weights.contents import Contents, first_like
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.model import functions_made_of, inner_scopes
from onnxopt.graph.node import Node
from onnxopt.graph.schema import is_deterministic
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, register
from onnxopt.rewriting.pattern import COMMUTATIVE

Seen = MutableMapping[Hashable, Node | None]
Inside = dict[Value, int]  # numbers for what the bodies of a node compute

# Max and Min are not: of 0 and -0 they hand on the one or the other.
_COMMUTATIVE = COMMUTATIVE - {"Max", "Min"}


@register
class CommonSubexpressions(ModelPass):
    """f(x) and f(x) are one node, in the scope that holds both; a body reads what the scope around it computed before.

    Applies when: operator, inputs by position (of two that commute, in any order), all attributes and bodies are equal.
    Constants are equal by type, dims and bytes, so that a network that was exported twice is one after one run.
    Calls of the model's own functions too, where these are made of such operators.
    Keeps: both where both are outputs, which are two values by interface; what a body hands out is its own.
    Not done: random and unknown operators, Dropout and BatchNormalization in training, also in a body.
    """

    info = PassInfo("common-subexpressions", opt_level=1)

    def run(self, model: Model, ctx: PassContext) -> None:
        merging = _Merging(ctx, functions_made_of(model, _gives_the_same))
        for root in (*model.functions.values(), model.graph):
            if not root.skipped:
                merging.merge(root, {})


class _Merging:
    """One run over all scopes. `functions`: those that give the same each time."""

    def __init__(self, ctx: PassContext, functions: frozenset[str]) -> None:
        self.ctx = ctx
        self.functions = functions
        self.contents = Contents()
        self.bodies: dict[Node, Hashable] = {}  # what those that were compared compute
        self.was: dict[Value, Value] = {}  # outputs that took another's place: readers were told apart by that one
        self.alone: dict[Node, Seen] = {}  # not looked at: no other node reads what these read

    def merge(self, graph: Graph, seen: Seen) -> None:
        pure = {op for op in graph.by_op if self._is_pure(graph, op)}
        for node in graph:
            if node.bodies:
                for body in node.bodies.values():
                    if not body.skipped:
                        self.merge(body, ChainMap({}, seen))  # what a body computes is not seen outside
            if node._op in pure:
                if _reads_alone(node):
                    self.alone[node] = seen
                else:
                    self._merge_node(node, seen)

    def _merge_node(self, node: Node, seen: Seen) -> None:
        """Of those that are alike the first is the one that is kept."""
        if not node.is_used or may_train(node):
            return
        told = (self._form, self._content, self._bodies_of) if node.bodies else (self._form, self._content)
        first = first_like(node, seen, told)
        if first is node or not _replaceable(node, first):
            return
        if any(_is_refused(a, b) for a, b in _pairs(node, first)):
            self.ctx.decline("merged", REFUSED, repr(node))
        elif self.ctx.spend("merged", at=node):
            self._replace(node, first)

    def _is_pure(self, graph: Graph, op: str) -> bool:
        """Is it deterministic, or a function of such? Nodes that may train are looked at one by one."""
        if op in self.functions:
            return not any(node.proto.overload for node in graph.by_op[op])
        return graph.knows(op) and is_deterministic(op)

    def _replace(self, node: Node, first: Node) -> None:
        graph = node.graph
        assert graph is not None
        for a, b in _pairs(node, first):
            reader = next(iter(b.users)) if len(b.users) == 1 else None
            if a.replace_all_uses_with(b) is a:  # an output's name stays, and the first makes it
                self.was[a] = b
            if reader in self.alone:  # no longer: what comes may be like it
                self._merge_node(reader, self.alone.pop(reader))
        graph.remove(node)

    def _form(self, node: Node) -> Hashable:
        """What equal nodes have in common at least: operator and inputs, whatever the constants hold."""
        op, inputs = node.op, [None if v is None or v.constant else v for v in node.inputs]
        if self.was:
            inputs = [v and self.was.get(v, v) for v in inputs]
        return op, frozenset(inputs) if op in _COMMUTATIVE else tuple(inputs)

    def _content(self, node: Node) -> Hashable:
        return self._key(node, {})

    def _key(self, node: Node, inside: Inside) -> Hashable:
        """What makes a node equal to another, but for its bodies."""
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
        told = (v and self.was.get(v, v) for v in values)
        return [inside[v] if v in inside else id(v and self.contents.first_like(v)) for v in told]

    def _bodies_of(self, node: Node) -> Hashable:
        """What makes its bodies equal to another's; the node itself where they must not be merged."""
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
        """Its nodes in order and what it gives out; what it computes goes by numbers, which are below any id."""
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
    """Is what these nodes of the standard give a matter of their inputs only?"""
    return graph.knows(op) and is_deterministic(op) and not any(map(may_train, graph.by_op[op]))


def _reads_alone(node: Node) -> bool:
    """Does no other node read one of the values that this one reads?"""
    for v in node.inputs:
        if v is not None and len(v.users) == 1 and not v.constant:
            return True
    return False


def _pairs(node: Node, first: Node) -> list[tuple[Value, Value]]:
    """What both make."""
    return [(a, b) for a, b in zip(node.outputs, first.outputs) if a is not None and b is not None]


def _is_refused(a: Value, b: Value) -> bool:
    """Would a runtime refuse the model if one took the other's place? Outside of a body it may know more."""
    if a.is_output:
        return is_told_more(b, a)
    return is_refused(a, b) if a.graph is not b.graph else is_told_more(a, b)


def _replaceable(node: Node, first: Node) -> bool:
    """Has all that is read of `node` one value of `first`? Of two that are outputs, each is its own."""
    for a, b in zip(node.outputs, first.outputs):
        if a is not None and a.is_used and (b is None or (a.is_output and (b.is_output or node.graph != first.graph))):
            return False
    return True
