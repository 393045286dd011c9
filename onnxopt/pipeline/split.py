"""Splits a model into parts that run in sequence: partitions, and the nodes between them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from onnx import ModelProto

from onnxopt.analysis.submodel import boundary, is_stored, submodel
from onnxopt.errors import UsageError
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.io.external import ExternalData, data_of, inline_data
from onnxopt.pipeline.convex import stages
from onnxopt.pipeline.partition import Partition, dependencies


@dataclass(frozen=True)
class Outline:
    """Description of a part. `inputs`: names to feed, `outputs`: all its results; `partition`: id of its partition, or
    None."""

    name: str
    partition: int | None
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def supported(self) -> bool:
        return self.partition is not None


@dataclass(frozen=True)
class Part(Outline):
    """A model of a split."""

    proto: ModelProto = field(repr=False)


def split(model: Model, partitions: Sequence[Partition]) -> list[Part]:
    """Return the main graph as an ordered list of parts, each a model.

    Run in order, each fed by name from the model's inputs and earlier outputs, the parts compute the model's results.
    Nodes outside the partitions form as few parts as possible; dead nodes are left out. Raises UsageError for
    partitions that overlap, form a cycle or are not in the main graph, and ModelError if the type of a value between
    parts is unknown.
    """
    data = data_of(model)
    return [_part(model.graph, found, data) for found in outline(model, partitions)]


def outline(model: Model, partitions: Sequence[Partition]) -> list[Outline]:
    """Return the parts of `split` without their models. Raises the same UsageError."""
    graph = model.graph
    found: list[tuple[int | None, tuple[Node, ...], tuple[str, ...], tuple[str, ...]]] = []
    for key, nodes in _groups(graph, partitions):
        read, _, results = boundary(nodes)
        if results:
            inputs = tuple(v.name for v in read if not is_stored(v))
            found.append((key, tuple(nodes), inputs, tuple(v.name for v in results)))
    width = max(3, len(str(len(found))))
    if constants := [v for v in dict.fromkeys(graph.outputs) if is_stored(v)]:
        found.append((None, (), (), tuple(v.name for v in constants)))
    return [Outline(f"part_{i:0{width}d}", *about) for i, about in enumerate(found)]


def _groups(graph: Graph, partitions: Sequence[Partition]) -> list[tuple[int | None, list[Node]]]:
    """Return partitions and other nodes in execution order, grouped by `stages`: the number of changes between both."""
    nodes, predecessors = dependencies(graph)
    unit = _units(nodes, partitions)
    order, before = _ordered(predecessors, unit, partitions)
    number = {u: i for i, u in enumerate(order)}
    is_rest = [u < 0 for u in order]
    stage = stages([[number[b] for b in before[u]] for u in order], is_rest)
    groups: dict[tuple[int, int], list[Node]] = {}
    for node, u in zip(nodes, unit, strict=True):
        i = number[u]
        groups.setdefault((stage[i], -1 if is_rest[i] else i), []).append(node)
    ids = {i: partitions[u].id for i, u in enumerate(order) if u >= 0}
    return [(ids.get(key[1]), groups[key]) for key in sorted(groups)]


def _units(nodes: list[Node], partitions: Sequence[Partition]) -> list[int]:
    """Return the unit of each node: its partition by index, or a negative number for a node alone."""
    owner: dict[Node, int] = {}
    for i, partition in enumerate(partitions):
        for node in partition.nodes:
            if node in owner:
                raise UsageError(f"{node!r} is in two partitions")
            owner[node] = i
    unit = [owner.pop(node, -1 - i) for i, node in enumerate(nodes)]
    if owner:
        raise UsageError(f"{next(iter(owner))!r} is a constant, or not in the main graph", "propose partitions again")
    return unit


def _ordered(
    predecessors: list[list[int]], unit: list[int], partitions: Sequence[Partition]
) -> tuple[list[int], dict[int, set[int]]]:
    """Return (units in topological order, the units read by each)."""
    before: dict[int, set[int]] = {u: set() for u in unit}
    after: dict[int, set[int]] = {u: set() for u in unit}
    for u, read in zip(unit, predecessors, strict=True):
        for p in read:
            if unit[p] != u:
                before[u].add(unit[p])
                after[unit[p]].add(u)
    first = {u: i for i, u in reversed(list(enumerate(unit)))}
    waiting = {u: len(b) for u, b in before.items()}
    ready = [(first[u], u) for u, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        u = heapq.heappop(ready)[1]
        order.append(u)
        for reader in after[u]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (first[reader], reader))
    if len(order) < len(before):
        stuck = sorted(partitions[u].id for u, count in waiting.items() if count and u >= 0)
        raise UsageError(f"partitions depend on each other in a circle, among them {stuck[0]}")
    return order, before


def _part(graph: Graph, found: Outline, data: ExternalData) -> Part:
    """Return a part; a part without nodes outputs the constants among the model outputs."""
    outputs = None if found.nodes else [v for v in dict.fromkeys(graph.outputs) if is_stored(v)]
    proto = submodel(graph, found.nodes, found.name, outputs=outputs)
    inline_data(proto, data)
    return Part(**vars(found), proto=proto)
