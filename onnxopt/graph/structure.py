"""Invariants: the message's names and interface before writing, and the consistency of the index in debug mode."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxopt.errors import InvariantError
from onnxopt.graph.schema import signature
from onnxopt.proto.messages import body_graphs, qualified

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.graph.model import Model
    from onnxopt.graph.node import Node
    from onnxopt.graph.value import Value


Interface = tuple[dict[str, bytes], dict[str, bytes]]


def interface_of(proto: ModelProto, stored: Collection[str] | None = None) -> Interface:
    """Return (inputs, outputs) of a model: serialized types by name, in order.

    Inputs with an initializer are optional, and not part of the interface. `stored`: the initializers' names, if known.
    """
    graph = proto.graph
    optional = {t.name for t in graph.initializer} if stored is None else set(stored)
    optional.update(s.values.name for s in graph.sparse_initializer)
    return (
        {i.name: i.type.SerializeToString() for i in graph.input if i.name not in optional},
        {o.name: o.type.SerializeToString() for o in graph.output},
    )


def check_interface(
    proto: ModelProto, promised: Interface, name: str = "", stored: Collection[str] | None = None
) -> None:
    """Raise InvariantError if inputs or outputs differ from `promised` in name, type or order."""
    for kind, now, before in zip(("input", "output"), interface_of(proto, stored), promised):
        if now == before and list(now) == list(before):
            continue
        changed = [v for v in {**before, **now} if now.get(v) != before.get(v)]
        what = f"the {kind} `{changed[0]}` is not what it was" if changed else f"the {kind}s are in another order"
        _fail(name, "main", what)


class Excused:
    """Violations that the file had from the beginning, and no pass may add.

    `nodes`: ids of node messages that lack a required output. `outputs`: names that a scope lists more than once.
    """

    def __init__(self, nodes: Collection[int] = (), outputs: Collection[str] = ()) -> None:
        self.nodes, self.outputs = nodes, outputs


NOTHING: Final = Excused()


def check_structure(proto: ModelProto, name: str = "", excused: Excused = NOTHING) -> set[str]:
    """Return the main graph's initializers. Raises InvariantError, with scope, node and value, for a malformed model.

    Each node has an operator and all required outputs. Each name is defined before it is read, in its scope or an outer
    scope, and only once in a scope. No scope lists an output twice. Linear time.
    """
    for function in proto.functions:
        label = f"function {function.domain}::{function.name}"
        _check(_Root(name, function, excused), label, function, set(function.input), ())
    stored = _stored(name, "main", proto.graph)
    _check(_Root(name, proto, excused), "main", proto.graph, stored | _inputs(name, "main", proto.graph), ())
    return stored


class _Root:
    """Data shared by the main graph, or a function, and all its nested bodies."""

    def __init__(self, name: str, proto: ModelProto | FunctionProto, excused: Excused) -> None:
        self.name = name
        self.excused = excused
        self.opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
        self.single: set[str] = set()  # standard operators that require at most 1 output

    def missing(self, node: NodeProto, made: Sequence[str]) -> str:
        """Return why the outputs of a node violate its schema; empty for valid nodes and for violations of the file."""
        op = qualified(node.op_type, node.domain)
        demanded = signature(op, self.opsets.get(op.rpartition("::")[0], 0))
        if demanded is None:
            return ""
        if demanded.outputs[0] <= 1:
            self.single.add(node.op_type)
        missing = demanded.lacks(made)
        return missing if missing and id(node) not in self.excused.nodes else ""


def _check(
    root: _Root, path: str, scope: GraphProto | FunctionProto, defined: set[str], outer: tuple[set[str], ...]
) -> None:
    """Check a scope. `defined`: names given to the scope. `outer`: names defined around it so far, innermost first."""
    defined.add("")  # the name of an absent input
    name, single = root.name, root.single
    for node in scope.node[:]:
        if not defined.issuperset(node.input[:]) and (unknown := _undefined(node.input, defined, *outer)) is not None:
            _fail(name, path, f"{_shown(node)} reads `{unknown}`, which nothing before it defines")
        op_type = node.op_type
        if not op_type:
            _fail(name, path, f"the node that makes `{', '.join(node.output)}` has no operator")
        for key, body in body_graphs(node):
            inner = f"{path} / {_operator(node)} / {key}"
            _check(root, inner, body, _stored(name, inner, body) | _inputs(name, inner, body), (defined, *outer))
        made = node.output[:]
        if (len(made) != 1 or not made[0] or op_type not in single) and (missing := root.missing(node, made)):
            _fail(name, path, f"{_shown(node)} {missing}")
        if not defined.isdisjoint(made) or (len(made) > 1 and len(set(made)) < len(made)):
            _refuse_twice(name, path, node, defined)
        defined.update(made)
    defined.discard("")
    given: set[str] = set()
    for result in _results(scope):
        if _undefined([result], defined, *outer) is not None:
            _fail(name, path, f"the output `{result}` is not defined")
        if result in given and result not in root.excused.outputs:
            _fail(name, path, f"`{result}` is given out twice: runtimes lose one of two outputs that are one value")
        given.add(result)


def _undefined(names: Iterable[str], *scopes: Collection[str]) -> str | None:
    """Return the first name that no scope defines, or None."""
    return next((name for name in names if not any(name in scope for scope in scopes)), None)


def _refuse_twice(name: str, path: str, node: NodeProto, defined: set[str]) -> None:
    own: set[str] = set()
    for made in node.output:
        if made and (made in defined or made in own):
            _fail(name, path, f"`{made}` is defined twice, the second time by {_shown(node)}")
        own.add(made)


def _inputs(name: str, path: str, graph: GraphProto) -> set[str]:
    inputs = {i.name for i in graph.input}
    if len(inputs) < len(graph.input):
        _fail(name, path, "an input is there twice")
    return inputs


def _stored(name: str, path: str, graph: GraphProto) -> set[str]:
    stored = {t.name for t in graph.initializer[:]}
    if len(stored) < len(graph.initializer):
        _fail(name, path, "an initializer is there twice")
    return stored.union(s.values.name for s in graph.sparse_initializer)


def _results(scope: Any) -> list[str]:
    return [o if isinstance(o, str) else o.name for o in scope.output]


def _operator(node: NodeProto) -> str:
    return qualified(node.op_type, node.domain) + (f' "{node.name}"' if node.name else "")


def _shown(node: NodeProto) -> str:
    return f"{_operator(node)} -> {', '.join(node.output)}"


def _fail(name: str, path: str, message: str) -> None:
    raise InvariantError(
        f"{name or 'model'}: {path}: {message}", "a pass broke the model, nothing was written: please report it"
    )


# -- consistency of the index, whose invariants the mutating methods maintain ---------------------------------------


def check_model(model: Model) -> None:
    """Raise InvariantError, naming scope and node, where index and links disagree."""
    users: dict[Value, dict[Node, int]] = {}
    outputs: dict[Value, int] = {}
    for root in [*model.functions.values(), model.graph]:
        _check_names(root, {}, users, outputs)
    for scope in model.scopes():
        _check_nodes(scope)
        values = [v for n in scope for v in n.results]
        values += [*scope.inputs, *scope.initializers.values()]
        for value in values:
            if value.users != users.get(value, {}):
                _refuse_index(scope, f"users of `{value.name}` are {value.users}, counted {users.get(value, {})}")
            if value.output_count < outputs.get(value, 0):
                _refuse_index(scope, f"`{value.name}` is an output {outputs[value]} times, says {value.output_count}")


def _check_names(
    scope: Graph, outer: Mapping[str, Value], users: dict[Value, dict[Node, int]], outputs: dict[Value, int]
) -> None:
    """Check that each name is defined once, and before it is read; count the users and outputs of each value.

    `outer`: the values visible around the scope.
    """
    defined = dict(outer)
    for value in scope.inputs:
        _define(scope, value, defined)
    for name, value in scope.initializers.items():
        if value.name != name or value.producer is not None or value.graph is not scope:
            _refuse_index(scope, f"initializer `{name}` is misfiled")
        if defined.get(name) is not value:
            _define(scope, value, defined)
    for node in scope:
        for v in node.operands:
            by = users.setdefault(v, {})
            by[node] = by.get(node, 0) + 1
            if defined.get(v.name) is not v and not _sparse(v):
                _refuse_index(scope, f"{node!r} reads `{v.name}` before it is defined")
        for body in node.bodies.values():
            _check_names(body, defined, users, outputs)
        for v in node.results:
            _define(scope, v, defined)
    for i, v in enumerate(scope.outputs):
        outputs[v] = outputs.get(v, 0) + 1
        if v in scope.outputs[:i] and v not in scope.model.repeated:
            _refuse_index(scope, f"`{v.name}` is given out twice")
        if defined.get(v.name) is not v and not _sparse(v):
            _refuse_index(scope, f"output `{v.name}` is not defined")


def _define(scope: Graph, value: Value, defined: dict[str, Value]) -> None:
    if value.name in defined:
        _refuse_index(scope, f"`{value.name}` shadows or repeats a name")
    defined[value.name] = value


def _check_nodes(scope: Graph) -> None:
    """Check the list of nodes, the index by operator, and the links of each node to bodies and outputs."""
    previous, count = None, 0
    for node in scope:
        count += 1
        if node.graph is not scope or node.prev is not previous or node not in scope.by_op.get(node.op, {}):
            _refuse_index(scope, f"{node!r} is linked wrongly")
        previous = node
        _check_bodies(scope, node)
        for i, v in enumerate(node.outputs):
            if v is not None and (v.producer is not node or v.index != i or v.graph is not scope):
                _refuse_index(scope, f"`{v.name}` does not know its producer {node!r}")
        demanded = scope.signature(node.op)
        if demanded is not None and node not in scope.model.lacking and (missing := demanded.lacks(node.outputs)):
            _refuse_index(scope, f"{node!r} {missing}")
    if count != scope.size or scope.last is not previous or count != sum(map(len, scope.by_op.values())):
        _refuse_index(scope, "the node list and its index differ in length")
    if not scope.nodes_changed and any(n.proto is not p for n, p in zip(scope, scope.proto.node, strict=True)):
        _refuse_index(scope, "what is written into its nodes is not in the scope")


def _check_bodies(scope: Graph, node: Node) -> None:
    if bool(node.bodies) != (node in scope.owners):
        _refuse_index(scope, f"{node!r} has bodies the scope does not know")
    written = dict(body_graphs(node.proto)) if node.bodies else {}
    for key, body in node.bodies.items():
        if body.owner is not node:
            _refuse_index(scope, f"a body of {node!r} belongs to another node")
        if body.proto is not written.get(key):
            _refuse_index(scope, f"what is written into {key} of {node!r} is not in the node")


def _sparse(value: Value) -> bool:
    """Whether `value` is a sparse initializer, named only in the proto."""
    return value.producer is None and not value.is_input and value.tensor is None and not value.constant


def _refuse_index(scope: Graph, message: str) -> None:
    raise InvariantError(f"{scope.model.name}: {scope.path}: {message}", "a pass broke the graph: please report it")
