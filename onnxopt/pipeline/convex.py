"""Groups supported nodes of a DAG into maximal convex groups, the core of partitioning.

Nodes are numbers in topological order. Two steps:

1. `stages`: along every path, a node behind an unsupported one is a stage later. Supported neighbours of the same stage
   form groups that are convex and jointly acyclic: a cycle would have to stay within a stage.
2. Groups of different stages joined by no other path are merged, with a sweep for each group (see `_Merger`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final

# Limit of steps of all sweeps: beyond, groups stay as they are, correct but maybe not maximal.
_STEPS_PER_EDGE: Final = 64
_STEPS_AT_LEAST: Final = 1_000_000


def stages(predecessors: Sequence[Iterable[int]], supported: Sequence[bool]) -> list[int]:
    """Return for each node how often a supported node follows an unsupported one, on the worst path."""
    stage = [0] * len(supported)
    for n, before in enumerate(predecessors):
        own = supported[n]
        stage[n] = max((stage[p] + (own and not supported[p]) for p in before), default=0)
    return stage


def convex_groups(predecessors: Sequence[Sequence[int]], supported: Sequence[bool]) -> list[int]:
    """Return the group of each node, named by its smallest member; unsupported nodes are groups by themselves.

    `predecessors[n]` are smaller than `n`. Groups and unsupported nodes form no cycle, and merging any two groups
    joined by an edge would create a cycle. Near-linear time.
    """
    groups = Sets(len(supported))
    stage = stages(predecessors, supported)
    for n, before in enumerate(predecessors):
        if supported[n]:
            for p in before:
                if supported[p] and stage[p] == stage[n]:
                    groups.union(p, n)
    successors: dict[int, dict[int, None]] = {groups.find(n): {} for n in range(len(supported))}
    for n, before in enumerate(predecessors):
        group = groups.find(n)
        for p in before:
            other = groups.find(p)
            if other != group:
                successors[other][group] = None
    if any(supported[a] and supported[b] for a, after in successors.items() for b in after):
        # Supported groups of a stage have no edges among them, and come before the unsupported nodes of the stage.
        order = sorted(successors, key=lambda g: (stage[g], not supported[g], g))
        _Merger(groups, successors, supported, order).run()
    smallest: dict[int, int] = {}
    return [smallest.setdefault(groups.find(n), n) for n in range(len(supported))]


class Sets:
    """Disjoint sets of numbers (union-find)."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, n: int) -> int:
        parent = self._parent
        while parent[n] != n:
            parent[n] = n = parent[parent[n]]
        return n

    def union(self, into: int, other: int) -> None:
        """Merge the set of `other` into the set of `into`, whose representative stays."""
        self._parent[self.find(other)] = self.find(into)


class _Merger:
    """Merges groups joined by an edge P -> Q and by no other path.

    A sweep for each P visits downstream groups in topological order. A direct successor reached before any other path
    leads to it ("clean") is merged into P. Successors reached through an unsupported node or a refused group are
    tainted, and stay so after later merges. The sweep ends with the last clean candidate. Then P takes the position of
    the last merged group, and tainted ones met before move behind it.
    """

    def __init__(
        self, groups: Sets, successors: dict[int, dict[int, None]], supported: Sequence[bool], order: Sequence[int]
    ) -> None:
        self.groups = groups
        self.supported = supported
        self.successors = {g: list(after) for g, after in successors.items()}
        self.steps = _STEPS_AT_LEAST + _STEPS_PER_EDGE * sum(1 + len(after) for after in successors.values())
        self.label: dict[int, tuple[int, ...]] = {g: (i,) for i, g in enumerate(order)}  # topological, as moved
        self.moves = 0

    def run(self) -> None:
        for group in list(self.label):
            if self.supported[group] and self.groups.find(group) == group and self.steps > 0:
                self.sweep(group)

    def sweep(self, group: int) -> None:
        """Merge every possible group into `group`."""
        find, label = self.groups.find, self.label
        candidates: set[int] = set()
        met = {group}
        heap: list[tuple[tuple[int, ...], int]] = []
        tainted: list[int] = []  # in order
        last, count = -1, 0

        def visit(member: int) -> None:
            after = {find(s) for s in self.successors[member]}
            self.steps -= 1 + len(self.successors[member])
            new = after - met
            met.update(new)
            for s in new:
                heapq.heappush(heap, (label[s], s))
            if find(member) == group:
                candidates.update(s for s in new if self.supported[s])
            else:
                candidates.difference_update(after)

        visit(group)
        while candidates and self.steps > 0:
            _, nearest = heapq.heappop(heap)
            if nearest in candidates:
                candidates.remove(nearest)
                self.groups.union(group, nearest)
                visit(nearest)
                self._join(group, nearest)
                last, count = nearest, len(tainted)
            else:
                tainted.append(nearest)
                visit(nearest)
        if last >= 0:
            label[group] = label[last]
            for entry in reversed(tainted[:count]):
                self.moves -= 1  # before earlier moved entries
                label[entry] = (*label[group], self.moves)

    def _join(self, group: int, other: int) -> None:
        mine, theirs = self.successors[group], self.successors.pop(other)
        if len(mine) < len(theirs):  # small to large
            mine, theirs = theirs, mine
        mine.extend(theirs)
        self.successors[group] = mine
