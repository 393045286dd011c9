"""Operands and results of nodes that may become int32 instead of int64, by schemas, runtime kernels and intervals.

Operands and results of a node with the same type variable of the schema form a group, and change type together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.intervals import Intervals, is_within
from onnxopt.analysis.narrowing import RESULT_TYPE, deciding
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.node import Node, present
from onnxopt.graph.schema import formals
from onnxopt.operators.signatures import Formal

INT32, INT64 = int(TensorProto.INT32), int(TensorProto.INT64)
RANGE: Final = (-(1 << 31), (1 << 31) - 1)
# Operators for which onnxruntime has kernels with int64, and none with a single type int64 replaced by int32.
NO_KERNEL: Final = ("OneHot", "Unique")
# Type variables that onnxruntime takes as int64 only, whatever the schema says: onnx's inference reads stored axes of a
# Pad as int64, and the definition of CenterCropPad, which runtimes write out, compares the operand with a Shape.
_REFUSED: Final = {("CenterCropPad", "Tind"), ("Pad", "Tind")}
# Operands clamped to the length of the axis.
_CLAMPED: Final = {"Slice": (1, 2)}

# Why int64 stays. Of an operator:
ONLY: Final = "operators take or give only int64"
KERNEL: Final = "onnxruntime has no kernel with int32"
FOREIGN: Final = "operators are not of the standard"
BODIES: Final = "bodies are given, and give, int64"
UNKNOWN: Final = "a type beside it is unknown, or is no tensor"
NUMBERS: Final = "numbers may need 64 bits"  # of the value


@dataclass(eq=False, repr=False)
class Group:
    """Operands and results of a node with a common type, by index.

    `why`: the reason for staying int64, or an empty string. `root`: for NUMBERS, the value with unknown numbers.
    """

    node: Node
    inputs: list[int]
    outputs: list[int]
    why: str = ""
    root: Value | None = None

    @property
    def what(self) -> str:
        """Subject of `why`: the operator, or the value with unknown numbers."""
        return self.node.op if self.root is None else f"`{self.root.name}`"

    @property
    def values(self) -> Iterator[Value]:
        yield from (v for i in self.inputs if (v := self.node.inputs[i]) is not None)
        yield from (v for i in self.outputs if (v := self.node.outputs[i]) is not None)


def is_int64(value: Value | None) -> bool:
    return value is not None and types.dtype(value) == INT64


def open_scopes(model: Model) -> list[Graph]:
    """Return the scopes with known types that passes may change, outer scopes first."""
    return [scope for scope in reversed([*model.open_scopes()]) if not scope.root.is_function]


def int64_values(model: Model) -> Iterator[Value]:
    """Yield the int64 values of a model, except in functions: inputs, constants and results of nodes, in order."""
    for scope in reversed([*model.scopes()]):
        if not scope.root.is_function:
            own = (v for v in scope.initializers.values() if not v.is_input)
            yield from filter(is_int64, itertools.chain(scope.inputs, own, *(node.results for node in scope)))


class Groups:
    """The groups of int64 operands and results of all nodes. `given`: inputs of the model that become int32."""

    def __init__(self, model: Model, given: set[Value]) -> None:
        self.model = model
        self.given = given
        self.intervals = Intervals(model, given)
        self.of: dict[Node, list[Group]] = {}
        self.makers: dict[Value, Group] = {}
        for scope in open_scopes(model):
            for node in scope:
                found = [*self._of(node)] if node.op != "Constant" else []
                if found:
                    self.of[node] = found
                for group in found:
                    self.makers.update((v, group) for i in group.outputs if (v := node.outputs[i]) is not None)

    def reader(self, node: Node, index: int) -> Group | None:
        """Return the group of an operand, or None."""
        return next((g for g in self.of.get(node, ()) if index in g.inputs), None)

    def fits(self, value: Value) -> bool:
        """Whether all numbers of a value provably fit into int32."""
        found = self.intervals.of(value)
        return found is not None and is_within(found, RANGE)

    def root(self, value: Value) -> Value:
        """Return the earliest value with unknown numbers on a path of int64 operands that leads to `value`."""
        while value.producer is not None:
            before = next((v for v in value.producer.inputs if is_int64(v) and not self.fits(v)), None)  # type: ignore[arg-type]
            if before is None:
                break
            value = before
        return value

    def narrowed(self, constant: Value) -> np.ndarray:
        """Return a constant as int32, with clamped numbers: the end of a Slice stays beyond every axis."""
        return np.clip(constant.array, *RANGE).astype(np.int32)

    def _of(self, node: Node) -> Iterator[Group]:
        sides = (node.inputs, node.outputs)
        slots = [(side, i) for side, values in enumerate(sides) for i, v in enumerate(values) if is_int64(v)]
        if not slots:
            return
        known = formals(node.op, node.scope.opset(node.domain))
        why = self._obstacle(node, known is not None)
        kept = deciding(node.op, node.scope.opset(node.domain))
        by_symbol: dict[str, Group] = {}
        for side, i in slots:
            symbol = _symbol(known[side], i) if known is not None and not why else ""
            refused = KERNEL if (node.op, symbol) in _REFUSED else ""
            stays = ONLY if symbol in kept or not symbol else ""
            group = by_symbol.setdefault(symbol, Group(node, [], [], refused or why or stays))
            (group.outputs if side else group.inputs).append(i)
        for group in by_symbol.values():
            self._prove(group)
            yield group

    def _obstacle(self, node: Node, is_known: bool) -> str:
        """Return the reason why all integers of a node stay int64, or an empty string."""
        if node.bodies:
            return BODIES
        if not is_known:
            return FOREIGN
        if node.op in NO_KERNEL:
            return KERNEL
        if any(v is not None and not types.dtype(v) for v in (*node.inputs, *node.outputs)):
            return UNKNOWN
        return ""

    def _prove(self, group: Group) -> None:
        """Note why a group stays int64, if it has to."""
        op = group.node.op
        if not group.inputs and group.outputs and op not in RESULT_TYPE:
            group.why = group.why or ONLY  # the type of the results cannot be chosen
        if group.why:
            return
        wide = self._wide(group)
        if wide:
            group.why, group.root = NUMBERS, self.root(wide[0])

    def _wide(self, group: Group) -> list[Value]:
        """Return the last operand that does not fit, or the results; none if all fit."""
        node, clamped = group.node, _CLAMPED.get(group.node.op, ())
        read = [v for i in group.inputs if (v := node.inputs[i]) is not None and not (i in clamped and v.constant)]
        made = present([node.outputs[i] for i in group.outputs])
        return [v for v in read if not self.fits(v)][-1:] or [v for v in made if not self.fits(v)]


def _symbol(known: Sequence[Formal], place: int) -> str:
    """Return the type symbol of an operand or result; an empty string if int32 is not allowed."""
    formal = known[min(place, len(known) - 1)]
    return formal.symbol if INT32 in formal.allowed else ""
