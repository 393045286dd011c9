"""Minimum cut of a network (Dinic's algorithm): returns the vertices on the source's side."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

ALWAYS: Final = 1 << 40  # capacity of an edge that must not be cut


class Network:
    """Vertices numbered from 0, edges with a capacity. Linear in edges for each length of a shortest path."""

    def __init__(self, size: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(size)]
        self._to: list[int] = []
        self._left: list[int] = []  # residual capacity; an edge and its reverse have adjacent indices

    def add_vertex(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def add_edge(self, a: int, b: int, capacity: int) -> None:
        for x, y, c in ((a, b, capacity), (b, a, 0)):
            self._edges[x].append(len(self._to))
            self._to.append(y)
            self._left.append(c)

    def add_star(self, centre: int, others: Collection[int]) -> None:
        """Add a cost of 1 if any of `others`, however many, is on another side than `centre`."""
        if len(others) == 1:
            self._join(centre, centre, others, 1)
        elif others:
            there, back = self.add_vertex(), self.add_vertex()
            self.add_edge(centre, there, 1)
            self.add_edge(back, centre, 1)
            self._join(there, back, others, ALWAYS)

    def _join(self, there: int, back: int, others: Collection[int], capacity: int) -> None:
        for other in others:
            self.add_edge(there, other, capacity)
            self.add_edge(other, back, capacity)

    def tie(self, a: int, b: int) -> None:
        """Keep two vertices on the same side."""
        self._join(a, a, (b,), ALWAYS)

    def source_side(self, source: int, sink: int) -> set[int]:
        """Return the vertices on the source's side of the minimum cut with the fewest vertices."""
        while True:
            level = self._levels(source, sink)
            if sink not in level:
                return set(level)
            following = [0] * len(self._edges)
            while self._push(source, sink, level, following):
                pass

    def _levels(self, source: int, sink: int) -> dict[int, int]:
        level, waiting = {source: 0}, deque([source])
        while waiting and sink not in level:
            a = waiting.popleft()
            for e in self._edges[a]:
                b = self._to[e]
                if self._left[e] and b not in level:
                    level[b] = level[a] + 1
                    waiting.append(b)
        return level

    def _push(self, source: int, sink: int, level: dict[int, int], following: list[int]) -> bool:
        """Augment along a path; False if none is left. A dead end is not entered again."""
        path: list[int] = []
        a = source
        while a != sink:
            edges = self._edges[a]
            while following[a] < len(edges):
                e = edges[following[a]]
                if self._left[e] and level.get(self._to[e], -1) == level[a] + 1:
                    break
                following[a] += 1
            if following[a] < len(edges):
                path.append(edges[following[a]])
                a = self._to[path[-1]]
            elif not path:
                return False
            else:
                a = self._to[path.pop() ^ 1]
                following[a] += 1
        least = min(self._left[e] for e in path)
        for e in path:
            self._left[e] -= least
            self._left[e ^ 1] += least
        return True
