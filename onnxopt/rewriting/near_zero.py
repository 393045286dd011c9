"""Dataflow search for readers that distinguish zero from a small number.

Runtimes compute 0 for a Sigmoid below 1e-8, its formula does not. The difference vanishes next to larger numbers, but
matters to a logarithm, a divisor, a sign. The search follows operators that keep small numbers small and zeros zero. It
stops at matrix products, convolutions and sums with computed values, where a small number is added to others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import COMPARISONS, NEAR_ZERO, TELLS_ZERO
from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import Array
from onnxopt.rewriting.rule import canonical_operands

_MAX_READS: Final = 100  # maximum number of reads; beyond, a distinguishing reader is assumed
_MIN_THRESHOLD: Final = 2.0**-20  # thresholds above it see only rounding differences
_MAX_FACTOR: Final = 2.0**10  # factors above it make small numbers large


def told_from_zero(value: Value) -> bool:
    """Whether a reader of `value`, direct or through other nodes, may distinguish a small number from zero.

    The caller of the model, reading its outputs, does not count.
    """
    found, reads = {value: None}, 0
    waiting = [value]
    while waiting:
        v = waiting.pop()
        reads += len(v.users)
        if reads > _MAX_READS or (v.is_output and v.graph.is_function):
            return True
        for node in v.users:
            if _tells(node, v):
                return True
        for following in _handed_to(v):
            if following not in found:
                found[following] = None
                waiting.append(following)
    return False


def _tells(node: Node, v: Value) -> bool:
    if node.op in TELLS_ZERO or node.has_references or v.graph.model.has_function(node.op):
        return True
    if node.op in COMPARISONS:
        return _least(node, v) < _MIN_THRESHOLD
    if node.op == "Cast":
        return node.attr("to") not in FLOATS
    if node.op == "MaxPool":
        return len(node.outputs) > 1  # indices
    if node.op == "Mul":
        return any(np.abs(_float(u)).max(initial=0) > _MAX_FACTOR for u in node.operands if u.constant)
    if node.op == "Div":
        return 1 in node.places(v) or _least(node, v) * _MAX_FACTOR < 1
    return node.op == "Pow" and 0 in node.places(v) and not _keeps_zero(node)


def _handed_to(v: Value) -> Iterator[Value]:
    """Yield the values that are small where `v` is small, and 0 where `v` is 0."""
    for node in v.users:
        if node.bodies:
            yield from _around(node)
        elif _hands_on(node, v):
            yield from node.results
    owner = v.graph.owner if v.is_output else None
    if owner is not None and owner.op == "If":
        yield from (o for made, o in zip(v.graph.outputs, owner.outputs) if made is v and o is not None)
    elif owner is not None:
        yield from _around(owner)


def _around(loop: Node) -> Iterator[Value]:
    """Yield the outputs of a Loop or Scan, and the body inputs of the next iteration."""
    yield from loop.results
    for body in loop.bodies.values():
        yield from body.inputs


def _hands_on(node: Node, v: Value) -> bool:
    if node.op in ("Max", "Clip"):
        return not _raises(node, v)
    if node.op in ("Add", "Mean", "Sub", "Sum"):
        return all(u is v or (u is not None and u.constant) for u in node.inputs) and _least(node, v) < _MIN_THRESHOLD
    return node.op in NEAR_ZERO or node.op in ("Cast", "Div", "Mul") or (node.op == "Pow" and 0 in node.places(v))


def _raises(node: Node, v: Value) -> bool:
    """Whether a Max or Clip returns at least the threshold, whatever `v` is."""
    bounds = canonical_operands(node)[1:2] if node.op == "Clip" else node.inputs
    return any(b is not None and b is not v and b.constant and (_float(b) >= _MIN_THRESHOLD).all() for b in bounds)


def _keeps_zero(power: Node) -> bool:
    exponent = power.operands[1]
    return exponent.constant and bool((_float(exponent) > 0).all())


def _least(node: Node, v: Value) -> float:
    """Return the smallest magnitude of constants beside `v`; if unknown 0, for a divisor 1."""
    others = [u for u in node.inputs if u is not v and u is not None]
    if not others or not all(u.constant for u in others):
        return 1.0 if node.op == "Div" else 0.0
    return float(min(np.abs(_float(u)).min(initial=np.inf) for u in others))


def _float(constant: Value) -> Array:
    return constant.array.astype(np.float64)
