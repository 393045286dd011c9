"""Which node of the original became which node of the result.

Nodes of the same operator are counterparts when they make the same value, else when they have the same name. The
journal of a run then says what was replaced by what; and a value that another node makes now says so too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from onnxopt.comparison.records import ABSENT, GraphRecord, NodeRecord, is_elsewhere, same_constant
from onnxopt.graph.value import Value
from onnxopt.pipeline.instruments import Entry
from onnxopt.protos import tensor_bytes

_COMPARED: Final = 1 << 16  # bytes of two constants whose contents are compared


class Fate(StrEnum):
    """What became of a node: KEPT and CHANGED have a counterpart, MERGED is part of others, GONE and NEW are alone."""

    KEPT = "kept"
    CHANGED = "changed"
    MERGED = "merged"
    GONE = "gone"
    NEW = "new"


@dataclass(frozen=True)
class Rewrite:
    """One entry of a journal: which rule of which pass."""

    number: int
    pass_name: str
    rule: str

    def __str__(self) -> str:
        return f"{self.pass_name}/{self.rule}" if self.rule else self.pass_name


@dataclass
class Counterparts:
    """`before[i]` and `after[j]` are fates. `pair` maps nodes of the original to nodes of the result, `merged` to those
    they became part of; `rewrites` are those that took (original) or made (result) a node."""

    before: list[Fate] = field(default_factory=list)
    after: list[Fate] = field(default_factory=list)
    pair: dict[int, int] = field(default_factory=dict)
    merged: dict[int, list[int]] = field(default_factory=dict)
    rewrites_before: dict[int, Rewrite] = field(default_factory=dict)
    rewrites_after: dict[int, Rewrite] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """How many nodes had each fate; counterparts once."""
        found = Counter([*self.before, *(f for f in self.after if f is Fate.NEW)])
        return {fate.value: found[fate] for fate in Fate}


def match(before: GraphRecord, after: GraphRecord, journal: Sequence[Entry] | None = ()) -> Counterparts:
    """Find counterparts. `journal`: what led from one to the other; without, names alone decide. None: no run did, and
    constants of one name may differ."""
    is_run, journal = journal is not None, journal or ()
    found = Counterparts()
    back: dict[int, int] = {}
    for key in _keys(before):
        _pair(before, after, found.pair, back, *key)
    origins = _Origins(before, journal)
    for j, node in enumerate(after.nodes):
        sources, rewrite = origins.of(after, node)
        if rewrite is not None:
            found.rewrites_after[j] = rewrite
        same = [i for i in sources if i not in found.pair and before.nodes[i].op == node.op]
        if j not in back and len(same) == 1:
            found.pair[same[0]], back[j] = j, same[0]
        for i in sources:
            if back.get(j) != i:
                found.merged.setdefault(i, []).append(j)
    _by_values(before, after, found)
    found.merged = {i: targets for i, targets in sorted(found.merged.items()) if i not in found.pair}
    found.rewrites_before = {i: r for i, r in origins.taken.items() if i not in found.pair}
    grown = {j for targets in found.merged.values() for j in targets}
    for i, node in enumerate(before.nodes):
        partner = found.pair.get(i)
        if partner is None:
            found.before.append(Fate.MERGED if i in found.merged else Fate.GONE)
        else:
            same_work = partner not in grown and _same_work(before, node, after, after.nodes[partner], is_run)
            found.before.append(Fate.KEPT if same_work else Fate.CHANGED)
    found.after = [found.before[back[j]] if j in back else Fate.NEW for j in range(len(after.nodes))]
    return found


# -- by name -------------------------------------------------------------------------------------------------

Key = Callable[[GraphRecord, NodeRecord], Hashable]


def _keys(before: GraphRecord) -> Iterator[tuple[Key, bool]]:
    """What makes two nodes counterparts, the surest first, and whether it may be said of one node only."""
    yield lambda g, n: (g.scopes[n.scope].path, n.op, g.output_name(n)), False
    yield lambda g, n: (g.scopes[n.scope].path, n.op, n.name) if n.name else None, True
    if len(before.scopes) > 1:  # what was in a body may be outside now
        yield lambda g, n: (n.op, g.output_name(n)), True
        yield lambda g, n: (n.op, n.name) if n.name else None, True


def _pair(
    before: GraphRecord, after: GraphRecord, pair: dict[int, int], back: dict[int, int], key: Key, once: bool
) -> None:
    here = [key(before, n) for n in before.nodes]
    there = [key(after, n) for n in after.nodes]
    often = {k for keys in (here, there) for k, count in Counter(keys).items() if count > 1} if once else set()
    free = {k: j for j, k in enumerate(there) if j not in back and k is not None and k not in often}
    for i, k in enumerate(here):
        if i not in pair and k in free:
            pair[i] = free.pop(k)
            back[pair[i]] = i


def _by_values(before: GraphRecord, after: GraphRecord, found: Counterparts) -> None:
    """A node without counterpart, the value of which another node makes now, is part of that one."""
    makers = {
        (after.scopes[n.scope].path, after.values[v].name): j
        for j, n in enumerate(after.nodes)
        for v in n.outputs
        if v != ABSENT
    }
    for i, node in enumerate(before.nodes):
        if i not in found.pair and i not in found.merged:
            path = before.scopes[node.scope].path
            made = [makers.get((path, before.values[v].name)) for v in node.outputs if v != ABSENT]
            if targets := list(dict.fromkeys(j for j in made if j is not None)):
                found.merged[i] = targets


# -- by journal ----------------------------------------------------------------------------------------------


class _Origins:
    """Follows the journal: which nodes of the original are in what the last rewrite made."""

    def __init__(self, before: GraphRecord, journal: Sequence[Entry]) -> None:
        self.taken: dict[int, Rewrite] = {}
        self._live: dict[tuple[str, str], list[int]] = {}
        self._made: dict[tuple[str, str], Rewrite] = {}
        for i, node in enumerate(before.nodes if journal else ()):
            self._live[before.scopes[node.scope].path, node.text] = [i]
        for e in journal:
            self._follow(e.scope, e.removed, e.made, Rewrite(e.number, e.pass_name, e.rule))

    def _follow(self, scope: str, removed: Sequence[str], made: Sequence[str], rewrite: Rewrite) -> None:
        sources = [i for text in removed for i in self._live.pop((scope, text), ())]
        self.taken.update(dict.fromkeys(sources, rewrite))
        one_to_one = rewrite.rule or len(made) == 1  # else an entry holds unrelated changes
        for text in made:
            self._live[scope, text] = list(dict.fromkeys(sources)) if one_to_one else []
            self._made[scope, text] = rewrite

    def of(self, after: GraphRecord, node: NodeRecord) -> tuple[list[int], Rewrite | None]:
        """The original nodes in a node of the result, and the rewrite that made it (None: it is an original)."""
        if not self._made:
            return [], None
        key = after.scopes[node.scope].path, node.text
        rewrite = self._made.get(key)
        return (self._live.get(key, []), rewrite) if rewrite is not None else ([], None)


# -- same or changed -----------------------------------------------------------------------------------------


def _same_work(before: GraphRecord, a: NodeRecord, after: GraphRecord, b: NodeRecord, is_run: bool) -> bool:
    """The same attributes and constants; other inputs may come from elsewhere."""
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
