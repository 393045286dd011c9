"""Cached analysis results shared between passes, dropped when the model changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from onnxopt.graph import Graph, Model

S = TypeVar("S", Model, Graph)
T = TypeVar("T")


def analysis(compute: Callable[[S], T], subject: S) -> T:
    """Return `compute(subject)`, cached while the model is unchanged."""
    model = subject.model if isinstance(subject, Graph) else subject
    key = compute, subject
    known = model.computed.get(key)
    if known is not None and known[0] == model.state:
        result: T = known[1]
        return result
    found = compute(subject)
    model.computed[key] = model.state, found
    return found


def carry_over(model: Model, preserved: tuple[Callable[..., Any], ...], before: tuple[int, int]) -> None:
    """Update the cache after a pass that began at state `before`: results of `preserved` analyses stay, others go."""
    now = model.state
    if now == before or not model.computed:
        return
    model.computed = {
        key: (now, result)
        for key, (state, result) in model.computed.items()
        if state == now or (state == before and key[0] in preserved)
    }
