"""Correspondence between nodes of the original and of the result.

Nodes of equal operators correspond if they make the same value, else if they have the same name. Further
correspondences come from the journal of a run, and from values now made by a different node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from onnxopt.comparison.records import ABSENT, GraphRecord, History, NodeRecord, is_elsewhere, same_constant
from onnxopt.graph.value import Value
from onnxopt.pipeline.journal import Entry
from onnxopt.proto.messages import tensor_bytes

_COMPARED: Final = 1 << 16  # bytes of constants compared by content


class Fate(StrEnum):
    """Fate of a node.

    KEPT and CHANGED have a counterpart, MERGED is part of further nodes, GONE and NEW have none.
    """

    KEPT = "kept"
    CHANGED = "changed"
    MERGED = "merged"
    GONE = "gone"
    NEW = "new"


ScopedName = tuple[str, str]  # (path of a scope, name or text)
_Origins = dict[ScopedName, tuple[list[int], Entry | None]]  # by node: (original nodes in it, rewrite that made it)


@dataclass
class Counterparts:
    """Correspondence between the nodes of two graphs, by index."""

    before: list[Fate] = field(default_factory=list)  # fates of the original's nodes
    after: list[Fate] = field(default_factory=list)  # fates of the result's nodes
    pair: dict[int, int] = field(default_factory=dict)  # {node of the original: node of the result}
    # {node of the original: nodes of the result it is part of}.
    merged: dict[int, list[int]] = field(default_factory=dict)
    rewrites_before: dict[int, Entry] = field(default_factory=dict)  # rewrites that removed a node
    rewrites_after: dict[int, Entry] = field(default_factory=dict)  # rewrites that made a node

    def counts(self) -> dict[str, int]:
        """Return the number of nodes by fate, counterparts once."""
        found = Counter([*self.before, *(f for f in self.after if f is Fate.NEW)])
        return {fate.value: found[fate] for fate in Fate}


def match(before: GraphRecord, after: GraphRecord, journal: Sequence[Entry] | None = ()) -> Counterparts:
    """Return the counterparts.

    journal: entries of the run; empty: match by names only; None: no run, so constants of equal name may differ.
    """
    is_run, journal = journal is not None, journal or ()
    found = Counterparts()
    back: dict[int, int] = {}
    for key in _keys(before):
        _pair(before, after, found.pair, back, *key)
    taken, origins = _origins(before, journal)
    _by_origin(before, after, origins, found, back)
    _by_values(before, after, found)
    found.merged = {i: targets for i, targets in sorted(found.merged.items()) if i not in found.pair}
    found.rewrites_before = {i: r for i, r in taken.items() if i not in found.pair}
    found.before = [*_fates(before, after, found, is_run)]
    found.after = [found.before[back[j]] if j in back else Fate.NEW for j in range(len(after.nodes))]
    return found


def _by_origin(
    before: GraphRecord, after: GraphRecord, origins: _Origins, found: Counterparts, back: dict[int, int]
) -> None:
    """Pair each node with its only source of the same operator, and merge all further sources into the node."""
    for j, node in enumerate(after.nodes if origins else ()):
        sources, rewrite = origins.get((after.scopes[node.scope].path, node.text), ([], None))
        if rewrite is None:
            continue
        found.rewrites_after[j] = rewrite
        same = [i for i in sources if i not in found.pair and before.nodes[i].op == node.op]
        if j not in back and len(same) == 1:
            found.pair[same[0]], back[j] = j, same[0]
        for i in sources:
            if back.get(j) != i:
                found.merged.setdefault(i, []).append(j)


def _fates(before: GraphRecord, after: GraphRecord, found: Counterparts, is_run: bool) -> Iterator[Fate]:
    """Yield the fate of each node of the original."""
    grown = {j for targets in found.merged.values() for j in targets}
    for i, node in enumerate(before.nodes):
        partner = found.pair.get(i)
        if partner is None:
            yield Fate.MERGED if i in found.merged else Fate.GONE
        else:
            same_work = partner not in grown and _same_work(before, node, after, after.nodes[partner], is_run)
            yield Fate.KEPT if same_work else Fate.CHANGED


# -- by name ---------------------------------------------------------------------------------------------

Key = Callable[[GraphRecord, NodeRecord], Hashable]


def _keys(before: GraphRecord) -> Iterator[tuple[Key, bool]]:
    """Yield (matching key of a node, whether the key must be unique), most reliable first."""
    yield lambda g, n: (g.scopes[n.scope].path, n.op, g.output_name(n)), False
    yield lambda g, n: (g.scopes[n.scope].path, n.op, n.name) if n.name else None, True
    if len(before.scopes) > 1:  # nodes may have moved out of a body
        yield lambda g, n: (n.op, g.output_name(n)), True
        yield lambda g, n: (n.op, n.name) if n.name else None, True


def _pair(
    before: GraphRecord, after: GraphRecord, pair: dict[int, int], back: dict[int, int], key: Key, once: bool
) -> None:
    here = [key(before, n) for n in before.nodes]
    there = [key(after, n) for n in after.nodes]
    often = _repeated(here) | _repeated(there) if once else set()
    free = {k: j for j, k in enumerate(there) if j not in back and k is not None and k not in often}
    for i, k in enumerate(here):
        if i not in pair and k in free:
            pair[i] = free.pop(k)
            back[pair[i]] = i


def _repeated(keys: Sequence[Hashable]) -> set[Hashable]:
    return {k for k, count in Counter(keys).items() if count > 1}


def _by_values(before: GraphRecord, after: GraphRecord, found: Counterparts) -> None:
    """Merge each node without counterpart into the node that now makes its value."""
    makers = {made: j for j, n in enumerate(after.nodes) for made in _results(after, n)}
    for i, node in enumerate(before.nodes):
        if i not in found.pair and i not in found.merged:
            made = [makers.get(value) for value in _results(before, node)]
            if targets := list(dict.fromkeys(j for j in made if j is not None)):
                found.merged[i] = targets


def _results(graph: GraphRecord, node: NodeRecord) -> list[tuple[str, str]]:
    """Return (scope, name) of each result of a node."""
    path = graph.scopes[node.scope].path
    return [(path, graph.values[v].name) for v in node.outputs if v != ABSENT]


# -- by journal ------------------------------------------------------------------------------------------


def _origins(before: GraphRecord, journal: Sequence[Entry]) -> tuple[dict[int, Entry], _Origins]:
    """Return ({removed original node: its rewrite}, origins of the nodes that are left)."""
    taken: dict[int, Entry] = {}
    live: _Origins = {}
    for i, node in enumerate(before.nodes if journal else ()):
        live[before.scopes[node.scope].path, node.text] = [i], None
    for e in journal:
        sources = dict.fromkeys(i for text in e.removed for i in live.pop((e.scope, text), ([], None))[0])
        taken |= dict.fromkeys(sources, e)
        one_to_one = e.rule or len(e.made) == 1  # else an entry contains unrelated changes
        live |= {(e.scope, text): ([*sources] if one_to_one else [], e) for text in e.made}
    return taken, live


# -- same or changed -------------------------------------------------------------------------------------


def _same_work(before: GraphRecord, a: NodeRecord, after: GraphRecord, b: NodeRecord, is_run: bool) -> bool:
    """Return whether two nodes have equal attributes and constants. Computed inputs may differ."""
    if len(a.inputs) != len(b.inputs) or sorted(a.attributes) != sorted(b.attributes):
        return False
    return all(
        x == y if ABSENT in (x, y) else _same_value(before.values[x], after.values[y], is_run)
        for x, y in zip(a.inputs, b.inputs, strict=True)
    )


def _same_value(x: Value, y: Value, is_run: bool) -> bool:
    if not (x.constant and y.constant):
        return x.constant == y.constant
    kind = x.constant_type()
    if kind != y.constant_type():
        return False
    if x.name == y.name:
        return is_run or same_constant(x, y)
    if tensor_bytes(*kind) > _COMPARED or is_elsewhere(x) or is_elsewhere(y):
        return False
    return same_constant(x, y)


Spot = tuple[int, int]  # (graph: 0 original, 1 result; index)


class Marks:
    """Lookup of nodes by output and by text, within a scope."""

    def __init__(self, graphs: Sequence[GraphRecord], history: History) -> None:
        self._graphs = graphs
        self._history = history

    @cached_property
    def _made(self) -> list[dict[ScopedName, list[int]]]:
        return [_by_key(g, [_names(g, node.outputs) for node in g.nodes]) for g in self._graphs]

    @cached_property
    def _texts(self) -> list[dict[ScopedName, list[int]]]:
        return [_by_key(g, [[node.text] for node in g.nodes]) for g in self._graphs]

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        return {str(entry.number): entry for entry in self._history.journal}

    def places(self, verdict: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """Return, for each place of a verdict (`Verification.to_dict()`), the located nodes and rewrites.

        nodes: of both sides, None if not found. rewrites: a node made by each rewrite, else a removed node.
        """
        return [
            {
                "nodes": [[self._node(i, side, place["scope"]) for side in place["ab"[i]]] for i in (0, 1)],
                "rewrites": [self._rewrite(line) for line in place["rewrites"]],
            }
            for place in (verdict["places"] if verdict is not None else [])
        ]

    def left_out(self) -> list[Spot | None]:
        """Return, for each rewrite left out, the node it would have replaced."""
        return [self._maker(r.get("value", ""), r.get("scope", "")) for r in self._history.report["rolled_back"]]

    def _node(self, i: int, side: Mapping[str, Any], scope: str) -> int | None:
        """Return the node with an output in a scope, else in any scope if unique: bodies may be renamed."""
        graph, made, name = self._graphs[i], self._made[i], next(iter(side["outputs"]), "")
        here = made.get((scope, name), [])
        there = here or [n for key, nodes in made.items() if key[1] == name for n in nodes]
        same = [n for n in there if _names(graph, graph.nodes[n].inputs) == side["inputs"]]
        if here:
            return (same or here)[0]
        return same[0] if len(same) == 1 else None

    def _rewrite(self, line: str) -> Spot | None:
        """Return a node of a journal line, if the line belongs to this run's journal."""
        entry = self._entries.get(line.partition(" ")[0])
        if entry is None:
            return None
        if not line.startswith(f"{entry.number} {entry.name}: {entry.scope}: "):
            return None
        for i, texts in ((1, entry.made), (0, entry.removed)):
            for text in texts:
                if found := self._texts[i].get((entry.scope, text)):
                    return i, found[0]
        return None

    def _maker(self, value: str, scope: str) -> Spot | None:
        for i in (0, 1):
            if value and (found := self._made[i].get((scope or "main", value))):
                return i, found[0]
        return None


def _by_key(graph: GraphRecord, names: list[list[str]]) -> dict[ScopedName, list[int]]:
    """Return {(scope, name): nodes}. `names`: by node."""
    found: dict[ScopedName, list[int]] = defaultdict(list)
    for n, node in enumerate(graph.nodes):
        for name in names[n]:
            found[graph.scopes[node.scope].path, name].append(n)
    return found


def _names(graph: GraphRecord, values: Iterable[int]) -> list[str]:
    return [graph.values[v].name for v in values if v != ABSENT]
