"""The bodies of model-local functions in place of their calls."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from onnx import ModelProto, NodeProto
from onnx.inliner import inline_local_functions

from onnxopt.errors import ModelError
from onnxopt.protos import DEFAULT_DOMAINS, body_graphs
from onnxopt.worker.calls import refuse_explosion


def inlined(proto: ModelProto, path: Path) -> ModelProto:
    """The model that calls none, by onnx's inliner; `proto` is changed. Raises ModelError where that cannot be, or is
    more than anybody can follow."""
    refuse_explosion(proto, path)
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
    """Remove the functions that nothing calls, as onnx's inliner does, which refuses to begin with too many. Those of
    the standard's domain it may know by another name."""
    for i in range(len(proto.functions) - 1, -1, -1):
        f = proto.functions[i]
        if f.domain not in DEFAULT_DOMAINS and (f.domain, f.name, f.overload) not in called:
            del proto.functions[i]


def _forget_versions(proto: ModelProto) -> None:
    """Let functions import a domain of which they only call functions of the model, or nothing, as the model does: a
    version says nothing of those, and onnx's inliner leaves a function that imports another one as it is."""
    functions = {(f.domain, f.name, f.overload) for f in proto.functions}
    imported = {o.domain: o.version for o in proto.opset_import}
    for function in proto.functions:
        calls = ((n.domain, n.op_type, n.overload) for n in _nodes(function.node))
        kept = {call[0] for call in calls if call not in functions}
        if not kept.isdisjoint(DEFAULT_DOMAINS):  # two names of one
            kept.update(DEFAULT_DOMAINS)
        for opset in function.opset_import:
            if opset.domain not in kept:
                opset.version = imported.get(opset.domain, opset.version)


def _put_back(proto: ModelProto, found: ModelProto) -> None:
    """Add to `found` those functions of `proto` that are called in it and missing: onnx's inliner leaves a function of
    another opset as it is, with its calls, and removes what these call."""
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
    """Give each call the attributes that its function declares a default for: onnx's inliner forgets those. Which
    functions are called.

    Where a function hands on to another an attribute that it is not given, the other has its default: such a call is
    one of a copy of the function that hands on nothing.
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
    """And those in their bodies."""
    for node in nodes:
        yield node
        for _, body in body_graphs(node):
            yield from _nodes(body.node)


def _leave_out(nodes: Iterable[NodeProto], absent: Collection[str]) -> None:
    """Remove what refers to attributes that the function is not given."""
    for node in _nodes(nodes):
        for i in range(len(node.attribute) - 1, -1, -1):
            if node.attribute[i].ref_attr_name in absent:
                del node.attribute[i]
