"""A graph with inputs, outputs and dims renamed as in a second file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from onnxopt.proto.messages import body_graphs

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorShapeProto


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename values and dims of the main graph as in `names`, in place, also where bodies read them.

    A value that already has a new name gets a fresh name.
    """
    values = _apart(names, {*_defined(graph), *_read_inside(graph)})
    dims = _apart(names, {d.dim_param for g in _graphs(graph) for d in _dims(g)})
    for scope in _graphs(graph):
        for dim in _dims(scope):
            if dim.dim_param in dims:
                dim.dim_param = dims[dim.dim_param]
    _rename(graph, values)


def _apart(names: Mapping[str, str], there: set[str]) -> dict[str, str]:
    """Return `names` limited to names in `there`, with fresh names for displaced values."""
    found = {name: new for name, new in names.items() if name in there}
    for new in [*found.values()]:
        if new in there and new not in found:
            other = f"{new}_"
            while other in there or other in found.values():
                other += "_"
            found[new] = other
    return found


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        info.name = names.get(info.name, info.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for node in graph.node:
        for field in (node.input, node.output):
            if any(name in names for name in field):
                field[:] = [names.get(name, name) for name in field]
        for body in _bodies(node):
            _rename(body, _inside(names, body))


def _inside(names: Mapping[str, str], body: GraphProto) -> Mapping[str, str]:
    """Return the renaming in a body.

    A value defined in the body keeps its name, unless the name would hide a renamed value read in the body.
    """
    own = _defined(body)
    if own.isdisjoint(names) and own.isdisjoint(names.values()):
        return names
    read = _read_inside(body)
    return _apart({name: new for name, new in names.items() if name not in own and name in read}, own | read)


def _defined(graph: GraphProto) -> set[str]:
    found = {i.name for i in (*graph.input, *graph.initializer)}
    found.update(s.values.name for s in graph.sparse_initializer)
    found.update(name for node in graph.node for name in node.output)
    return found


def _read_inside(graph: GraphProto) -> set[str]:
    found = {name for g in _graphs(graph) for node in g.node for name in node.input}
    return found | {o.name for g in _graphs(graph) for o in g.output}


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and all bodies at any depth."""
    stack = [graph]
    while stack:
        scope = stack.pop()
        yield scope
        stack += [body for node in scope.node for body in _bodies(node)]


def _bodies(node: NodeProto) -> list[GraphProto]:
    return [body for _, body in body_graphs(node)]


def _dims(graph: GraphProto) -> Iterator[TensorShapeProto.Dimension]:
    infos = (*graph.input, *graph.output, *graph.value_info)
    return (d for i in infos for d in i.type.tensor_type.shape.dim if d.dim_param)
