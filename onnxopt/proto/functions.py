"""Model-local functions: bounds on their calls, counted without inlining, and inlining by onnx."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, TypeAlias

from onnx import FunctionProto, ModelProto, NodeProto

from onnxopt.errors import ModelError
from onnxopt.proto.messages import DEFAULT_DOMAINS, all_nodes, body_graphs

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
    counted = {(f.domain, f.name, f.overload): _count(f.node) for f in proto.functions}
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


def copy_given_out(model: ModelProto) -> None:
    """Give out a copy of each input that a function gives out as it is: onnx's inliner loses such a result."""
    for function in model.functions:
        made = {name for node in function.node for name in node.output}
        for i, name in enumerate(function.output):
            if name in function.input:
                copy = f"{name}_out"
                while copy in made or copy in function.input:
                    copy += "_"
                made.add(copy)
                function.node.add(op_type="Identity", input=[name], output=[copy])
                function.output[i] = copy
                if not any(o.domain in DEFAULT_DOMAINS for o in function.opset_import):
                    function.opset_import.extend(o for o in model.opset_import if o.domain in DEFAULT_DOMAINS)


def _check(who: str, nodes: int, depth: int, name: object) -> None:
    if nodes > _MAX_NODES:
        raise ModelError(f"{name}: {who} stands for {nodes:,} nodes, more than {_MAX_NODES:,}", _HINT)
    if depth > _MAX_DEPTH:
        raise ModelError(f"{name}: {who} calls others {depth} deep, more than {_MAX_DEPTH}", _HINT)


def _label(key: Key) -> str:
    return f"{key[0]}::{key[1]}" + (f":{key[2]}" if key[2] else "")


def _count(nodes: Iterable[NodeProto]) -> tuple[int, Counter[Key]]:
    """Return (number of nodes including bodies, calls by operator)."""
    count, called = 0, Counter[Key]()
    scopes = [nodes]
    while scopes:
        for node in scopes.pop():
            count += 1
            called[node.domain, node.op_type, node.overload] += 1
            if node.attribute:
                scopes += [body.node for _, body in body_graphs(node)]
    return count, called


# -- inlining ------------------------------------------------------------------------------------------------------


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


def _leave_uncalled(proto: ModelProto, called: Collection[Key]) -> None:
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
        calls = ((n.domain, n.op_type, n.overload) for n in all_nodes(function.node))
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
        for node in all_nodes(scopes.pop()):
            function = missing.pop((node.domain, node.op_type, node.overload), None)
            if function is not None:
                found.functions.add().CopyFrom(function)
                scopes.append(function.node)


def _write_defaults(proto: ModelProto) -> set[Key]:
    """Write default attributes of functions into their calls, as onnx's inliner ignores defaults. Returns the called
    functions.

    If a function passes on an attribute without a value, the callee's default holds: such a call uses a copy of the
    function without the attribute.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    copies: dict[tuple[Key, frozenset[str]], Key] = {}
    reached: set[Key] = set()
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
            if _passes_on(function, absent, functions):
                if (key, absent) not in copies:
                    copies[key, absent] = _copy_without(absent, key, functions, proto)
                key = copies[key, absent]
                node.op_type = key[1]
            if key not in reached:
                reached.add(key)
                scopes.append(functions[key].node)
    return reached


def _passes_on(function: FunctionProto, absent: Collection[str], functions: Collection[Key]) -> bool:
    """Whether a function refers to one of the `absent` attributes in a call of another function."""
    calls = (n for n in all_nodes(function.node) if (n.domain, n.op_type, n.overload) in functions)
    return any(a.ref_attr_name in absent for n in calls for a in n.attribute)


def _copy_without(absent: Collection[str], key: Key, functions: dict[Key, FunctionProto], proto: ModelProto) -> Key:
    """Add a copy of a function without references to `absent` attributes. Returns the key of the copy."""
    domain, name, overload = key
    keys = ((domain, f"{name}_{i}", overload) for i in itertools.count(1))
    new = next(k for k in keys if k not in functions)
    copy = functions[new] = proto.functions.add()
    copy.CopyFrom(functions[key])
    copy.name = new[1]
    _leave_out(copy.node, absent)
    return new


def _leave_out(nodes: Iterable[NodeProto], absent: Collection[str]) -> None:
    """Remove references to function attributes without a value."""
    for node in all_nodes(nodes):
        for i in range(len(node.attribute) - 1, -1, -1):
            if node.attribute[i].ref_attr_name in absent:
                del node.attribute[i]
