"""Float32 masks visible to callers: -3.4e38 must stay, and not become -65504 as in float16."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Final

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.narrowing import RESULT_TYPE, Narrowed, fill
from onnxopt.graph import Graph, Model, Value
from onnxopt.operators import IN_RANGE

HANDS_ON: Final = IN_RANGE | {"Mul", "Gemm"}  # a finite number for infinity passes through factors and summands


def masks_given_out(
    model: Model, scopes: Iterable[Graph], dtype: str, weight: Callable[[Value], Narrowed]
) -> set[Value | None]:
    """Return the model outputs with a finite number for infinity, and the values of this kind upstream.

    `scopes`: the model's scopes, inner ones first; `weight`: returns the narrowed form of a constant.
    """
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
    """Return these values and the values in `holding` they are computed from."""
    stack, found = [*values], set[Value | None]()
    while stack:
        value = stack.pop()
        if value is None or value in found:
            continue
        found.add(value)
        stack += [v for v in (value.producer.inputs if value.producer is not None else ()) if v in holding]
    return found
