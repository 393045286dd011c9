"""Peak memory of a run, without weights."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from onnxopt.analysis import types
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.proto.messages import tensor_bytes


@dataclass(frozen=True)
class Peak:
    """`bytes` while `node` runs; `exact` is false if an unknown size was taken as 1."""

    bytes: int
    node: Node | None
    exact: bool


def peak_memory(model: Model) -> Peak:
    """Return the largest sum of live values over the nodes in order: inputs, results, and values still to be read.

    An estimate: each value has its own memory from producer to last reader (runtimes may share memory, or keep it
    longer);
    graph inputs and outputs live throughout. A body adds its peak while its owner runs. Linear in nodes.
    """
    types.update(model)
    return _peak(model.graph)


def _peak(graph: Graph) -> Peak:
    place = {node: i for i, node in enumerate(graph)}
    ends: dict[int, list[Value]] = defaultdict(list)
    exact = True
    live = 0
    for given in graph.inputs:
        size, known = _bytes(given)
        live, exact = live + size, exact and known
    best = Peak(live, None, exact)
    for i, node in enumerate(graph):
        made = 0
        for v in node.outputs:
            if v is None or v.constant:
                continue
            size, known = _bytes(v)
            made, exact = made + size, exact and known
            if not v.is_output:
                ends[max((_at(u, graph, place) for u in v.users), default=i)].append(v)
        inner = [_peak(body) for body in node.bodies.values()]
        exact = exact and all(p.exact for p in inner)
        live += made
        total = live + max((p.bytes for p in inner), default=0)
        if total > best.bytes or best.node is None:
            best = Peak(total, node, exact)
        live -= sum(_bytes(dead)[0] for dead in ends.pop(i, ()))
    return Peak(best.bytes, best.node, exact)


def _at(user: Node, graph: Graph, place: dict[Node, int]) -> int:
    """Return the position in `graph` of a reader, or of the owner of the body around it."""
    while user not in place:
        assert user.graph is not None and user.graph.owner is not None and user.graph is not graph
        user = user.graph.owner
    return place[user]


def _bytes(value: Value) -> tuple[int, bool]:
    dims, kind = types.shape(value), types.dtype(value)
    if dims is None or not kind:
        return 0, False
    sizes = [d if isinstance(d, int) else 1 for d in dims]
    return tensor_bytes(kind, sizes), all(isinstance(d, int) for d in dims)
