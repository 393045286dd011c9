"""The 64-bit integers that a model has, and why those stay that are left."""

from __future__ import annotations

from typing import Final

from onnxopt.analysis import types
from onnxopt.analysis.int64 import INT64, int64_values
from onnxopt.graph import Model, Value
from onnxopt.passes.conversions import Int64Plan
from onnxopt.startup.record import record

_INTERFACE: Final = "inputs and outputs of the model keep their type"
_OVERRIDABLE: Final = "callers may override an initializer"
_SKIPPED: Final = "a scope is marked onnxopt.skip"
_CASTS: Final = "int32 would only add Casts"


@record(frozen=True)
class Left:
    """A value that is int64 in the result: `node` makes it, or reads it. `why`, and `what` is to be named with that:
    an operator, or the value whose numbers are not known."""

    value: str
    node: str
    why: str
    what: str = ""


@record
class Int64:
    """How many int64 values the model had, how many the result has, and those."""

    before: int
    after: int
    left: list[Left]


def count_int64(model: Model) -> int:
    """The number of int64 values of a model, those of functions left out, which have no types."""
    types.update(model)
    return sum(1 for _ in int64_values(model))


def int64_left(model: Model, before: int, *, keep_io: bool) -> Int64:
    """The int64 values of the result, with the reason for each. `before`: how many the original had."""
    types.refresh_allowed(model)
    types.update(model)
    plan = Int64Plan(model, keep_io=keep_io)
    left = [_left(plan, v, keep_io=keep_io) for v in int64_values(model)]
    return Int64(before, len(left), left)


def _left(plan: Int64Plan, value: Value, *, keep_io: bool) -> Left:
    graph, groups = value.graph, plan.groups
    assert value.constant or types.dtype(value) == INT64
    readers = [(n, i) for n in value.users for i in n.places(value)]
    node = value.producer or next(iter(value.users), None)
    told = repr(node) if node is not None else ""
    if graph.skipped:
        return Left(value.name, told, _SKIPPED)
    is_input = value in graph.inputs
    if graph.owner is None and (is_input or value.is_output) and (keep_io or value.is_stored):
        overridable = is_input and value.name in graph.initializers
        return Left(value.name, told, _OVERRIDABLE if overridable else _INTERFACE)
    if graph.owner is None and is_input and value.name in graph.initializers:
        return Left(value.name, told, _OVERRIDABLE)
    maker = groups.makers.get(value)
    found = [g for g in (maker, *(groups.reader(n, i) for n, i in readers)) if g is not None and g.why]
    if graph.owner is not None and (is_input or value.is_output) and not found:
        return Left(value.name, told, "bodies are given, and give, int64", graph.owner.op)
    if not found:
        return Left(value.name, told, _CASTS)
    blamed = found[0]
    return Left(value.name, told if blamed is maker else repr(blamed.node), blamed.why, blamed.what)
