"""Attention scores in decomposed form: product, scale, soft cap, additive terms and masks."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.proto.element_types import element_kind
from onnxopt.startup.record import record

_MAX_SCORE_DEPTH: Final = 8
_CAP: Final = "Tanh"


@record(frozen=True)
class Filled:
    """A Where that keeps scores where `condition` equals `kept`, and writes the number `fill` elsewhere."""

    condition: Value
    kept: bool
    fill: Value


@record(frozen=True)
class Scores:
    """cap Tanh(q turned · scale / cap), followed by `terms` in order: each a value to add, or a Where."""

    q: Value
    turned: Value
    scale: float
    cap: float
    terms: tuple[Value | Filled, ...]
    through: tuple[Value, ...]  # values from the product to the result


def scores_of(value: Value, reach: int = _MAX_SCORE_DEPTH) -> Scores | None:
    """Return the parts of attention scores, or None for any other computation."""
    node = value.producer
    if node is None or not reach or value.index:
        return None
    if node.op == "MatMul":
        q, turned = node.inputs
        assert q is not None and turned is not None
        return Scores(q, turned, 1.0, 0.0, (), (value,))
    if node.op == "Where":
        return _filled(node, reach - 1)
    if node.op not in ("Add", "Mul", "Div", "Tanh"):
        return None
    for i in (0, 1)[: len(node.inputs) if node.op in ("Add", "Mul") else 1]:
        inner, other = node.inputs[i], node.inputs[1 - i] if len(node.inputs) > 1 else None
        found = scores_of(inner, reach - 1) if inner is not None else None
        result = _further(found, node, other) if found is not None else None
        if result is not None:
            return result
    return None


def _further(s: Scores, node: Node, other: Value | None) -> Scores | None:
    """Return the scores with one more node applied, or None."""
    terms, scale, cap = s.terms, s.scale, s.cap
    if node.op == "Add":
        if other is None:
            return None
        terms = (*terms, other)
    elif terms:
        return None
    elif node.op == _CAP:
        if cap:
            return None
        cap = -1.0  # pending: the factor behind Tanh is not seen yet
    else:
        number = one_number(other)
        if number is None or cap > 0 or (node.op == "Div" and not number):
            return None
        number = 1.0 / number if node.op == "Div" else number
        scale, cap = (scale * number, number) if cap else (scale * number, 0.0)
    return Scores(s.q, s.turned, scale, cap, terms, (*s.through, node.output))


def _filled(node: Node, reach: int) -> Scores | None:
    condition, *choices = node.inputs
    for i, inner in enumerate(choices):
        other = choices[1 - i]
        if condition is None or inner is None or other is None or one_number(other) is None:
            continue
        s = scores_of(inner, reach)
        if s is not None and s.cap >= 0:
            filled = Filled(condition, not i, other)
            return Scores(s.q, s.turned, s.scale, s.cap, (*s.terms, filled), (*s.through, node.output))
    return None


def one_number(value: Value | None) -> float | None:
    """Return the number in a one-element constant of rank at most 4, or None."""
    if value is None or not value.constant:
        return None
    _, dims = value.constant_type()
    if len(dims) > 4 or any(d != 1 for d in dims):
        return None
    array = value.array
    return float(array.item()) if element_kind(array) in "fiu" and not np.isnan(array.item()) else None
