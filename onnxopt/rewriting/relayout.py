"""Rewrites regions of nodes to work on values in a view of their axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from onnxopt.analysis import types
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators.operands import AXES
from onnxopt.rewriting.axes import Passing, Turned, View, constant_operand, passes, rename
from onnxopt.rewriting.replace import remove_dead

K = TypeVar("K")
T = TypeVar("T", Node, Value)


class Region(Generic[K]):
    """Nodes of a `kind`, in order, with forms in a view."""

    def __init__(self, kind: K, passing: Mapping[Node, Passing]) -> None:
        self.kind, self.passing = kind, passing
        self.nodes: list[Node] = []


def regions(
    graph: Graph,
    ends: Iterable[str],
    kind: Callable[[Node], K | None],
    view: Callable[[K], View],
    is_end: Callable[[Node], bool] | None = None,
) -> list[Region[K]]:
    """Return connected regions of nodes with a kind and a form in its view, next to or around an operator of `ends`,
    if `is_end` holds.

    Nodes are connected if one reads the other's result, or both read the same value. Linear in the nodes reached from
    `ends`: no others are queried.
    """
    views, kinds, passing = dict[K, View](), dict[Node, K](), dict[Node, Passing]()
    asked: set[Node | None] = {None}
    at = (n for op in ends for n in graph.by_op.get(op, ()) if is_end is None or is_end(n))
    values = [v for n in at for v in (*n.operands, *n.results) if not v.constant]
    reached = set(values)
    while values:
        v = values.pop()
        for node in (v.producer, *v.users):
            if node in asked or node is None:
                continue
            asked.add(node)
            k = kind(node) if node.op in AXES and node.graph is graph else None
            if k is None:
                continue
            if k not in views:
                views[k] = view(k)
            if (found := passes(node, views[k])) is not None:
                kinds[node], passing[node] = k, found
                new = [w for w in (*found.seen, *node.results) if w not in reached]
                values += new
                reached.update(new)
    return connected({n: kinds[n] for n in graph if n in kinds} if kinds else {}, passing)


def all_passing(nodes: Sequence[Node], view: View) -> Mapping[Node, Passing]:
    """Return how each node passes through a view; nothing if one does not: a region is changed as a whole."""
    found = {n: p for n in nodes if (p := passes(n, view)) is not None}
    return found if len(found) == len(nodes) else {}


def connected(kinds: Mapping[Node, K], passing: Mapping[Node, Passing], side_by_side: bool = True) -> list[Region[K]]:
    """Return regions of nodes of equal kind, connected through values in the view.

    `kinds`: of nodes in graph order. Without `side_by_side`, readers of the same value are not connected.
    """
    leader = {node: node for node in kinds}  # union-find, with halved paths
    reading: dict[tuple[Value, K], Node] = {}

    def leading(node: Node) -> Node:
        while leader[node] is not node:
            leader[node] = node = leader[leader[node]]
        return node

    for node, k in kinds.items():
        for v in passing[node].seen:
            other = v.producer
            if other is None or kinds.get(other) != k:
                other = reading.setdefault((v, k), node) if side_by_side else node
            leader[leading(node)] = leading(other)
    found: dict[Node, Region[K]] = {}
    for node, k in kinds.items():
        found.setdefault(leading(node), Region(k, passing)).nodes.append(node)
    return list(found.values())


@dataclass(eq=False, repr=False)
class End(Generic[T]):
    """An end of a region: an outside value, an outside reader, or a result needed in its original form.

    saved: nodes saved. moved: additional elements moved at run time. write: for an outside value, inserts its
    computation in the view before the given node; for a reader or result, connects the given value. Both return the
    value in the view, perhaps renamed to a graph output. source: the value read afterwards. target: sizes of the
    Reshape there.
    """

    saved: int
    write: Callable[[T], Value]
    moved: float = 0.0
    source: Value | None = None
    target: Sequence[int] | None = None


class Relayout:
    """Nodes, in order, to be moved into a view. Subclasses define the ends: `enters`, `leaves`, `restores`.

    After `look`: `saved` and `moved` are sums over all ends; `is_possible`: each end can be written.
    """

    suffix = "_seen"  # suffix of new value names

    def __init__(
        self, graph: Graph, nodes: Sequence[Node], view: View, passing: Mapping[Node, Passing] | None = None
    ) -> None:
        """`passing`: forms of the nodes in a view in which any order passes, if not in `view` itself."""
        self.graph, self.view = graph, view
        self._is_turned = isinstance(view, Turned)
        self.passing = all_passing(nodes, view) if passing is None else passing
        self.nodes = list(self.passing)
        self.inside = set(self.nodes)
        self.operands = {n: p.seen for n, p in self.passing.items()}
        if self._is_turned:  # a one-element value needs no permutation to be in the view
            made = set(self.made())
            self.operands = {n: [v for v in p.axes.data if v in p.seen or v in made] for n, p in self.passing.items()}
        read = (v for operands in self.operands.values() for v in operands)
        self.entering = list(dict.fromkeys(v for v in read if v.producer not in self.inside))

    def made(self) -> list[Value]:
        """Return the results in the view."""
        nodes = [n for n in self.nodes if self.is_kept(n)] if self._is_turned else self.nodes
        return [v for n in nodes for v in n.results]

    def is_kept(self, node: Node) -> bool:
        """Return whether the node's results are in the view. For a permutation, results with fewer axes are not."""
        return not self._is_turned or len((a := self.passing[node].axes).made) == a.rank

    def outside(self, v: Value) -> list[Node]:
        """Return the readers of a result outside the region, or reading it outside the view."""
        return [u for u in v.users if u not in self.inside or v not in self.operands[u]]

    def look(self) -> None:
        """Collect the ends and sum up their costs."""
        self.ends: dict[Value, End[Node]] = {}
        self.leaving: dict[Value, list[End[Value]]] = {}
        self.restored: dict[Value, End[Value]] = {}
        found: list[End[Node] | End[Value] | None] = []
        for v in self.entering:
            end = self.enters(v)
            found.append(end)
            if end is not None:
                self.ends[v] = end
        for v in self.made():
            readers = {u: self.leaves(v, u) for u in self.outside(v)}
            self.leaving[v] = [e for e in readers.values() if e is not None]
            found += self.leaving[v]
            if v.is_output or len(self.leaving[v]) < len(readers):
                restored = self.restores(v, [u for u, e in readers.items() if e is None])
                found.append(restored)
                if restored is not None:
                    self.restored[v] = restored
        self.all_ends = [e for e in found if e is not None]
        self.is_possible = None not in found
        self.saved, self.moved = sum(e.saved for e in self.all_ends), sum(e.moved for e in self.all_ends)

    def enters(self, v: Value) -> End[Node] | None:
        """Return the end at an outside value; None if the value cannot be computed in the view."""
        raise NotImplementedError

    def leaves(self, v: Value, user: Node) -> End[Value] | None:
        """Return the end at an outside reader; None if the reader needs the original value."""
        raise NotImplementedError

    def restores(self, v: Value, readers: list[Node]) -> End[Value] | None:
        """Return the end that restores a result for these readers and the graph output; None if impossible."""
        raise NotImplementedError

    def carry_out(self) -> None:
        """Replace each node by a copy that works in the view, and write the ends. Removes dead nodes at the border."""
        now: dict[Value, Value] = {}
        made, sources = self.made(), [v.producer for v in self.entering]
        for node in self.nodes:
            for v in self.operands[node]:
                if v not in now:  # first reader of an outside value
                    now[v] = self.ends[v].write(node)
            self._write(node, now)
        for v in made:
            for end in self.leaving[v]:
                now[v] = end.write(now[v])
            if v in self.restored:
                self.restored[v].write(now[v])
        for node in reversed(self.nodes):
            if self.is_kept(node):
                self.graph.remove(node)
        for source in sources:
            if source is not None:
                remove_dead(source)

    def _write(self, node: Node, now: dict[Value, Value]) -> None:
        axes, _, constants = self.passing[node]
        own = {v: now[v] for v in self.operands[node]}
        own.update((v, constant_operand(node, v, axes, self.view)) for v in constants)
        inputs = [None if v is None else own.get(v, v) for v in node.inputs]
        if not self.is_kept(node):
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

    def new(self, like: Value, dims: Shape | None = None) -> Value:
        """Return a new value for `like` in the view, with type and shape."""
        value = Value(self.graph.model.names.fresh(like.name, self.suffix), self.graph)
        value.dtype, value.shape = types.dtype(like), self.seen_dims(like) if dims is None else dims
        return value
