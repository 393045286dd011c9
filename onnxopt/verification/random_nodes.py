"""Which nodes make random numbers: another run of the same model gives others."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import TYPE_CHECKING

from onnxopt.verification.decisions import operator_names
from onnxopt.verification.dependence import draws, may_draw
from onnxopt.verification.order import inside

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Functions = Collection[tuple[str, str]]  # domain and name


def is_random(node: NodeProto, functions: Functions) -> bool:
    """Does it make some, or what it holds, or calls of these `functions`?"""
    return any(draws(n) or (n.domain, n.op_type) in functions for n in inside([node]))


def random_functions(model: ModelProto) -> Functions:
    """The model's functions that make some."""
    callers: dict[tuple[str, str], list[tuple[str, str]]] = {}
    stack = []
    for f in model.functions:
        name = f.domain, f.name
        for node in inside(f.node):
            callers.setdefault((node.domain, node.op_type), []).append(name)
            if draws(node):
                stack.append(name)
    found = set(stack)
    while stack:
        new = set(callers.get(stack.pop(), ())) - found
        found |= new
        stack += new
    return found


def is_random_model(model: ModelProto) -> bool:
    """Does any of its nodes make some?"""
    bodies = (f.node for f in model.functions)
    if not may_draw(operator_names(itertools.chain(model.graph.node, *bodies))):
        return False
    functions = random_functions(model)
    return any(is_random(node, functions) for node in model.graph.node)
