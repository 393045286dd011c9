"""Regions of a graph: nodes of one kind that hang together by the values they read and make."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from onnxopt.graph import Value
from onnxopt.graph.node import Node

K = TypeVar("K")


class Region(Generic[K]):
    """Nodes in order, all of one `kind`."""

    def __init__(self, kind: K) -> None:
        self.kind = kind
        self.nodes: list[Node] = []
        self._into: Region[K] | None = None

    def _root(self) -> Region[K]:
        region = self
        while region._into is not None:
            region = region._into
        return region

    def _absorb(self, other: Region[K]) -> Region[K]:
        """Union by size; returns the region that holds both."""
        if other is self:
            return self
        large, small = (self, other) if len(self.nodes) >= len(other.nodes) else (other, self)
        large.nodes += small.nodes
        small.nodes, small._into = [], large
        return large


def regions(
    nodes: Iterable[Node],
    kind: Callable[[Node], K | None],
    reads: Callable[[Node, K], Iterable[Value]],
    *,
    side_by_side: bool = True,
) -> list[Region[K]]:
    """Those of the nodes that have a kind, connected where one makes what another reads, or (unless `side_by_side` says
    no) both read the same.

    Only values that `reads` names connect, and only nodes of equal kind. Linear in nodes.
    """
    region_of: dict[Node, Region[K]] = {}
    reading: dict[tuple[Value, K], Region[K]] = {}
    for node in nodes:
        k = kind(node)
        if k is None:
            continue
        region = Region(k)
        for v in reads(node, k):
            made = region_of.get(v.producer) if v.producer is not None else None
            if made is None or made.kind != k:
                made = reading.setdefault((v, k), region) if side_by_side else region
            region = made._root()._absorb(region._root())
        region._root().nodes.append(node)
        region_of[node] = region._root()
    position = {node: i for i, node in enumerate(region_of)}
    found = list({id(r._root()): r._root() for r in region_of.values()}.values())
    for region in found:
        region.nodes.sort(key=position.__getitem__)
    return found
