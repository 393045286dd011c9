"""Bounds on calls between model functions, counted without inlining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from onnx import ModelProto, NodeProto

from onnxopt.errors import ModelError
from onnxopt.proto.messages import DEFAULT_DOMAINS, body_graphs

Key = tuple[str, str, str]

_NODES: Final = 1_000_000  # after inlining
_DEEP: Final = 100  # nested calls; onnx accepts no more


def refuse_explosion(proto: ModelProto, name: object) -> None:
    """Raise ModelError for recursive functions, and for too many nodes after inlining, naming the function.

    Thirty functions that each call the previous twice expand to a thousand million nodes, so following calls (shape
    inference, an inliner, a runtime) does not terminate. The count takes linear time.
    """
    if not proto.functions:
        return
    written, calls = {}, {}
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        written[key], calls[key] = _count(function.node)
    hint = "let functions call each other less often, or export the model without functions"
    totals: dict[Key, tuple[int, int]] = {}
    for first in calls:
        stack = [(first, iter(calls[first]))] if first not in totals else []
        on_the_way = {first}
        while stack:
            key, inner = stack[-1]
            callee = next((k for k in inner if k in calls and k not in totals), None)
            if callee is None:
                stack.pop()
                on_the_way.discard(key)
                known = [(n, *totals[k]) for k, n in calls[key].items() if k in totals]
                nodes = written[key] + sum(n * size for n, size, _ in known)
                depth = 1 + max((d for _, _, d in known), default=0)
                _check(f"function {_label(key)}", nodes, depth, name, hint)
                totals[key] = nodes, depth
            elif callee in on_the_way:
                raise ModelError(f"{name}: function {_label(callee)} calls itself", hint)
            else:
                stack.append((callee, iter(calls[callee])))
                on_the_way.add(callee)
    own, called = _count(proto.graph.node)
    nodes = sum(n * totals[k][0] for k, n in called.items() if k in totals)
    largest = max((k for k in called if k in totals), key=lambda k: called[k] * totals[k][0], default=None)
    if largest is not None and nodes > 4 * own:
        _check(f"function {_label(largest)}, with others that the graph calls,", nodes, 0, name, hint)


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


def _check(who: str, nodes: int, depth: int, name: object, hint: str) -> None:
    if nodes > _NODES:
        raise ModelError(f"{name}: {who} stands for {nodes:,} nodes, more than {_NODES:,}", hint)
    if depth > _DEEP:
        raise ModelError(f"{name}: {who} calls others {depth} deep, more than {_DEEP}", hint)


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
