"""What every model that leaves the house has to be: looked up in the message itself, whatever the index says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxopt.errors import InvariantError
from onnxopt.graph.schema import results_of
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


class Excused(NamedTuple):
    """What a file had from the beginning, and no pass may make."""

    nodes: Collection[int] = ()  # ids of the messages of nodes without a result that their operator has to give
    outputs: Collection[str] = ()  # names that a scope gives out more than once


NOTHING: Final = Excused()


def check_structure(proto: ModelProto, name: str = "", excused: Excused = NOTHING) -> set[str]:
    """Raise InvariantError, naming scope, node and value, unless every node has an operator and the results that it has
    to give, every name that is read is defined before, in its scope or around it, and none twice in one scope, and no
    scope gives out one value twice. Linear. Returns the names of the main graph's initializers."""
    for function in proto.functions:
        label = f"function {function.domain}::{function.name}"
        _check(_Root(name, function, excused), label, function, set(function.input), ())
    stored = _stored(name, "main", proto.graph)
    _check(_Root(name, proto, excused), "main", proto.graph, stored | _inputs(name, "main", proto.graph), ())
    return stored


class _Root:
    """What holds for a function, or for the main graph, and all bodies in it."""

    def __init__(self, name: str, proto: ModelProto | FunctionProto, excused: Excused) -> None:
        self.name = name
        self.excused = excused
        self.opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
        self.single: set[str] = set()  # operators of the standard that have to give one result at most

    def missing(self, node: NodeProto, made: Sequence[str]) -> str:
        """What is wrong with the results of a node; empty if nothing is, or the file had it."""
        op = qualified(node.op_type, node.domain)
        demanded = results_of(op, self.opsets.get(op.rpartition("::")[0], 0))
        if demanded is None:
            return ""
        if demanded.least <= 1:
            self.single.add(node.op_type)
        missing = demanded.missing(made)
        return missing if missing and id(node) not in self.excused.nodes else ""


def _check(
    root: _Root, path: str, scope: GraphProto | FunctionProto, defined: set[str], outer: tuple[set[str], ...]
) -> None:
    """`defined`: what the scope is given. `outer`: what is defined around it so far, innermost first."""
    defined.add("")  # what is absent
    name, single = root.name, root.single
    for node in scope.node[:]:
        if not defined.issuperset(node.input[:]):
            for read in node.input:
                if read not in defined and not any(read in around for around in outer):
                    _fail(name, path, f"{_shown(node)} reads `{read}`, which nothing before it defines")
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
        if result not in defined and not any(result in around for around in outer):
            _fail(name, path, f"the output `{result}` is not defined")
        if result in given and result not in root.excused.outputs:
            _fail(name, path, f"`{result}` is given out twice: runtimes lose one of two outputs that are one value")
        given.add(result)


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
