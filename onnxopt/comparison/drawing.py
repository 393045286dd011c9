"""Graphs as drawn by the page: node by node, or a box for each closed block if large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

from onnx import GraphProto

from onnxopt.comparison.blocks import share_blocks
from onnxopt.comparison.counterparts import Counterparts, Fate
from onnxopt.comparison.records import ABSENT, LARGE, GraphRecord, elements
from onnxopt.graph.text import shape_text, type_text
from onnxopt.graph.value import Value
from onnxopt.proto.messages import tensor_type, type_name

_BOXES: Final = 1_000
_LENGTH: Final = 120  # characters of a name
_OPERATORS: Final = 12  # listed in a box
NOTE: Final = "The graphs are large: a box stands for a block of nodes, without their details."

Box = tuple[str, int]  # ("node", index) or ("block", index)


@dataclass(frozen=True)
class Side:
    """A graph with the fate of each node, its block, and known rewrites by node."""

    graph: GraphRecord
    fates: list[Fate]
    inside: list[int]
    rewrites: dict[int, str]


def coarse(data: dict[str, Any], sides: Sequence[Side], found: Counterparts) -> dict[str, Any]:
    """Return `data` of `Comparison.to_dict()` with boxes in place of nodes, and all node indices replaced."""
    around = [b["parent"] for b in data["blocks"]]
    closed = _closed(around, sides)
    boxes, of = zip(*(_boxes(side, closed) for side in sides))
    number, blocks = _open_blocks(data["blocks"], closed)
    labels = [b["label"][:_LENGTH] for b in data["blocks"]]

    def spot(found: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if found is None else (found[0], of[found[0]][found[1]])

    def spots(place: dict[str, Any]) -> dict[str, Any]:
        return {
            "nodes": [[None if i is None else of[k][i] for i in side] for k, side in enumerate(place["nodes"])],
            "rewrites": [spot(found) for found in place["rewrites"]],
        }

    pairs, merged = _between(boxes, of, found) if len(sides) > 1 else ([], [])
    return data | {
        "notes": [*data["notes"], NOTE],
        "blocks": blocks,
        "graphs": [
            _coarse_graph(side, drawn, around, number, labels, inside) for side, drawn, inside in zip(sides, boxes, of)
        ],
        "pairs": pairs,
        "merged": merged,
        "examples": {text: spot(found) for text, found in data["examples"].items()},
        "left_out": [spot(found) for found in data["left_out"]],
        "places": [spots(place) for place in data["places"]],
    }


def _open_blocks(
    blocks: list[dict[str, Any]], closed: Sequence[int | None]
) -> tuple[dict[int, int], list[dict[str, Any]]]:
    """Return ({block not drawn as a box: new index}, their entries)."""
    number = {at: k for k, at in enumerate(at for at, block in enumerate(closed) if block is None)}
    return number, [
        {"label": b["label"][:_LENGTH], "kind": b["kind"], "parent": number.get(b["parent"], -1)}
        for b in (blocks[at] for at in number)
    ]


def _between(
    boxes: Sequence[dict[Box, list[int]]], of: Sequence[list[int]], found: Counterparts
) -> tuple[list[tuple[int, int]], list[tuple[int, list[int]]]]:
    """Return (pairs of corresponding boxes, boxes merged into others)."""
    blocks, alone = ([_of_kind(kind, drawn) for drawn in boxes] for kind in ("block", "node"))
    pairs = {(k, blocks[1][at]) for at, k in blocks[0].items() if at in blocks[1]}
    pairs |= {(k, alone[1][j]) for i, k in alone[0].items() if (j := found.pair.get(i)) in alone[1]}
    merged = {k: sorted({of[1][j] for j in found.merged[i]}) for i, k in alone[0].items() if i in found.merged}
    return sorted(pairs), sorted(merged.items())


def _of_kind(kind: str, boxes: Iterable[Box]) -> dict[int, int]:
    """Return {block or node: index of its box}."""
    return {at: k for k, (found, at) in enumerate(boxes) if found == kind}


def _closed(around: list[int], sides: Sequence[Side]) -> list[int | None]:
    """Return, by block, the outermost closed block that contains it; None if all are open. Parents precede children."""
    inner: list[list[int]] = [[] for _ in around]
    for at, parent in enumerate(around):
        if parent >= 0:
            inner[parent].append(at)
    opened = _opened(inner, sides)
    found: list[int | None] = []
    for at, parent in enumerate(around):
        outer = found[parent] if parent >= 0 else None
        found.append(outer if outer is not None else None if at in opened else at)
    return found


def _opened(inner: list[list[int]], sides: Sequence[Side]) -> set[int]:
    """Return the open blocks. Blocks open from the outside in, as long as the number of boxes is bounded."""
    held = [Counter(side.inside) for side in sides]
    total, opened, waiting = 0, set(), [0]
    for at in waiting:
        items = len(inner[at]) + max(count[at] for count in held)
        if total + items <= _BOXES:
            total += items
            opened.add(at)
            waiting += inner[at]
    return opened


def _boxes(side: Side, closed: list[int | None]) -> tuple[dict[Box, list[int]], list[int]]:
    """Return (nodes of each box, box of each node): a box is a closed block, or a single node."""
    found: dict[Box, list[int]] = {}
    for i, at in enumerate(side.inside):
        block = closed[at]
        found.setdefault(("node", i) if block is None else ("block", block), []).append(i)
    of = {i: k for k, members in enumerate(found.values()) for i in members}
    return found, [of[i] for i in range(len(of))]


def _coarse_graph(
    side: Side,
    boxes: dict[Box, list[int]],
    around: list[int],
    number: dict[int, int],
    labels: list[str],
    inside: list[int],
) -> dict[str, Any]:
    graph, main = side.graph, side.graph.scopes[0]
    values, inputs, outputs = _values(graph, inside, len(boxes))
    drawn: list[list[Any]] = []
    for k, ((kind, at), members) in enumerate(boxes.items()):
        fates = {side.fates[i].value for i in members}
        fate = fates.pop() if len(fates) == 1 else "changed"
        if kind == "node":
            op, name, block = graph.nodes[at].op, graph.nodes[at].name[:_LENGTH], number[side.inside[at]]
            attributes: list[tuple[str, str]] = []
        else:
            op, name, block = labels[at] or "block", f"{len(members):,} nodes", number.get(around[at], 0)
            counted = Counter(graph.nodes[i].op for i in members).most_common(_OPERATORS)
            attributes = [(op, f"{n:,}") for op, n in counted]
        drawn.append([op, name, 0, inputs[k], outputs[k], attributes, fate, block, ""])
    ends = {
        end: list(dict.fromkeys(values[v] for v in found if v in values))
        for end, found in (("inputs", main.inputs), ("outputs", main.outputs))
    }
    return {
        "values": [[name[:_LENGTH], kind] for name, kind in _typed([graph.values[v] for v in values])],
        "scopes": [asdict(main) | ends],
        "nodes": drawn,
    }


def _typed(values: list[Value]) -> list[tuple[str, str]]:
    """Return names and types of values. Only declared types are used, as inference takes too long."""
    names = {v.name for v in values}
    proto = values[0].graph.model.proto.graph if values else GraphProto()
    said = {i.name: tensor_type(i.type) for i in (*proto.input, *proto.value_info, *proto.output) if i.name in names}
    types = {name: shape_text(type_name(kind).lower(), dims) for name, (kind, dims) in said.items() if kind}
    return [(v.name, type_text(v) or types.get(v.name, "")) for v in values]


def _values(
    graph: GraphRecord, inside: list[int], count: int
) -> tuple[dict[int, int], list[list[int]], list[list[int]]]:
    """Return ({value: new index}, values read by box, values made by box) for values between boxes.

    Of values with equal maker and readers, only the first is kept.
    """
    main = graph.scopes[0]
    ends = {v: "input" for v in main.inputs if not graph.values[v].constant} | dict.fromkeys(main.outputs, "output")
    makers = {v: inside[i] for i, node in enumerate(graph.nodes) for v in node.outputs if v != ABSENT}
    readers = _readers(graph, inside, dict.fromkeys(ends) | makers)
    firsts: dict[tuple[int | None, str | None, tuple[int, ...]], int] = {}
    for v in dict.fromkeys([*ends, *readers]):
        firsts.setdefault((makers.get(v), ends.get(v), tuple(readers.get(v, ()))), v)
    inputs, outputs = ([list[int]() for _ in range(count)] for _ in range(2))
    for new, (maker, _, reading) in enumerate(firsts):
        if maker is not None:
            outputs[maker].append(new)
        for k in reading:
            inputs[k].append(new)
    return {v: new for new, v in enumerate(firsts.values())}, inputs, outputs


def _readers(graph: GraphRecord, inside: list[int], makers: dict[int, int | None]) -> dict[int, dict[int, None]]:
    """Return {value: boxes that read the value, without the box that makes the value}, in order."""
    readers: dict[int, dict[int, None]] = {}
    given = ((node.inputs, inside[i]) for i, node in enumerate(graph.nodes))
    bodies = ((scope.outputs, inside[scope.owner]) for scope in graph.scopes if scope.owner is not None)
    for read, box in chain(given, bodies):
        for v in read:
            if v in makers and makers[v] != box:
                readers.setdefault(v, {})[box] = None
    return readers


_NAMES: Final = 2_000_000  # characters of all names, up to which every node is drawn


def drawing(data: dict[str, Any], graphs: Sequence[GraphRecord], found: Counterparts) -> dict[str, Any]:
    """Return `data` with the graph of a model, or two graphs and their correspondence."""
    shared = share_blocks(graphs, found)
    rewrites = [{i: e.name for i, e in made.items()} for made in (found.rewrites_before, found.rewrites_after)]
    sides = [Side(*of_a_graph) for of_a_graph in zip(graphs, (found.before, found.after), shared.inside, rewrites)]
    data |= {"blocks": [{"label": b.label, "kind": b.kind, "parent": parent} for b, parent in shared.blocks]}
    names = sum(sum(len(n.name) for n in g.nodes) + sum(len(v.name) for v in g.values) for g in graphs)
    if max(len(g.nodes) for g in graphs) > LARGE or names > _NAMES:
        return coarse(data, sides, found)
    return data | {
        "graphs": [_graph(side) for side in sides],
        "pairs": sorted(found.pair.items()),
        "merged": [*found.merged.items()],
    }


def _graph(side: Side) -> dict[str, Any]:
    """Return the record of a graph, in lists rather than objects, as nodes may be many thousands."""
    graph = side.graph
    constants = [(v, elements(v)) for v in graph.values]
    return {
        "values": [[v.name, type_text(v)] + ([held] if held is not None else []) for v, held in constants],
        "scopes": [asdict(s) for s in graph.scopes],
        "nodes": [
            [n.op, n.name, n.scope, n.inputs, n.outputs, n.attributes, fate.value, place, side.rewrites.get(i, "")]
            for i, (n, fate, place) in enumerate(zip(graph.nodes, side.fates, side.inside, strict=True))
        ],
    }
