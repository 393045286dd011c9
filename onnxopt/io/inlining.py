"""Inlines calls of model-local functions."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from onnx import ModelProto, NodeProto

from onnxopt.errors import ModelError
from onnxopt.proto.messages import DEFAULT_DOMAINS, body_graphs
from onnxopt.worker.calls import copy_given_out, refuse_explosion


def inlined(proto: ModelProto, path: Path) -> ModelProto:
    """Return the model with all functions inlined by onnx; `proto` is changed.

    Raises ModelError if impossible, or if the expansion is too large.
    """
    from onnx.inliner import inline_local_functions

    refuse_explosion(proto, path)
    copy_given_out(proto)
    _leave_uncalled(proto, _write_defaults(proto))
    _forget_versions(proto)
    try:
        found = inline_local_functions(proto, False)
    except MemoryError:
        raise
    except Exception as e:
        reason = str(e).strip().splitlines() or [type(e).__name__]
        hint = "`onnxopt optimize` without --inline-functions takes them as they are"
        raise ModelError(f"{path}: its functions cannot be inlined: {reason[0]}", hint) from None
    _put_back(proto, found)
    return found


def _leave_uncalled(proto: ModelProto, called: Collection[tuple[str, str, str]]) -> None:
    """Remove uncalled functions, as onnx's inliner does, which fails with too many functions.

    Functions of the default domain stay, since calls may use another name of the domain.
    """
    for i in range(len(proto.functions) - 1, -1, -1):
        f = proto.functions[i]
        if f.domain not in DEFAULT_DOMAINS and (f.domain, f.name, f.overload) not in called:
            del proto.functions[i]


def _forget_versions(proto: ModelProto) -> None:
    """Set unused opset imports of functions to the model's version.

    onnx's inliner skips functions with other versions, even for domains of which only model-local functions are called.
    """
    functions = {(f.domain, f.name, f.overload) for f in proto.functions}
    imported = {o.domain: o.version for o in proto.opset_import}
    for function in proto.functions:
        calls = ((n.domain, n.op_type, n.overload) for n in _nodes(function.node))
        kept = {call[0] for call in calls if call not in functions}
        if not kept.isdisjoint(DEFAULT_DOMAINS):  # two names of the same domain
            kept.update(DEFAULT_DOMAINS)
        for opset in function.opset_import:
            if opset.domain not in kept:
                opset.version = imported.get(opset.domain, opset.version)


def _put_back(proto: ModelProto, found: ModelProto) -> None:
    """Add to `found` the functions of `proto` called in it, but missing.

    onnx's inliner leaves a function of another opset with its calls, but removes the called functions.
    """
    missing = {(f.domain, f.name, f.overload): f for f in proto.functions}
    for function in found.functions:
        missing.pop((function.domain, function.name, function.overload), None)
    scopes = [found.graph.node, *(f.node for f in found.functions)]
    while missing and scopes:
        for node in _nodes(scopes.pop()):
            function = missing.pop((node.domain, node.op_type, node.overload), None)
            if function is not None:
                found.functions.add().CopyFrom(function)
                scopes.append(function.node)


def _write_defaults(proto: ModelProto) -> set[tuple[str, str, str]]:
    """Write default attributes of functions into their calls, as onnx's inliner ignores defaults. Returns the called
    functions.

    If a function passes on an attribute without a value, the callee's default holds: such a call uses a copy of the
    function without the attribute.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    copies: dict[tuple[object, ...], str] = {}
    reached: set[tuple[str, str, str]] = set()
    scopes = [proto.graph.node]
    while scopes:
        for node in scopes.pop():
            scopes += [body.node for _, body in body_graphs(node)]
            key = node.domain, node.op_type, node.overload
            function = functions.get(key)
            if function is None:
                continue
            given = {a.name for a in node.attribute}
            node.attribute.extend(a for a in function.attribute_proto if a.name not in given)
            absent = frozenset(function.attribute) - given
            calls = [n for n in _nodes(function.node) if (n.domain, n.op_type, n.overload) in functions]
            if any(a.ref_attr_name in absent for n in calls for a in n.attribute):
                if (*key, absent) not in copies:
                    names = (f"{node.op_type}_{i}" for i in itertools.count(1))
                    name = next(name for name in names if (node.domain, name, node.overload) not in functions)
                    copy = functions[node.domain, name, node.overload] = proto.functions.add()
                    copy.CopyFrom(function)
                    copy.name = copies[*key, absent] = name
                    _leave_out(copy.node, absent)
                node.op_type = copies[*key, absent]
                key = node.domain, node.op_type, node.overload
            if key not in reached:
                reached.add(key)
                scopes.append(functions[key].node)
    return reached


def _nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes and the nodes of their bodies."""
    for node in nodes:
        yield node
        for _, body in body_graphs(node):
            yield from _nodes(body.node)


def _leave_out(nodes: Iterable[NodeProto], absent: Collection[str]) -> None:
    """Remove references to function attributes without a value."""
    for node in _nodes(nodes):
        for i in range(len(node.attribute) - 1, -1, -1):
            if node.attribute[i].ref_attr_name in absent:
                del node.attribute[i]
