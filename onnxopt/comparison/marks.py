"""Nodes named by a verdict or a run, located in both graphs for links and marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from onnxopt.comparison.history import History
from onnxopt.comparison.records import ABSENT, GraphRecord
from onnxopt.pipeline.instruments import Entry

Key = tuple[str, str]  # (path of a scope, name)
Spot = tuple[int, int]  # (graph: 0 original, 1 result; index)


class Marks:
    """Lookup of nodes by output and by text, within a scope."""

    def __init__(self, before: GraphRecord, after: GraphRecord, history: History) -> None:
        self._graphs = before, after
        self._history = history

    @cached_property
    def _made(self) -> list[dict[Key, list[int]]]:
        return [_by_key(g, [_names(g, node.outputs) for node in g.nodes]) for g in self._graphs]

    @cached_property
    def _texts(self) -> list[dict[Key, list[int]]]:
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
        return same[0] if here and same else here[0] if here else same[0] if len(same) == 1 else None

    def _rewrite(self, line: str) -> Spot | None:
        """Return a node of a journal line, if the line belongs to this run's journal."""
        entry = self._entries.get(line.partition(" ")[0])
        if entry is None:
            return None
        rule = f"/{entry.rule}" if entry.rule else ""
        if not line.startswith(f"{entry.number} {entry.pass_name}{rule}: {entry.scope}: "):
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


def _by_key(graph: GraphRecord, names: list[list[str]]) -> dict[Key, list[int]]:
    """Return {(scope, name): nodes}. `names`: by node."""
    found: dict[Key, list[int]] = defaultdict(list)
    for n, node in enumerate(graph.nodes):
        for name in names[n]:
            found[graph.scopes[node.scope].path, name].append(n)
    return found


def _names(graph: GraphRecord, values: Iterable[int]) -> list[str]:
    return [graph.values[v].name for v in values if v != ABSENT]
