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
# Neighbours examined by the quick test for another joining path.
_QUICK: Final = 8


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
    tainted, and stay so after later merges: every edge is judged once. The sweep ends with the last clean candidate.
    Then P takes the position of the last merged group, and tainted ones met before move behind it.
    """

    def __init__(
        self, groups: Sets, successors: dict[int, dict[int, None]], supported: Sequence[bool], order: Sequence[int]
    ) -> None:
        self.groups = groups
        self.supported = supported
        self.before: dict[int, list[int]] = {g: [] for g in successors}  # of the original groups, never updated
        for g, after in successors.items():
            for s in after:
                self.before[s].append(g)
        self.successors = {g: list(after) for g, after in successors.items()}
        self.steps = _STEPS_AT_LEAST + _STEPS_PER_EDGE * sum(1 + len(after) for after in successors.values())
        self.enter, self.leave = self._span()
        self.label: dict[int, tuple[int, ...]] = {g: (i,) for i, g in enumerate(order)}  # topological, as moved
        self.moves = 0
        self.done: set[int] = set()

    def run(self) -> None:
        for group in list(self.label):
            if self.supported[group] and self.groups.find(group) == group and self.steps > 0:
                self.sweep(group)
                self.done.add(group)

    def sweep(self, group: int) -> None:
        """Merge every possible group into `group`."""
        find, label = self.groups.find, self.label
        candidates: set[int] = set()
        met: set[int] = set()
        heap: list[tuple[tuple[int, ...], int]] = []
        tainted: list[int] = []  # in order
        self._add(group, candidates, met, heap)
        last, count = -1, 0
        while candidates and self.steps > 0:
            _, nearest = heapq.heappop(heap)
            if nearest in candidates:
                candidates.remove(nearest)
                finished = nearest in self.done
                self.groups.union(group, nearest)
                if candidates or not finished:
                    self._add(nearest, candidates, met, heap, refused=finished)
                self._join(group, nearest)
                last, count = nearest, len(tainted)
                continue
            tainted.append(nearest)
            after = self.successors[nearest]
            self.steps -= 1 + len(after)
            for raw in after:
                s = find(raw)
                candidates.discard(s)
                if s not in met:
                    met.add(s)
                    heapq.heappush(heap, (label[s], s))
        if last >= 0:
            label[group] = label[last]
            for entry in reversed(tainted[:count]):
                self.moves -= 1  # before what was moved there earlier
                label[entry] = (*label[group], self.moves)

    def _add(
        self,
        member: int,
        candidates: set[int],
        met: set[int],
        heap: list[tuple[tuple[int, ...], int]],
        refused: bool = False,
    ) -> None:
        """Visit the successors of a new member; with `refused`, its own sweep found none of them mergeable."""
        find, label = self.groups.find, self.label
        after = self.successors[member]
        self.steps -= len(after)
        walls = [s for s in after if not self.supported[s]][:_QUICK]
        own = find(member)
        for raw in after:
            s = find(raw)
            if s == own:
                continue
            if refused:
                candidates.discard(s)
            if s in met:
                continue
            met.add(s)
            heapq.heappush(heap, (label[s], s))
            if self.supported[s] and not refused and not self._joined_otherwise(walls, raw):
                candidates.add(s)

    def _joined_otherwise(self, walls: list[int], target: int) -> bool:
        """Whether the spanning forest shows a path from an unsupported successor to `target`; False proves nothing."""
        enter, leave = self.enter, self.leave
        return any(enter[w] <= enter[b] < leave[w] for b in self.before[target][:_QUICK] for w in walls)

    def _join(self, group: int, other: int) -> None:
        mine, theirs = self.successors[group], self.successors.pop(other)
        if len(mine) < len(theirs):  # small to large
            mine, theirs = theirs, mine
        mine.extend(theirs)
        self.successors[group] = mine

    def _span(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return (enter, leave) of a depth-first spanning forest: y is below x if enter[x] <= enter[y] < leave[x]."""
        enter: dict[int, int] = {}
        leave: dict[int, int] = {}
        for root, before in self.before.items():
            if before:
                continue
            enter[root] = len(enter)
            stack = [(root, iter(self.successors[root]))]
            while stack:
                g, rest = stack[-1]
                for s in rest:
                    if s not in enter:
                        enter[s] = len(enter)
                        stack.append((s, iter(self.successors[s])))
                        break
                else:
                    leave[g] = len(enter)
                    stack.pop()
        return enter, leave
