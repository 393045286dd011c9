"""What every model that leaves the house has to be: looked up in the message itself, whatever the index says."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxopt.errors import InvariantError
from onnxopt.protos import body_graphs, qualified

Interface = tuple[dict[str, bytes], dict[str, bytes]]


def interface_of(proto: ModelProto, stored: Collection[str] | None = None) -> Interface:
    """(inputs, outputs) of a model by name, in order, with their types. An input that has an initializer is optional,
    and which ones are listed is not part of the interface. `stored`: the names of initializers, if they are known."""
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
    """Raise InvariantError where the model takes or gives what it did not before, or does so in another order."""
    for kind, now, before in zip(("input", "output"), interface_of(proto, stored), promised):
        if now == before and list(now) == list(before):
            continue
        changed = [v for v in {**before, **now} if now.get(v) != before.get(v)]
        what = f"the {kind} `{changed[0]}` is not what it was" if changed else f"the {kind}s are in another order"
        _fail(name, "main", what)


def check_structure(proto: ModelProto, name: str = "") -> set[str]:
    """Raise InvariantError, naming scope, node and value, unless every node has an operator, and every name that is
    read is defined before, in its scope or around it, and none twice in one scope. Linear. Returns the names of the
    main graph's initializers."""
    for function in proto.functions:
        label = f"function {function.domain}::{function.name}"
        _check(name, label, function, set(function.input), ())
    stored = _stored(name, "main", proto.graph)
    _check(name, "main", proto.graph, stored | _inputs(name, "main", proto.graph), ())
    return stored


def _check(
    name: str, path: str, scope: GraphProto | FunctionProto, defined: set[str], outer: tuple[set[str], ...]
) -> None:
    """`defined`: what the scope is given. `outer`: what is defined around it so far, innermost first."""
    defined.add("")  # what is absent
    for node in scope.node[:]:
        if not defined.issuperset(node.input[:]):
            for read in node.input:
                if read not in defined and not any(read in around for around in outer):
                    _fail(name, path, f"{_shown(node)} reads `{read}`, which nothing before it defines")
        if not node.op_type:
            _fail(name, path, f"the node that makes `{', '.join(node.output)}` has no operator")
        for key, body in body_graphs(node):
            inner = f"{path} / {_operator(node)} / {key}"
            _check(name, inner, body, _stored(name, inner, body) | _inputs(name, inner, body), (defined, *outer))
        made = node.output[:]
        if not defined.isdisjoint(made) or (len(made) > 1 and len(set(made)) < len(made)):
            _refuse_twice(name, path, node, defined)
        defined.update(made)
    defined.discard("")
    for result in _results(scope):
        if result not in defined and not any(result in around for around in outer):
            _fail(name, path, f"the output `{result}` is not defined")


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


def _results(scope: Any) -> Iterator[str]:
    return (o if isinstance(o, str) else o.name for o in scope.output)


def _operator(node: NodeProto) -> str:
    return qualified(node.op_type, node.domain) + (f' "{node.name}"' if node.name else "")


def _shown(node: NodeProto) -> str:
    return f"{_operator(node)} -> {', '.join(node.output)}"


def _fail(name: str, path: str, message: str) -> None:
    raise InvariantError(
        f"{name or 'model'}: {path}: {message}", "a pass broke the model, nothing was written: please report it"
    )
