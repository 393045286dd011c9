"""Rewrites regions of nodes, and the movers at their border, to work on values in a view of their axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Final, Generic, TypeVar

from onnxopt.analysis import types
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import REDUCTIONS
from onnxopt.rewriting.axes import Turned, View, passes
from onnxopt.rewriting.compositions import built, fewest
from onnxopt.rewriting.index_maps import Seen
from onnxopt.rewriting.index_plans import Step
from onnxopt.rewriting.index_steps import VIEWS
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.matcher import Bindings
from onnxopt.rewriting.renaming import constant_operand, rename
from onnxopt.rewriting.replace import insert, remove_dead
from onnxopt.rewriting.rule import Declined, listed_axes

_MAX_READERS: Final = 4  # readers of a mover searched for an operator that it stays next to
T = TypeVar("T", Node, Value)


class End(Generic[T]):
    """An end of a region: an outside value, an outside reader, or a result needed in its original form.

    saved: nodes saved. write: for an outside value, inserts its computation in the view before the given node; for a
    reader or result, connects the given value. Both return the value in the view, perhaps renamed to a graph output.
    moved: additional elements moved at run time. moves: the operators written, if these do not compute sizes.
    """

    def __init__(self, saved: int, write: Callable[[T], Value], moved: float = 0.0, moves: Moves | None = None) -> None:
        self.saved, self.moved, self.moves = saved, moved, moves
        self.write: Callable[[T], Value] = write


@dataclass(eq=False, repr=False)
class Moves:
    """The fewest operators, on `source`, for a view and the outside `nodes` next to it, last first."""

    source: Value
    nodes: Sequence[Node]
    steps: Sequence[Step]
    saved: int
    moved: float  # additional elements moved


class Relayout:
    """Nodes, in order, to be moved into a view. At each end stand the fewest operators for the view and the movers
    next to it.

    After `look`: `saved` and `moved` are sums over all ends; `is_possible`: each end can be written.
    """

    suffix = "_seen"  # suffix of new value names

    def __init__(self, graph: Graph, nodes: Sequence[Node], view: View) -> None:
        self.graph, self.view = graph, view
        self.passing = {n: p for n in nodes if (p := passes(n, view)) is not None}
        if len(self.passing) < len(nodes):  # a region is changed as a whole
            self.passing = {}
        self.nodes = list(self.passing)
        self.inside = set(self.nodes)
        self.operands = {n: p.seen for n, p in self.passing.items()}
        self.fewer = set[Node]()  # nodes whose results have fewer axes: a permutation leaves them outside the view
        is_turned = isinstance(view, Turned)
        if is_turned:
            self.fewer.update([n for n, p in self.passing.items() if len(p.axes.made) < p.axes.rank])
        made = {v: None for n in self.nodes if n not in self.fewer for v in n.outputs if v is not None}
        for n, (axes, seen, _) in self.passing.items() if is_turned else ():
            if len(seen) < len(axes.data):  # a one-element value needs no permutation to be in the view
                self.operands[n] = [v for v in axes.data if v in seen or v in made]
        read = dict.fromkeys([v for operands in self.operands.values() for v in operands])
        self.entering = [v for v in read if v.producer not in self.inside]
        # the results read outside the region, or outside the view, with these readers, and the outputs
        self.leaving = {v: users for v in made if (users := self._outside(v)) or v.is_output}
        self._movers: dict[tuple[Value, Node | None], list[Node]] = {}
        self.bare: dict[tuple[Shape | None, bool], list[Step] | None] = {}  # operators for the view alone, by dims

    def _outside(self, v: Value) -> list[Node]:
        return [u for u in v.users if u not in self.inside or v not in self.operands[u]]

    def look(self) -> None:
        """Collect the ends and sum up their costs."""
        self.ends: dict[Value, End[Node]] = {}
        self.exits: dict[Value, list[End[Value]]] = {}
        found: list[End[Node] | End[Value] | None] = []
        for v in self.entering:
            end = self.enters(v)
            found.append(end)
            if end is not None:
                self.ends[v] = end
        for v, users in self.leaving.items():
            exits = self.exits[v] = [e for u in users if (e := self.leaves(v, u)) is not None]
            if v.is_output or len(exits) < len(users):
                restored = self.restores(v)
                if restored is None:
                    found.append(None)
                else:
                    exits.append(restored)
            found += exits
        self.all_ends = [e for e in found if e is not None]
        self.is_possible = None not in found
        self.saved, self.moved = sum([e.saved for e in self.all_ends]), sum([e.moved for e in self.all_ends])

    def enters(self, v: Value) -> End[Node] | None:
        """Return the end at an outside value; None if the value cannot be computed in the view."""
        alone = self.is_alone(v)
        moves = self._fewest(v, self.beside(v), alone)
        if moves is None or (moves.nodes and self.keeps(moves.source.producer)):
            return None
        if alone and not moves.nodes and self.is_reduced(v):
            moves.saved = 0

        def write(before: Node) -> Value:
            return self._build(moves, moves.source, self.new(v), before) if moves.steps else moves.source

        return End(moves.saved, write, moves.moved, moves)

    def leaves(self, v: Value, user: Node) -> End[Value] | None:
        """Return the end at an outside reader; None if the reader needs the original value."""
        nodes = self.beside(v, user)
        moves = self._fewest(v, nodes, True, True) if nodes else None
        if moves is None or len(moves.steps) > len(moves.nodes):
            return None
        return End(moves.saved, lambda new: self._leave(moves, new), moves.moved, moves)

    def restores(self, v: Value) -> End[Value] | None:
        """Return the end that restores a result for other readers and the graph output; None if impossible."""
        moves = self._fewest(v, [], False, True)
        if moves is None:
            return None

        def write(new: Value) -> Value:
            if not moves.steps:  # the value in the view may be an output already
                return v.replace_all_uses_with(new)
            assert v.producer is not None
            self._build(moves, new, v, v.producer)
            return new

        return End(moves.saved, write, moves.moved, moves)

    def keeps(self, node: Node | None) -> bool:
        """Return whether an operator that moves data must stay next to this node."""
        return False

    def is_reduced(self, v: Value) -> bool:
        """Return whether a reduction makes `v` that makes the value in the view with, or without, its axes kept."""
        node = v.producer
        axes = listed_axes(node) if node is not None and node.op in REDUCTIONS and node.graph is self.graph else None
        if node is None or axes is None:
            return False
        rank, dims = types.rank(node.inputs[0]) or 1, [*types.dims_of(v)]
        for a in sorted({a % rank for a in axes}, reverse=node.keeps_dims):
            dims[a : a + node.keeps_dims] = [] if node.keeps_dims else [1]
        return self.seen_dims(v) == tuple(dims)

    # -- operators at the border ---------------------------------------------------------------------------------

    def is_alone(self, v: Value) -> bool:
        """Return whether an outside value is read only in the region."""
        return not v.is_output and self.inside.issuperset(v.users)

    def beside(self, v: Value, user: Node | None = None) -> list[Node]:
        """Return the movers that make an outside value, or `user` and those behind it; searched once."""
        if (v, user) not in self._movers:
            self._movers[v, user] = self._nodes_before(v) if user is None else self._nodes_behind(v, user)
        return self._movers[v, user]

    def _nodes_before(self, v: Value) -> list[Node]:
        """Return up to two movers that make an outside value, last first; the others are read only by the last."""
        nodes: list[Node] = []
        most = 1 + self.is_alone(v)
        while len(nodes) < most:
            node = v.producer
            if node is None or not self._moves(node) or (nodes and v.only_user is not nodes[-1]):
                break
            source = node.inputs[0]
            if source is None or source.constant or source.producer in self.inside:
                break
            nodes.append(node)
            v = source
        return nodes

    def _nodes_behind(self, v: Value, user: Node) -> list[Node]:
        """Return up to two movers that read a result, last first; only the first may be read elsewhere."""
        nodes: list[Node] = []
        while len(nodes) < 2 and self._moves(user) and user.inputs[0] is v and v.users[user] == 1:
            made = user.output
            if any(map(self.keeps, islice(made.users, _MAX_READERS))) or (nodes and made in self.entering):
                break
            nodes.insert(0, user)
            if made.only_user is None or made in self.entering:
                break
            v, user = made, made.only_user
        return nodes

    def _moves(self, node: Node) -> bool:
        """Return whether a node outside the region moves data."""
        return node.op in VIEWS and node.graph is self.graph and node not in self.inside and not node.has_references

    def _fewest(self, v: Value, nodes: list[Node], alone: bool, back: bool = False) -> Moves | None:
        """Return the fewest operators for a view of `v` and as many of the nodes next to it as can be written with it;
        None if the view cannot be written.

        Nodes with other readers stay: a single operator may take their place here.
        """
        for count in range(len(nodes), -1, -1):
            moves = self._composed(v, nodes[len(nodes) - count :] if back else nodes[:count], alone, back)
            if moves is not None and (alone or not count or len(moves.steps) < 2):
                return moves
        return None

    def _composed(self, v: Value, nodes: list[Node], alone: bool, back: bool) -> Moves | None:
        """Return the operators in place of the nodes, with a view in front, or behind, and their costs; None if there
        are none, or if the target lacks one."""
        source, before, steps = v, list[str](), None
        if nodes:
            source, anchor = (v, nodes[0]) if back else (nodes[-1].operands[0], self.nodes[0])
            steps = _steps(anchor, source, nodes, self.view.seen(types.rank(v) or 0, back))
            before = _composed_alone(source, nodes) if alone and steps is not None else []
        else:
            steps = self.seen(v, back)
        ops = [s.op for s in steps or ()]
        if steps is None or not self.graph.model.without.keys().isdisjoint(ops):
            return None
        turns = ops.count("Transpose") - before.count("Transpose")
        return Moves(source, nodes, steps, len(before) - len(ops), turns and turns * _size(v))

    def seen(self, v: Value, back: bool) -> list[Step] | None:
        """Return the fewest operators for a view without nodes beside it; None if there are none."""
        dims = types.shape(v)
        if (dims, back) not in self.bare:
            told = self.view.steps(dims or (), back)
            self.bare[dims, back] = told or _steps(self.nodes[0], v, (), self.view.seen(len(dims or ()), back))
        return self.bare[dims, back]

    def _leave(self, moves: Moves, new: Value) -> Value:
        """Replace readers by the operators. Returns the present value for `new`, which may have been renamed."""
        last = moves.nodes[0]
        if moves.steps:
            self._build(moves, new, last.output, last)
        else:
            new = last.output.replace_all_uses_with(new)
        for node in moves.nodes:
            if not node.is_used:
                self.graph.remove(node)
        return new

    def _build(self, moves: Moves, x: Value, result: Value, before: Node) -> Value:
        """Insert the operators on `x`. Returns the result."""
        m = Match(Bindings(), before)
        insert(m, built(m, moves.steps, moves.nodes, x), result)
        return result

    def carry_out(self) -> None:
        """Replace each node by a copy that works in the view, and write the ends. Removes dead nodes at the border."""
        now: dict[Value, Value] = {}
        sources = [v.producer for v in self.entering]
        leaving = [v for n in self.nodes for v in n.outputs if v in self.leaving]
        for node in self.nodes:
            for v in self.operands[node]:
                if v not in now:  # first reader of an outside value
                    now[v] = self.ends[v].write(node)
            self._write(node, now)
        for v in leaving:
            for end in self.exits[v]:
                now[v] = end.write(now[v])
        for node in reversed(self.nodes):
            if node not in self.fewer:
                self.graph.remove(node)
        for source in sources:
            if source is not None:
                remove_dead(source)

    def _write(self, node: Node, now: dict[Value, Value]) -> None:
        axes, _, constants = self.passing[node]
        own = {v: now[v] for v in self.operands[node]}
        own.update((v, constant_operand(node, v, axes, self.view)) for v in constants)
        inputs = [None if v is None else own.get(v, v) for v in node.inputs]
        if node in self.fewer:
            for i, v in enumerate(inputs):
                if v is not node.inputs[i]:
                    node.set_input(i, v)
            rename(node, node, axes, self.view)
            return
        results = [self.new(v) for v in node.results]
        rename(self.graph.insert(node.copy(inputs, [*results]), node), node, axes, self.view)
        now.update(zip(node.results, results))

    def seen_dims(self, v: Value) -> Shape | None:
        dims = types.shape(v)
        return None if dims is None else self.view.dims(dims)

    def new(self, like: Value) -> Value:
        """Return a new value for `like` in the view, with type and shape."""
        value = Value(self.graph.model.names.fresh(like.name, self.suffix), self.graph)
        value.dtype, value.shape = types.dtype(like), self.seen_dims(like)
        return value


def _composed_alone(x: Value, nodes: Sequence[Node]) -> list[str]:
    """Return the fewest operators for nodes without a view, as names; the nodes' own if there are none."""
    steps = None
    if len(nodes) > 1 or types.same_shape(x, nodes[0].output):  # any other single operator stays
        steps = _steps(nodes[0], x, nodes)
    return [n.op for n in nodes] if steps is None else [s.op for s in steps]


def _steps(anchor: Node, x: Value, nodes: Sequence[Node], seen: Seen | None = None) -> list[Step] | None:
    """Return the fewest operators for nodes and a view; None if there are none.

    `anchor`: the last of the nodes, or a node of the region in front of which a view is written.
    """
    try:
        return fewest(Match(Bindings(), anchor), x, nodes, seen)
    except Declined:
        return None


def _size(value: Value) -> float:
    """Return the number of elements, unknown dims as 1: compared values mostly have the same unknown dims."""
    return float(prod(d for d in types.dims_of(value) if isinstance(d, int)))
