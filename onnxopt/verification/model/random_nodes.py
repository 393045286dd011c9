"""Which nodes make random numbers: another run of the same model gives others."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from onnxopt.verification.model.dependence import draws, may_draw
from onnxopt.verification.model.functions import Functions, Name, holds
from onnxopt.verification.model.order import inside, operator_names

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto


def is_random(node: NodeProto, functions: Collection[Name]) -> bool:
    """Does it make some, or what it holds, or calls of these `functions`?"""
    return holds(node, draws, functions)


def count_draws(nodes: Iterable[NodeProto], functions: Functions) -> int:
    """How often these nodes make some, if they are run once: each call counts."""
    known: dict[int, int] = {}

    def count(nodes: Iterable[NodeProto]) -> int:
        return sum(draws(n) or called(functions.of(n)) for n in inside(nodes))

    def called(function: FunctionProto | None) -> int:
        if function is None:
            return 0
        if id(function) not in known:
            known[id(function)] = 0  # nothing calls itself
            known[id(function)] = count(function.node)
        return known[id(function)]

    return count(nodes)


def is_random_model(model: ModelProto) -> bool:
    """Does any of its nodes make some?"""
    bodies = (f.node for f in model.functions)
    if not may_draw(operator_names(itertools.chain(model.graph.node, *bodies))):
        return False
    functions = Functions(model).holding(draws)
    return any(is_random(node, functions) for node in model.graph.node)
