"""Intervals of integers contain every value computed by a runtime."""

from __future__ import annotations

import random
from typing import Final

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxopt.analysis.interval_rules import MAX_SIZE, SizeLimits
from onnxopt.analysis.intervals import Intervals
from onnxopt.analysis.shapes.symbolic import quotient, symbol
from onnxopt.graph import read_model
from tests.runtime import plain_session

KINDS: Final = (np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_)
UNARY: Final = (
    "Neg",
    "Abs",
    "Sign",
    "BitwiseNot",
    "Identity",
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "CumSum",
    "Trilu",
)
BINARY: Final = ("Add", "Sub", "Mul", "Max", "Min", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Mod", "FMod")
SIDES: Final = (3, 4)
EDGES: Final = (-(1 << 63), -(1 << 31) - 1, -(1 << 31), -3, -1, 0, 1, 2, 7, (1 << 31) - 1, 1 << 31, (1 << 63) - 1)


class Drawn:
    """A graph of integers of one shape, every value of which is an output."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.nodes, self.inputs, self.weights = [], [], []
        self.feeds: dict[str, np.ndarray] = {}
        self.values: list[str] = []
        self.named = 0
        for _ in range(3):
            self.input()
        for _ in range(10):
            self.step()

    def input(self) -> None:
        kind = np.dtype(self.draw.choice(KINDS))
        name, rng = self.fresh(), np.random.default_rng(self.draw.randrange(1 << 32))
        numbers = [e for e in EDGES if kind.kind == "b" or np.iinfo(kind).min <= e <= np.iinfo(kind).max]
        self.feeds[name] = np.array(rng.choice(np.array(numbers, np.int64), SIDES), kind)
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), ["A", "B"]))
        self.values.append(name if kind == np.int64 else self.node("Cast", [name], to=TensorProto.INT64))

    def fresh(self) -> str:
        self.named += 1
        return f"v{self.named}"

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [self.fresh()], **attributes))
        return str(self.nodes[-1].output[0])

    def constant(self, value: object) -> str:
        name = self.fresh()
        self.weights.append(numpy_helper.from_array(np.array(value, np.int64), name))
        return name

    def step(self) -> None:
        x, y = self.draw.choice(self.values), self.draw.choice(self.values)
        way = self.draw.randrange(8)
        if way < 2:
            self.values.append(self.unary(self.draw.choice(UNARY), x))
        elif way < 5:
            op = self.draw.choice(BINARY)
            y = self.constant(self.draw.choice(EDGES)) if self.draw.random() < 0.5 else y
            if op in ("Div", "Mod", "FMod"):
                y = self.constant(self.draw.choice([n for n in EDGES if abs(n) > 1]))
            self.values.append(self.node(op.removeprefix("F"), [x, y], **({"fmod": 1} if op == "FMod" else {})))
        elif way == 5:
            low, high = (self.constant(self.draw.choice(EDGES)) for _ in range(2))
            self.values.append(self.node("Clip", [x, *self.draw.choice([(low,), ("", high), (low, high)])]))
        elif way == 6:
            to = self.draw.choice([TensorProto.INT32, TensorProto.UINT8, TensorProto.INT8])
            self.values.append(self.node("Cast", [self.node("Cast", [x], to=to)], to=TensorProto.INT64))
        else:
            less = self.node("Less", [x, y])
            self.values.append(self.node("Where", [less, x, y]))

    def unary(self, op: str, x: str) -> str:
        if op.startswith("Reduce"):
            return self.node("Add", [self.node(op, [x, self.constant([1])]), self.constant([[0] * SIDES[1]])])
        return self.node(op, [x, self.constant(1)] if op == "CumSum" else [x])

    def model(self) -> ModelProto:
        outputs = [helper.make_tensor_value_info(v, TensorProto.INT64, None) for v in dict.fromkeys(self.values)]
        graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, self.weights)
        return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_no_value_is_beyond_its_interval(first: int) -> None:
    known = 0
    for seed in range(first, first + 40):
        drawn = Drawn(seed)
        proto = drawn.model()
        names = [o.name for o in proto.graph.output]
        found = plain_session(proto).run(names, drawn.feeds)
        model = read_model(proto)
        intervals = Intervals(model)
        values = {v.name: v for v in model.graph.outputs}
        for name, array in zip(names, found, strict=True):
            interval = intervals.of(values[name])
            assert interval is not None
            low, high = interval
            assert low <= array.min() and array.max() <= high, f"{seed}: {name} is beyond {interval}"
            known += high - low < 1 << 63
    assert known > 100


def test_limits_of_sizes() -> None:
    n, m = symbol("n"), symbol("m")
    limits = SizeLimits()
    limits.add((n, m, 6))
    limits.add((n + m,))
    half = quotient(n, 2)
    assert half is not None
    for size, most in (
        (n, MAX_SIZE),
        (n * m, MAX_SIZE),
        (6 * n * m, MAX_SIZE),
        (n + m, MAX_SIZE),
        (n + m - 1, MAX_SIZE),
        (half, MAX_SIZE // 2),
    ):
        assert limits.high(size) == most
    assert limits.high(n * n) > MAX_SIZE and limits.high(n + m + 1) > MAX_SIZE and limits.high(7 * m) > MAX_SIZE
    assert limits.low(n - 1) == -1 and limits.low(n - m) == -MAX_SIZE and limits.low(2 * n + 5) == 5
    body = SizeLimits(limits)
    body.add((n * n,))
    assert body.high(n * n) == MAX_SIZE == body.high(n + m) and limits.high(n * n) > MAX_SIZE
