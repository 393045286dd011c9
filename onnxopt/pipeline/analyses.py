"""Results that passes compute on a model and hand to others: computed once, dropped when the model changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from onnxopt.graph import Graph, Model

S = TypeVar("S", Model, Graph)
T = TypeVar("T")


def analysis(compute: Callable[[S], T], subject: S) -> T:
    """`compute(subject)`, or what it gave when the model was as it is now."""
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
    """After a pass that began at the state `before`: what it preserves is true of the model as it is, the rest goes."""
    now = model.state
    if now == before or not model.computed:
        return
    model.computed = {
        key: (now, result)
        for key, (state, result) in model.computed.items()
        if state == now or (state == before and key[0] in preserved)
    }
