"""Connected regions of nodes with a form in a view of their axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.operators.operands import AXES
from onnxopt.rewriting.axes import Passing, View, passes

_MOST_VIEWS: Final = 1 << 8  # views: a model has few different dims
K = TypeVar("K")


class Region(NamedTuple, Generic[K]):
    """Nodes of a `kind`, in order, with forms in its `view`."""

    kind: K
    view: View
    passing: Mapping[Node, Passing]
    nodes: list[Node]


@lru_cache(_MOST_VIEWS)
def _view_of(view: Callable[[K], View], kind: K) -> View:
    """Return the view of a kind, the same object again: forms in a view are kept by object."""
    return view(kind)


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
    at = [n for op in ends for n in graph.by_op.get(op, ()) if is_end is None or is_end(n)]
    values = [v for n in at for v in (*n.inputs, *n.outputs) if v is not None and not v.constant]
    kinds, passing = _reached(graph, values, kind, view)
    return connected({n: kinds[n] for n in graph if n in kinds} if kinds else {}, view, passing)


def _reached(
    graph: Graph, values: list[Value], kind: Callable[[Node], K | None], view: Callable[[K], View]
) -> tuple[dict[Node, K], dict[Node, Passing]]:
    """Return (kinds, forms) of the nodes with a form in a view that are connected with these values."""
    kinds, passing = dict[Node, K](), dict[Node, Passing]()
    asked, reached = set[Node](), set(values)
    while values:
        v = values.pop()
        for node in (v.producer, *v.users):
            if node is None or node in asked:
                continue
            asked.add(node)
            k = kind(node) if node.op in AXES and node.graph is graph else None
            found = None if k is None else passes(node, _view_of(view, k))
            if k is not None and found is not None:
                kinds[node], passing[node] = k, found
                new = [w for w in (*found.seen, *node.outputs) if w is not None and w not in reached]
                values += new
                reached.update(new)
    return kinds, passing


def connected(
    kinds: Mapping[Node, K], view: Callable[[K], View], passing: Mapping[Node, Passing], side_by_side: bool = True
) -> list[Region[K]]:
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
        found.setdefault(leading(node), Region(k, _view_of(view, k), passing, [])).nodes.append(node)
    return list(found.values())
