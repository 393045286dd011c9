"""References by name: quantization annotations of values, and names that operators bind in their bodies."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from onnx import NodeProto

from onnxopt.graph.model import Model, inner_scopes

if TYPE_CHECKING:
    from onnx import TensorAnnotation

    from onnxopt.graph.graph import Graph
    from onnxopt.graph.node import Node
    from onnxopt.graph.value import Value


# -- quantization annotations, removed together with the annotated value -------------------------------------------


def values_named(graph: Graph) -> set[str]:
    """Return the names of all values of a scope, sparse initializers included."""
    names = {v.name for node in graph for v in node.results}
    names.update(graph.initializers, (v.name for v in graph.inputs))
    names.update(s.values.name for s in graph.proto.sparse_initializer)
    names.update(name for v, name in graph.model.hiding.items() if v.graph is graph)
    return names


def pin(graph: Graph) -> None:
    """Keep the initializers that annotations of the main graph name, even if no node reads them.

    Initializers added later are not pinned.
    """
    for annotation in graph.proto.quantization_annotation:
        for value in _annotating(graph, annotation):
            value.output_count += 1
            graph.pinned.add(value)


def _annotating(graph: Graph, annotation: TensorAnnotation) -> list[Value]:
    found = (graph.initializers.get(entry.value) for entry in annotation.quant_parameter_tensor_names)
    return [value for value in found if value is not None]


def drop_vanished(graph: Graph, names: set[str] | None = None) -> bool:
    """Remove annotations of removed values, and unpin the initializers they name. Returns whether any annotation went.

    Annotations of names unknown to the index stay as in the file. `names`: the names of the scope, if known.
    """
    annotations = graph.proto.quantization_annotation
    if not annotations:
        return False
    names = values_named(graph) if names is None else names
    once = graph.model.names
    gone = [i for i, a in enumerate(annotations) if a.tensor_name not in names and a.tensor_name in once]
    for i in reversed(gone):
        if graph is graph.model.graph:
            for value in _annotating(graph, annotations[i]):
                value.output_count -= value in graph.pinned
        del annotations[i]
    return bool(gone)


# -- inputs and outputs that an operator binds by name, and that shadow an outer value -----------------------------
#
# In the index each name belongs to a single value: the reader renames a value that shadows another. The file keeps the
# name if the body is bound by name (`Graph.is_bound_by_name`), for example in BeamSearch of com.microsoft.
# `Model.hiding` maps renamed values to the names in the file. If a pass makes the body read a shadowed value, the file
# reads a copy (Identity) under another name; the index has no copy.


def is_hidden(value: Value, scope: Graph) -> bool:
    """Whether the file's name of `value` denotes another value in `scope`, a body nested below the scope of `value`."""
    return bool(value.graph.model.hiding) and _Names(value.graph.model).hiding_body(value, scope) is not None


def write_hiding(model: Model, scopes: Iterable[Graph]) -> None:
    """Write the file's names into the protos of `scopes`, where they differ from the names of the index.

    Affected nodes stay stale, and scopes with copies stay changed, since the protos differ from the index.
    """
    if model.hiding:
        names = _Names(model, dict.fromkeys(scopes))
        for scope in names.scopes or ():
            names.write(scope)


def copies_before(nodes: Sequence[Node], scopes: Iterable[Graph]) -> dict[Node, list[NodeProto]]:
    """Return the Identity nodes to put before each owner among `nodes`: copies of values shadowed in its bodies.

    `scopes`: the scopes to write.
    """
    model = nodes[0].graph.model if nodes and nodes[0].graph is not None else None
    return _Names(model, dict.fromkeys(scopes)).copies(nodes) if model is not None and model.hiding else {}


class _Names:
    """Names of values in the file. `scopes`: the scopes to write, None for all; others keep the names of the index."""

    def __init__(self, model: Model, scopes: Collection[Graph] | None = None) -> None:
        self.model = model
        self.scopes = scopes

    def own(self, value: Value) -> str:
        """Return the file's name of a value where nothing shadows it."""
        graph, name = value.graph, self.model.hiding.get(value, value.name)
        if name != value.name and self._is_written(graph) and graph.owner is not None and graph.is_bound_by_name:
            return name if value in graph.inputs or value in graph.outputs else value.name
        return value.name

    def inside(self, value: Value, scope: Graph) -> str:
        """Return the name by which `scope` reads a value."""
        return self.own(value) if self.hiding_body(value, scope) is None else self._copy(value)

    def hiding_body(self, value: Value, scope: Graph) -> Graph | None:
        """Return the outermost body around `scope`, inside the scope of `value`, that binds its name; else None."""
        hiding, name = self.model.hiding, self.own(value)
        found, at = None, scope
        while at is not value.graph and self._is_written(at):
            if any(v in hiding and self.own(v) == name for v in (*at.inputs, *at.outputs)):
                found = at
            if at.parent is None:
                break
            at = at.parent
        return found

    def _is_written(self, scope: Graph) -> bool:
        return self.scopes is None or scope in self.scopes

    def _copy(self, value: Value) -> str:
        if value not in self.model.copied:
            self.model.copied[value] = self.model.names.fresh(value.name)
        return self.model.copied[value]

    def copies(self, nodes: Iterable[Node]) -> dict[Node, list[NodeProto]]:
        """Return the copies by the first node to need each. A copy is made only in the scope of its value."""
        found: dict[Node, list[NodeProto]] = {}
        done: set[Value] = set()
        for owner in (node for node in nodes if node.bodies):
            for v, scope in _reads_inside(owner):
                is_here = v.graph is owner.graph or not self._is_written(v.graph)
                if is_here and v not in done and self.hiding_body(v, scope) is not None:
                    done.add(v)
                    copy = NodeProto(op_type="Identity", input=[self.own(v)], output=[self._copy(v)])
                    found.setdefault(owner, []).append(copy)
        return found

    def write(self, scope: Graph) -> None:
        for node in scope:
            for field, ends in ((node.proto.input, node.inputs), (node.proto.output, node.outputs)):
                for i, v in enumerate(ends):
                    if v is not None and (name := self.inside(v, scope)) != v.name:
                        field[i], node.stale = name, True
        if scope.owner is not None:
            for info, v in (*zip(scope.proto.input, scope.inputs), *zip(scope.proto.output, scope.outputs)):
                info.name = self.inside(v, scope)
        if copies := self.copies(scope) if scope.owners else {}:
            field, before = scope.proto.node, len(scope.proto.node)
            place: dict[int, float] = {id(node.proto): i for i, node in enumerate(scope)}
            where = [place[id(node.proto)] - 0.5 for node, made in copies.items() for _ in made]
            field.extend(itertools.chain(*copies.values()))
            held = field[before:]  # keeps the messages alive, so their ids stay unique
            place.update(zip(map(id, held), where))
            field.sort(key=lambda proto: place[id(proto)])
            scope.nodes_changed = True  # the next write removes the copies


def _reads_inside(owner: Node) -> Iterator[tuple[Value, Graph]]:
    """Yield each value read in the bodies of `owner`, with the reading scope."""
    for body in owner.bodies.values():
        for scope in inner_scopes(body):
            for node in scope:
                yield from ((v, scope) for v in node.operands)
            yield from ((v, scope) for v in scope.outputs)
