"""Masks that callers see in float32: -3.4e38, which would be -65504 there, stays what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Final

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.narrowing import RESULT_TYPE, Narrowed, fill
from onnxopt.graph import Graph, Model, Value
from onnxopt.operators import IN_RANGE

HANDS_ON: Final = IN_RANGE | {"Mul", "Gemm"}  # a number for infinity: a factor, what is added to a product


def masks_given_out(
    model: Model, scopes: Iterable[Graph], dtype: str, weight: Callable[[Value], Narrowed]
) -> set[Value | None]:
    """What becomes an output of the model and holds a number for infinity, and what of that kind it is made of.
    `scopes`: those of the model, inner ones first; `weight`: what becomes of a constant."""
    holding = set[Value | None]()

    def holds(value: Value | None) -> bool:
        if value is None or not value.constant:
            return value in holding
        return types.dtype(value) == TensorProto.FLOAT and weight(value).masks

    for node in (node for scope in reversed([*scopes]) for node in scope):
        made = RESULT_TYPE.get(node.op) == "value" and fill(node, dtype).masks
        if made or (node.op in HANDS_ON and any(map(holds, node.inputs))):
            holding.update(node.outputs)
    return _made_of([v for v in model.graph.outputs if v in holding], holding)


def _made_of(values: Iterable[Value | None], holding: Set[Value | None]) -> set[Value | None]:
    """These values, and those `holding` such numbers that they are made of."""
    stack, found = [*values], set[Value | None]()
    while stack:
        value = stack.pop()
        if value is None or value in found:
            continue
        found.add(value)
        stack += [v for v in (value.producer.inputs if value.producer is not None else ()) if v in holding]
    return found
