"""Graphs as drawn by the page: node by node, or a box for each block if large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from onnxopt.comparison.coarse import Side, coarse
from onnxopt.comparison.counterparts import Counterparts
from onnxopt.comparison.records import LARGE, GraphRecord, elements
from onnxopt.comparison.shared_blocks import SharedBlocks
from onnxopt.graph.text import type_text

_NAMES: Final = 2_000_000  # characters of all names, up to which every node is drawn


def drawing(
    data: dict[str, Any], shared: SharedBlocks, sides: Sequence[Side], found: Counterparts | None
) -> dict[str, Any]:
    """Return `data` with the graph of a model, or two graphs and their correspondence."""
    blocks = [{"label": b.label, "kind": b.kind, "parent": parent} for b, parent in shared.blocks]
    data |= {"blocks": blocks}
    if _is_large([side.graph for side in sides]):
        return coarse(data, sides, found)
    return data | {
        "graphs": [_graph(side) for side in sides],
        "pairs": sorted(found.pair.items()) if found is not None else [],
        "merged": [*found.merged.items()] if found is not None else [],
    }


def _is_large(graphs: Sequence[GraphRecord]) -> bool:
    names = sum(sum(len(n.name) for n in g.nodes) + sum(len(v.name) for v in g.values) for g in graphs)
    return max(len(g.nodes) for g in graphs) > LARGE or names > _NAMES


def _graph(side: Side) -> dict[str, Any]:
    """Return the record of a graph, in lists rather than objects, as nodes may be many thousands."""
    graph = side.graph
    constants = [(v, elements(v)) for v in graph.values]
    return {
        "values": [[v.name, type_text(v)] + ([held] if held is not None else []) for v, held in constants],
        "scopes": [asdict(s) for s in graph.scopes],
        "nodes": [
            [n.op, n.name, n.scope, n.inputs, n.outputs, n.attributes, fate.value, place, str(side.rewrites.get(i, ""))]
            for i, (n, fate, place) in enumerate(zip(graph.nodes, side.fates, side.inside, strict=True))
        ],
    }
