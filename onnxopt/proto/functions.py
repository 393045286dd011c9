"""Model-local functions: bounds on their calls, counted without inlining, and inlining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from pathlib import Path
from typing import Final, TypeAlias

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from onnxopt.errors import ModelError
from onnxopt.proto.messages import DEFAULT_DOMAINS, all_nodes, body_graphs, fields, make_attribute, training_graphs

Key: TypeAlias = tuple[str, str, str]  # (domain, name, overload) of a function

_MAX_NODES: Final = 1_000_000  # after inlining
_MAX_DEPTH: Final = 100  # of nested calls; onnx accepts no more
_HINT: Final = "let functions call each other less often, or export the model without functions"


def refuse_explosion(proto: ModelProto, name: object) -> None:
    """Raise ModelError for recursive functions, and for too many nodes after inlining, naming the function.

    Thirty functions that each call the previous twice expand to a thousand million nodes, so following calls (shape
    inference, an inliner, a runtime) does not terminate. The count takes linear time.
    """
    if not proto.functions:
        return
    counted = {_key(f): _count(f.node) for f in proto.functions}
    calls = {key: {k: n for k, n in called.items() if k in counted} for key, (_, called) in counted.items()}
    try:
        callees_first = list(TopologicalSorter(calls).static_order())
    except CycleError as e:
        raise ModelError(f"{name}: function {_label(e.args[1][0])} calls itself", _HINT) from None
    totals: dict[Key, tuple[int, int]] = {}  # (nodes, depth) of an inlined call
    for key in callees_first:
        nodes = counted[key][0] + sum(n * totals[k][0] for k, n in calls[key].items())
        depth = 1 + max((totals[k][1] for k in calls[key]), default=0)
        _check(f"function {_label(key)}", nodes, depth, name)
        totals[key] = nodes, depth
    own, called = _count(proto.graph.node)
    nodes = sum(n * totals[k][0] for k, n in called.items() if k in totals)
    largest = max((k for k in called if k in totals), key=lambda k: called[k] * totals[k][0], default=None)
    if largest is not None and nodes > 4 * own:
        _check(f"function {_label(largest)}, with others that the graph calls,", nodes, 0, name)


def _check(who: str, nodes: int, depth: int, name: object) -> None:
    if nodes > _MAX_NODES:
        raise ModelError(f"{name}: {who} stands for {nodes:,} nodes, more than {_MAX_NODES:,}", _HINT)
    if depth > _MAX_DEPTH:
        raise ModelError(f"{name}: {who} calls others {depth} deep, more than {_MAX_DEPTH}", _HINT)


def _domain(name: str) -> str:
    return "" if name in DEFAULT_DOMAINS else name


def _key(function: FunctionProto) -> Key:
    return _domain(function.domain), function.name, function.overload


def _called(node: NodeProto) -> Key:
    """Return the key of the function that a node calls, if there is one."""
    return _domain(node.domain), node.op_type, node.overload


def _label(key: Key) -> str:
    return f"{key[0]}::{key[1]}" + (f":{key[2]}" if key[2] else "")


def _count(nodes: Iterable[NodeProto]) -> tuple[int, Counter[Key]]:
    """Return (number of nodes including bodies, calls by operator)."""
    count, called = 0, Counter[Key]()
    scopes = [nodes]
    while scopes:
        for node in scopes.pop():
            count += 1
            called[_called(node)] += 1
            if node.attribute:
                scopes += [body.node for _, body in body_graphs(node)]
    return count, called


# -- inlining ------------------------------------------------------------------------------------------------------


def instance(
    nodes: Iterable[NodeProto], names: dict[str, str], given: Mapping[str, AttributeProto], fresh: Callable[[str], str]
) -> list[NodeProto]:
    """Return the nodes of a function with names of the caller and attributes of the call.

    `names`: names of the caller for operands and results; `fresh` makes a name for every other value, which `names`
    then has, too. `given`: attributes of the call, with defaults; a reference to another attribute is left out.
    """
    names[""] = ""

    def named(name: str) -> str:
        if name not in names:
            names[name] = fresh(name)
        return names[name]

    made = []
    for node in nodes:
        copy = NodeProto(**fields(node, leave_out=("input", "output", "attribute")))
        copy.input.extend(map(named, node.input))
        copy.output.extend(map(named, node.output))
        copy.attribute.extend(a for a in node.attribute if not a.ref_attr_name)
        for _, body in body_graphs(copy):
            _rename(body, dict(names), given, fresh)
        passed = (a for a in node.attribute if a.ref_attr_name in given)
        copy.attribute.extend(make_attribute(a.name, given[a.ref_attr_name]) for a in passed)
        made.append(copy)
    return made


def _rename(
    body: GraphProto, names: dict[str, str], given: Mapping[str, AttributeProto], fresh: Callable[[str], str]
) -> None:
    """Do as `instance` in a body. Its own names hide equal names of the function."""
    for value in (*body.input, *body.initializer, *(s.values for s in body.sparse_initializer)):
        names[value.name] = fresh(value.name)
        value.name = names[value.name]
    for name in {n for node in body.node for n in node.output}:
        names.pop(name, None)
    nodes = instance(body.node[:], names, given, fresh)
    del body.node[:], body.value_info[:], body.quantization_annotation[:]
    body.node.extend(nodes)
    for value in body.output:
        value.name = names.get(value.name, value.name)


def inlined(proto: ModelProto, path: Path) -> ModelProto:
    """Return the model, changed, with the bodies of functions in place of their calls.

    A function whose operators have other versions than those of the model stays, with the functions that it calls.
    Raises ModelError if the expansion is too large.
    """
    refuse_explosion(proto, path)
    inliner = _Inliner(proto)
    nodes = inliner.expanded(proto.graph.node[:])
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    kept = called_functions(proto)
    for i in reversed(range(len(proto.functions))):
        if _key(proto.functions[i]) not in kept:
            del proto.functions[i]
    return proto


def called_functions(proto: ModelProto) -> set[Key]:
    """Return the functions called by the graphs of a model, those of training included, or by such functions."""
    functions = {_key(f): f for f in reversed(proto.functions)}  # of equal functions, the first is called
    called, scopes = set[Key](), [graph.node for graph in (proto.graph, *training_graphs(proto))]
    while scopes:
        found = {_called(node) for node in all_nodes(scopes.pop())} & functions.keys() - called
        called |= found
        scopes += [functions[key].node for key in found]
    return called


class _Inliner:
    """Puts the bodies of functions in place of calls, and adds the imports of their operators to the model."""

    def __init__(self, proto: ModelProto) -> None:
        self.functions = {_key(f): f for f in reversed(proto.functions)}  # of equal functions, the first is called
        self._imports = proto.opset_import
        self._fits: dict[Key, bool] = {}
        self._names = set().union(*map(_names, (proto.graph, *training_graphs(proto))))
        self._count = 0  # inlined calls

    def expanded(self, nodes: Iterable[NodeProto]) -> list[NodeProto]:
        """Return the nodes, also those of bodies, without calls that can be inlined."""
        found: list[NodeProto] = []
        for node in nodes:
            key = _called(node)
            if key in self.functions and self._is_inlinable(key):
                found += self.expanded(self._body(self.functions[key], node))
                continue
            for _, body in body_graphs(node):
                inner = self.expanded(body.node[:])
                del body.node[:]
                body.node.extend(inner)
            found.append(node)
        return found

    def _body(self, function: FunctionProto, call: NodeProto) -> list[NodeProto]:
        """Return the nodes in place of a call. A result that the function gives out twice, or reads, is copied."""
        self._count += 1
        names = dict(zip_longest(function.input, call.input[: len(function.input)], fillvalue=""))
        results = [(formal, name) for formal, name in zip(function.output, call.output) if name]
        copied = [(formal, name) for formal, name in results if names.setdefault(formal, name) != name]
        given = {a.name: a for a in (*function.attribute_proto, *call.attribute)}
        nodes = instance(function.node, names, given, self._fresh)
        for node in all_nodes(nodes):
            node.name = node.name and f"{node.name}__{self._count}"  # runtimes refuse nodes of equal names
        return nodes + [NodeProto(op_type="Identity", input=[names[f]], output=[name]) for f, name in copied]

    def _fresh(self, name: str) -> str:
        name = f"{name}__{self._count}"
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def _is_inlinable(self, key: Key) -> bool:
        """Whether the model has, or can import, the versions of the domains whose operators the function calls."""
        if key not in self._fits:
            function = self.functions[key]
            domains = {key[0] for key in map(_called, all_nodes(function.node)) if key not in self.functions}
            own, there = _versions(function.opset_import), _versions(self._imports)
            self._fits[key] = all((own | there).get(d) == (there | own).get(d) for d in domains)
            if self._fits[key]:
                for domain in domains & own.keys() - there.keys():
                    self._imports.add(domain=domain, version=own[domain])
        return self._fits[key]


def _versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    return {_domain(o.domain): o.version for o in imports}


def _names(graph: GraphProto) -> set[str]:
    """Return the names of all values of a graph and its bodies."""
    found = {v.name for v in (*graph.input, *graph.initializer, *(s.values for s in graph.sparse_initializer))}
    for node in graph.node:
        found.update(node.input, node.output)
        found = found.union(*(_names(body) for _, body in body_graphs(node)))
    return found
