"""Two graphs that are too large to draw node by node: a box for each block that stays closed, as if it were a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, Final

from onnxopt.comparison.records import ABSENT

LARGE: Final = 20_000  # nodes of the larger graph, up to which each of them is shown
_BOXES: Final = 1_000
_LENGTH: Final = 120  # characters of a name
_OPERATORS: Final = 12  # that a box lists
NOTE: Final = "The graphs are large: a box stands for a block of nodes, without their details."


def coarse(data: dict[str, Any]) -> dict[str, Any]:
    """`Comparison.to_dict()` with boxes for nodes; what refers to a node refers to its box."""
    around = [b["parent"] for b in data["blocks"]]
    closed = _closed(around, data["graphs"])
    boxes = [_boxes(graph["nodes"], around, closed) for graph in data["graphs"]]
    of = [{i: k for k, nodes in enumerate(side.values()) for i in nodes} for side in boxes]
    opened = [at for at, block in enumerate(closed) if block is None]
    number = {at: k for k, at in enumerate(opened)}
    labels = [b["label"][:_LENGTH] for b in data["blocks"]]

    def spot(found: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if found is None else (found[0], of[found[0]][found[1]])

    keys = [list(side) for side in boxes]
    other = {key: k for k, key in enumerate(keys[1]) if key[0] == "block"}
    pairs = {(k, other[key]) for k, key in enumerate(keys[0]) if key in other}
    alone = [{k for k, key in enumerate(side) if key[0] == "node"} for side in keys]
    pairs |= {(of[0][i], of[1][j]) for i, j in data["pairs"] if of[0][i] in alone[0] and of[1][j] in alone[1]}
    merged = {of[0][i]: sorted({of[1][j] for j in targets}) for i, targets in data["merged"] if of[0][i] in alone[0]}
    return data | {
        "notes": [*data["notes"], NOTE],
        "blocks": [
            {"label": labels[at], "kind": data["blocks"][at]["kind"], "parent": number.get(around[at], -1)}
            for at in opened
        ],
        "graphs": [
            _graph(graph, side, around, number, labels, inside)
            for graph, side, inside in zip(data["graphs"], boxes, of)
        ],
        "pairs": sorted(pairs),
        "merged": sorted(merged.items()),
        "examples": {text: spot(found) for text, found in data["examples"].items()},
        "left_out": [spot(found) for found in data["left_out"]],
        "places": [
            {
                "nodes": [[None if i is None else of[k][i] for i in side] for k, side in enumerate(place["nodes"])],
                "rewrites": [spot(found) for found in place["rewrites"]],
            }
            for place in data["places"]
        ],
    }


def _closed(around: list[int], graphs: list[dict[str, Any]]) -> list[int | None]:
    """For each block the outermost closed one that holds it, None where all are open. They open from the outside in,
    as long as there are few boxes; blocks come after those around them."""
    inner: list[list[int]] = [[] for _ in around]
    for at, parent in enumerate(around):
        if parent >= 0:
            inner[parent].append(at)
    held = [Counter(node[7] for node in graph["nodes"]) for graph in graphs]
    total, opened, waiting = 0, set(), [0]
    for at in waiting:
        items = len(inner[at]) + max(count[at] for count in held)
        if total + items <= _BOXES:
            total += items
            opened.add(at)
            waiting += inner[at]
    found: list[int | None] = []
    for at, parent in enumerate(around):
        outer = found[parent] if parent >= 0 else None
        found.append(outer if outer is not None else None if at in opened else at)
    return found


def _boxes(nodes: list[list[Any]], around: list[int], closed: list[int | None]) -> dict[tuple[str, int], list[int]]:
    """The nodes of each box: those of a closed block, or one alone."""
    found: dict[tuple[str, int], list[int]] = {}
    for i, node in enumerate(nodes):
        block = closed[node[7]]
        found.setdefault(("node", i) if block is None else ("block", block), []).append(i)
    return found


def _graph(
    graph: dict[str, Any],
    boxes: dict[tuple[str, int], list[int]],
    around: list[int],
    number: dict[int, int],
    labels: list[str],
    inside: dict[int, int],
) -> dict[str, Any]:
    nodes, main = graph["nodes"], graph["scopes"][0]
    values, inputs, outputs = _values(graph, inside, len(boxes))
    drawn: list[list[Any]] = []
    for k, ((kind, at), members) in enumerate(boxes.items()):
        fates = {nodes[i][6] for i in members}
        fate = fates.pop() if len(fates) == 1 else "changed"
        if kind == "node":
            op, name, block = nodes[at][0], nodes[at][1][:_LENGTH], number[nodes[at][7]]
            attributes: list[tuple[str, str]] = []
        else:
            op, name, block = labels[at] or "block", f"{len(members):,} nodes", number.get(around[at], 0)
            counted = Counter(nodes[i][0] for i in members).most_common(_OPERATORS)
            attributes = [(op, f"{n:,}") for op, n in counted]
        drawn.append([op, name, 0, inputs[k], outputs[k], attributes, fate, block, ""])
    ends = {end: [values[v] for v in main[end] if v in values] for end in ("inputs", "outputs")}
    return {
        "values": [[graph["values"][v][0][:_LENGTH], graph["values"][v][1]] for v in values],
        "scopes": [main | {end: list(dict.fromkeys(found)) for end, found in ends.items()}],
        "nodes": drawn,
    }


def _values(
    graph: dict[str, Any], inside: dict[int, int], count: int
) -> tuple[dict[int, int], list[list[int]], list[list[int]]]:
    """The values between boxes with their new indices, and what each box reads and makes. Of those that go the same
    way one is shown."""
    nodes, main = graph["nodes"], graph["scopes"][0]
    makers = {v: inside[i] for i, node in enumerate(nodes) for v in node[4] if v != ABSENT}
    readers: dict[int, dict[int, None]] = {}
    for i, node in enumerate(nodes):
        _read(readers, node[3], inside[i])
    for scope in graph["scopes"]:
        if scope["owner"] is not None:
            _read(readers, scope["outputs"], inside[scope["owner"]])
    ends = {v: "input" for v in main["inputs"] if len(graph["values"][v]) == 2} | dict.fromkeys(
        main["outputs"], "output"
    )
    values: dict[int, int] = {}
    inputs: list[list[int]] = [[] for _ in range(count)]
    outputs: list[list[int]] = [[] for _ in range(count)]
    ways: set[Hashable] = set()
    for v in dict.fromkeys([*ends, *readers]):
        maker = makers.get(v)
        reading = [k for k in readers.get(v, ()) if k != maker]
        way = (maker, ends.get(v), tuple(reading))
        if way in ways or (maker is None and v not in ends) or not (reading or v in ends):
            continue
        ways.add(way)
        values[v] = len(values)
        if maker is not None:
            outputs[maker].append(values[v])
        for k in reading:
            inputs[k].append(values[v])
    return values, inputs, outputs


def _read(readers: dict[int, dict[int, None]], values: Iterable[int], box: int) -> None:
    for v in values:
        if v != ABSENT:
            readers.setdefault(v, {})[box] = None
