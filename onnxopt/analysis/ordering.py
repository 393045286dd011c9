"""Which values decide a ranking: NonMaxSuppression and TopK sort thousands of scores, where ties in the last bit are
not an exception but expected, and re-associated arithmetic decides them differently."""

from __future__ import annotations

from typing import Final

from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.value import Value

RANKING: Final = ("NonMaxSuppression", "TopK")


def decides_ranking(value: Value) -> bool:
    """Does the order in which a ranking operator puts things depend on this value?"""
    model = value.graph.model
    found = model.analyses.get("ordering")
    if not isinstance(found, set):
        found = model.analyses["ordering"] = _ranked(model)
    return value in found


def _ranked(model: Model) -> set[Value]:
    found: set[Value] = set()
    stack: list[Value] = []
    for scope in model.scopes():
        for op in RANKING:
            for node in scope.by_op.get(op, ()):
                stack += [v for v in node.inputs if v is not None]
    while stack:
        value = stack.pop()
        if value in found or value.constant:
            continue
        found.add(value)
        producer = value.producer
        if producer is not None:
            stack += [v for v in producer.inputs if v is not None]
            for body in producer.bodies.values():
                stack += body.outputs
        elif value.is_input:
            stack += _given_to(value.graph)
    return found


def _given_to(body: Graph) -> list[Value]:
    """What the owner passes into its body."""
    return [v for v in body.owner.inputs if v is not None] if body.owner is not None else []
