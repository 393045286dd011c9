"""What is lost in float16 and bfloat16, which a runtime that computes them in float32 does not show.

onnxruntime does so on its CPU, and drops the roundings between two operators: a product of float32 that became one of
float16 gives the same there, bit for bit, and on other devices it does not. So models that hold such numbers are
compared once more, each with its roundings. Where they differ then nobody is accused, for here they do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxopt.verification.model.order import inside
from onnxopt.verification.numbers.narrow import CODES
from onnxopt.verification.programs.program import tensor_types
from onnxopt.verification.programs.rounded import round_results

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxopt.verification.model.skeleton import Skeleton


def has_narrow(model: ModelProto) -> bool:
    """Is there a narrow float in it?"""
    return any(code in CODES.values() for code in _types(model))


def with_roundings(skeleton: Skeleton) -> Skeleton:
    """The same, changed in place: each operator that makes such a number rounds it."""
    kinds: dict[str, str] = {}
    with contextlib.suppress(Exception):  # of inference, which is no source of verdicts
        kinds.update(tensor_types(skeleton.proto))
    for name, code in CODES.items():
        if held := {value for value, kind in kinds.items() if kind == f"tensor({name})"}:
            round_results(skeleton.proto, held, code)
    return skeleton


def _types(model: ModelProto) -> Iterator[int]:
    graph = model.graph
    yield from (i.type.tensor_type.elem_type for i in graph.input)
    yield from (t.data_type for t in graph.initializer)
    for node in inside((*graph.node, *(n for f in model.functions for n in f.node))):
        if node.op_type == "Cast":
            yield from (a.i for a in node.attribute if a.name == "to")
