"""Shapes of values carried by a Loop: the initial ones if each iteration keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onnxopt.analysis.shapes.sizes import Dims, Found
from onnxopt.analysis.shapes.symbolic import Size, is_nonnegative
from onnxopt.analysis.types import agreed
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

_ATTEMPTS: Final = 3


def carried(s: ShapeData, n: Node) -> list[Found | None] | None:
    """Return the shapes of a Loop's results by induction: dims equal before the first and after every iteration.

    The body's states get the same shapes. Nested Loops under an assumption are skipped: the cost would double at each
    level.
    """
    body = n.bodies.get("body")
    if body is None or s.assumed:
        return None
    if len(body.inputs) != max(len(n.inputs), 2) or len(body.outputs) < len(body.inputs) - 1:
        return None
    states = body.inputs[2:]
    start = [s.shape(v) for v in n.inputs[2:]]
    guess: list[Found | None] = list(start)
    for _ in range(_ATTEMPTS):
        trial = s.assuming({v: dims for v, dims in zip(states, guess) if dims is not None})
        for _ in trial.sweep(body):
            pass
        made = [trial.shape(v) for v in body.outputs[1:]]
        kept = [agreed(a, b) for a, b in zip(guess, made)]
        if kept == guess:
            break
        guess = kept
    else:
        return None
    for v, dims in zip(states, guess):
        if dims is not None:
            s.learn(v, dims)
    trips = _trips(s, n, body)
    known = {d for dims in guess for d in dims or ()}
    return [*guess, *(_collected(trips, dims, known) for dims in made[len(states) :])]


def _collected(trips: Size | None, dims: Dims | None, known: set[Size | None]) -> Found | None:
    """Return the shape of a scan output: trip count and element dims.

    For 0 iterations a runtime may know only the rank; symbols of the body mean nothing outside.
    """
    if dims is None:
        return None
    some = isinstance(trips, int) and trips > 0
    return (trips, *(d if some and (isinstance(d, int) or d in known) else None for d in dims))


def _trips(s: ShapeData, n: Node, body: Graph) -> Size | None:
    """Return the number of iterations, if no condition ends the loop early."""
    most, start, going_on = s.content(n.input(0)), n.input(1), body.outputs[0]
    while going_on.producer is not None and going_on.producer.op == "Identity":
        assert going_on.producer.inputs[0] is not None
        going_on = going_on.producer.inputs[0]
    goes_on = going_on is body.inputs[1] or _is_true(going_on)
    if most is None or most.size != 1 or not goes_on or not (start is None or _is_true(start)):
        return None
    trips: Size | None = most.reshape(-1)[0]
    if isinstance(trips, int):
        return max(trips, 0)
    return trips if trips is not None and is_nonnegative(trips) else None


def _is_true(value: Value) -> bool:
    return value.constant and value.constant_type()[1] in ((), (1,)) and bool(value.array.item())
