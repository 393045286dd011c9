"""Consistency check of the index: recomputes the invariants maintained by the mutating methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxopt.errors import InvariantError
from onnxopt.graph.schema import results_of
from onnxopt.proto.messages import body_graphs

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.graph.model import Model
    from onnxopt.graph.node import Node
    from onnxopt.graph.value import Value


def check_model(model: Model) -> None:
    """Raise InvariantError, naming scope and node, where index and links disagree."""
    users: dict[Value, dict[Node, int]] = {}
    outputs: dict[Value, int] = {}
    for root in [*model.functions.values(), model.graph]:
        _check_scope(root, set(), set(), users, outputs)
    for scope in model.scopes():
        values = [v for n in scope for v in n.outputs if v is not None]
        values += [*scope.inputs, *scope.initializers.values()]
        for value in values:
            if value.users != users.get(value, {}):
                _fail(scope, f"users of `{value.name}` are {value.users}, counted {users.get(value, {})}")
            if value.output_count < outputs.get(value, 0):
                _fail(scope, f"`{value.name}` is an output {outputs[value]} times, says {value.output_count}")


def _fail(scope: Graph, message: str) -> None:
    raise InvariantError(f"{scope.model.name}: {scope.path}: {message}", "a pass broke the graph: please report it")


def _check_scope(
    scope: Graph,
    visible: set[Value],
    names: set[str],
    users: dict[Value, dict[Node, int]],
    outputs: dict[Value, int],
) -> None:
    visible, names = set(visible), set(names)

    def define(value: Value) -> None:
        if value.name in names:
            _fail(scope, f"`{value.name}` shadows or repeats a name")
        names.add(value.name)
        visible.add(value)

    for value in scope.inputs:
        define(value)
    for name, value in scope.initializers.items():
        if value.name != name or value.producer is not None or value.graph is not scope:
            _fail(scope, f"initializer `{name}` is misfiled")
        if value not in visible:
            define(value)
    previous, count = None, 0
    for node in scope:
        count += 1
        if node.graph is not scope or node.prev is not previous or node not in scope.by_op.get(node.op, {}):
            _fail(scope, f"{node!r} is linked wrongly")
        if bool(node.bodies) != (node in scope.owners):
            _fail(scope, f"{node!r} has bodies the scope does not know")
        previous = node
        for v in node.inputs:
            if v is not None:
                by = users.setdefault(v, {})
                by[node] = by.get(node, 0) + 1
                if v not in visible and not _sparse(v):
                    _fail(scope, f"{node!r} reads `{v.name}` before it is defined")
        written = dict(body_graphs(node.proto)) if node.bodies else {}
        for key, body in node.bodies.items():
            if body.owner is not node:
                _fail(scope, f"a body of {node!r} belongs to another node")
            if body.proto is not written.get(key):
                _fail(scope, f"what is written into {key} of {node!r} is not in the node")
            _check_scope(body, visible, names, users, outputs)
        for i, v in enumerate(node.outputs):
            if v is not None:
                if v.producer is not node or v.index != i or v.graph is not scope:
                    _fail(scope, f"`{v.name}` does not know its producer {node!r}")
                define(v)
        demanded = results_of(node.op, scope.opset(node.op.rpartition("::")[0]))
        if demanded is not None and node not in scope.model.lacking and (missing := demanded.missing(node.outputs)):
            _fail(scope, f"{node!r} {missing}")
    if count != scope.size or scope.last is not previous or count != sum(map(len, scope.by_op.values())):
        _fail(scope, "the node list and its index differ in length")
    if not scope.nodes_changed and any(n.proto is not p for n, p in zip(scope, scope.proto.node, strict=True)):
        _fail(scope, "what is written into its nodes is not in the scope")
    for i, v in enumerate(scope.outputs):
        outputs[v] = outputs.get(v, 0) + 1
        if v in scope.outputs[:i] and v not in scope.model.repeated:
            _fail(scope, f"`{v.name}` is given out twice")
        if v not in visible and not _sparse(v):
            _fail(scope, f"output `{v.name}` is not defined")


def _sparse(value: Value) -> bool:
    """Whether `value` is a sparse initializer, named only in the proto."""
    return value.producer is None and not value.is_input and value.tensor is None and not value.constant
