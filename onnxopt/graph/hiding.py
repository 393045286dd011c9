"""Names of a body's inputs and outputs that hide a value around the body, and have to: its operator binds them by name.

The index has one name for one value: what hides another gets a name of its own when a model is read. The file keeps the
name if the body is bound by name (`Graph.is_bound_by_name`), as BeamSearch of com.microsoft is. `Model.hiding` has such
values with their names in the file. What passes have such a body read of the values that it hides is read through a
copy, which only the file has.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from onnx import NodeProto

from onnxopt.graph.model import Model, inner_scopes

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.graph.node import Node
    from onnxopt.graph.value import Value


def is_hidden(value: Value, scope: Graph) -> bool:
    """Does the name of `value` in the file mean another value in `scope`, a body below that of `value`?"""
    return bool(value.graph.model.hiding) and _Names(value.graph.model).hiding_body(value, scope) is not None


def write_hiding(model: Model, scopes: Iterable[Graph]) -> None:
    """Write the names that the file has into the protos of these scopes, of which the index has others. Nodes that read
    or make what is called otherwise stay stale, and scopes with copies changed: they do not say what the index says."""
    if model.hiding:
        names = _Names(model, dict.fromkeys(scopes))
        for scope in names.scopes or ():
            names.write(scope)


def copies_before(nodes: Sequence[Node], scopes: Iterable[Graph]) -> dict[Node, list[NodeProto]]:
    """The Identity nodes by which bodies read in the file what they hide; each with the node of `nodes` before which it
    is. `scopes`: the bodies that are written."""
    model = nodes[0].graph.model if nodes and nodes[0].graph is not None else None
    return _Names(model, dict.fromkeys(scopes)).copies(nodes) if model is not None and model.hiding else {}


class _Names:
    """What values are called in the file. `scopes`: those that are written, None for all; what is around them is called
    as in the index."""

    def __init__(self, model: Model, scopes: Collection[Graph] | None = None) -> None:
        self.model = model
        self.scopes = scopes

    def own(self, value: Value) -> str:
        """The name of a value where nothing hides it."""
        graph, name = value.graph, self.model.hiding.get(value, value.name)
        if name != value.name and self._is_written(graph) and graph.owner is not None and graph.is_bound_by_name:
            return name if value in graph.inputs or value in graph.outputs else value.name
        return value.name

    def inside(self, value: Value, scope: Graph) -> str:
        """The name by which a value is read in `scope`."""
        return self.own(value) if self.hiding_body(value, scope) is None else self._copy(value)

    def hiding_body(self, value: Value, scope: Graph) -> Graph | None:
        """The outermost body around `scope`, below that of `value`, of which an input or output has the same name."""
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
        """Each before the first of these nodes of one scope that needs it, if the scope has the value itself."""
        found: dict[Node, list[NodeProto]] = {}
        done: set[Value] = set()
        for owner in (node for node in nodes if node.bodies):
            for body in owner.bodies.values():
                for scope in inner_scopes(body):
                    for v in itertools.chain(*(node.inputs for node in scope), scope.outputs):
                        is_here = v is not None and (v.graph is owner.graph or not self._is_written(v.graph))
                        if v is None or v in done or not is_here or self.hiding_body(v, scope) is None:
                            continue
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
            held = field[before:]  # as long as they are, no other message has the id of one
            place.update(zip(map(id, held), where))
            field.sort(key=lambda proto: place[id(proto)])
            scope.nodes_changed = True  # the next to write it leaves them out
