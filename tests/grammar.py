"""Grows random graphs, node by node: what tests of all passes together are given."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NEUTRAL = [0.0, -0.0, 1.0, -1.0, 2.0]


@dataclass
class Grammar:
    """Grows a graph node by node; types and shapes of all values are known, so that operands fit.

    `draw` makes choices, from Hypothesis if it is to shrink them; `rng` makes numbers: small integers and powers of two
    if `exact`.
    """

    draw: random.Random
    rng: np.random.Generator
    float: type = np.float32
    exact: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    types: dict[str, type] = field(default_factory=dict)

    def chance(self) -> bool:
        return self.draw.random() < 0.5

    def order(self, of: Iterable[Any]) -> list[Any]:
        """A permutation."""
        return self.draw.sample(found := list(of), len(found))

    def numbers(self, *shape: int) -> np.ndarray:
        """Terms and weights."""
        return self.rng.integers(-3, 4, shape) * 1.0 if self.exact else self.rng.standard_normal(shape)

    def factors(self, *shape: int) -> np.ndarray:
        """Factors and divisors, above zero."""
        return self.rng.choice([0.5, 1.0, 2.0], shape) if self.exact else self.rng.uniform(0.5, 1.5, shape)

    def constant(self, array: np.ndarray) -> str:
        name = f"k{len(self.weights)}"
        if self.chance():
            self.weights.append(numpy_helper.from_array(array, name))
        else:
            self.weights.append(numpy_helper.from_array(array, name + "_unused"))
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def floats(self, array: Any) -> str:
        return self.constant(np.asarray(array, self.float))

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], of: type | None = None, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.shapes[name] = shape
        self.types[name] = of or self.float
        return name

    def pick(self, wanted: Any = lambda s: True, of: type | None = None) -> str | None:
        of = of or self.float
        names = [n for n, s in self.shapes.items() if self.types[n] is of and wanted(s)]
        return self.draw.choice(names) if names else None

    def element(self, of: type) -> int:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(of)))

    def unary(self) -> None:
        x = self.pick()
        assert x
        ops = ["Identity", "Identity", "Relu", "Neg", "Abs", "Floor", "Sigmoid", "Dropout"]
        self.add(self.draw.choice(ops), [x], self.shapes[x])

    def cast(self) -> None:
        x = self.pick()
        assert x
        self.add("Cast", [x], self.shapes[x], to=self.element(self.float))

    def neutral(self) -> None:
        x = self.pick()
        assert x
        shape = (1,) * self.draw.randint(0, 3)
        k = self.floats(np.full(shape, self.draw.choice(NEUTRAL)))
        op = self.draw.choice(["Add", "Sub", "Mul", "Pow", "Max"])
        pair = [x, k] if op == "Pow" or self.chance() else [k, x]
        self.add(op, pair, np.broadcast_shapes(self.shapes[x], shape))

    def binary(self) -> None:
        x, y = self.pick(), self.pick()
        assert x and y
        try:
            shape = np.broadcast_shapes(self.shapes[x], self.shapes[y])
        except ValueError:
            return
        self.add(self.draw.choice(["Add", "Sub", "Mul", "Min"]), [x, y], shape)

    def reshape(self) -> None:
        x = self.pick()
        assert x
        shape = self.shapes[x]
        choice = self.draw.randint(0, 3)
        if choice == 0:
            self.add("Reshape", [x, self.ints(*([0] * len(shape)))], shape)
        elif choice == 1:
            self.add("Reshape", [x, self.ints(-1)], (int(np.prod(shape)),))
        elif choice == 2:
            self.nodes.append(helper.make_node("Shape", [x], [f"s{len(self.nodes)}"]))
            self.add("Reshape", [x, self.nodes[-1].output[0]], shape)
        else:
            self.add("Unsqueeze", [x, self.ints(0)], (1, *shape))

    def transpose(self) -> None:
        x = self.pick(lambda s: len(s) > 0)
        assert x
        perm = self.order(range(len(self.shapes[x])))
        self.add("Transpose", [x], tuple(self.shapes[x][i] for i in perm), perm=list(perm))

    def slice(self) -> None:
        x = self.pick(lambda s: len(s) > 0)
        assert x
        axis = self.draw.randint(0, len(self.shapes[x]) - 1)
        end = self.draw.choice([2**63 - 1, self.shapes[x][axis], 1])
        shape = list(self.shapes[x])
        shape[axis] = min(end, shape[axis])
        self.add("Slice", [x, self.ints(0), self.ints(end), self.ints(axis)], tuple(shape))

    def concat(self) -> None:
        x = self.pick(lambda s: len(s) > 0)
        assert x
        count = self.draw.randint(1, 3)
        shape = (self.shapes[x][0] * count, *self.shapes[x][1:])
        if np.prod(shape) < 4000:
            self.add("Concat", [x] * count, shape, axis=0)

    def expand(self) -> None:
        x = self.pick()
        assert x
        shape = tuple(self.draw.choice([1, d]) if d > 1 else 1 for d in self.shapes[x])
        self.add("Expand", [x, self.ints(*shape)], self.shapes[x])

    def conv(self) -> None:
        x = self.pick(lambda s: len(s) == 4 and min(s[2:]) >= 1)
        if x is None or self.float is not np.float32:  # the runtime has no other kernel
            return
        n, c, h, w = self.shapes[x]
        group = self.draw.choice([1, c])
        channels = c if group == c else 4
        weight = self.floats(self.numbers(channels, c // group, 1, 1))
        pad = self.draw.randint(0, 1)
        inputs = [x, weight]
        if self.chance():
            inputs.append(self.floats(self.numbers(channels)))
        self.add("Conv", inputs, (n, channels, h + 2 * pad, w + 2 * pad), group=group, pads=[pad] * 4)

    def batch_norm(self) -> None:
        x = self.pick(lambda s: len(s) in (2, 4) and s[1] <= 64)
        if x is None:
            return
        c = self.shapes[x][1]
        statistics = [self.factors(c) for _ in range(4)]
        self.add("BatchNormalization", [x, *map(self.floats, statistics)], self.shapes[x])

    def per_channel(self) -> None:
        x = self.pick(lambda s: len(s) == 4)
        if x is None:
            return
        shape = self.draw.choice([(self.shapes[x][1], 1, 1), (1, self.shapes[x][1], 1, 1), ()])
        k = self.floats(self.factors(*shape))
        op = self.draw.choice(["Add", "Sub", "Mul", "Div"])
        self.add(op, [x, k] if op == "Div" or self.chance() else [k, x], self.shapes[x])

    def linear(self) -> None:
        """A product with a bias along the last axis, on any number of rows; sometimes a Gemm between Reshapes."""
        x = self.pick(lambda s: len(s) >= 2 and s[-1] <= 64)
        if x is None:
            return
        *lead, k = self.shapes[x]
        n = self.draw.choice([1, 3, 4])
        weight = self.floats(self.numbers(k, n) / (1 if self.exact else np.sqrt(k)))
        bias = self.floats(self.numbers(n))
        if self.chance():
            self.add("MatMul", [x, weight], (*lead, n))
            product = f"v{len(self.nodes) - 1}"
            self.add("Add", [bias, product] if self.chance() else [product, bias], (*lead, n))
        else:
            self.add("Reshape", [x, self.ints(-1, k)], (int(np.prod(lead)), k))
            self.add("Gemm", [f"v{len(self.nodes) - 1}", weight, bias], (int(np.prod(lead)), n))
            self.add("Reshape", [f"v{len(self.nodes) - 1}", self.ints(*lead, n)], (*lead, n))

    def rows(self) -> None:
        """Operators that treat rows independently."""
        x = self.pick(lambda s: len(s) >= 1)
        if x is None:
            return
        shape = self.shapes[x]
        op = self.draw.choice(["Softmax", "ReduceMean", "LayerNormalization", "Div"])
        if op == "ReduceMean":
            self.add(op, [x], (*shape[:-1], 1), axes=[-1])
        elif op == "LayerNormalization":
            scale = self.floats(self.factors(shape[-1]))
            self.add(op, [x, scale], shape, axis=-1)
        elif op == "Softmax":
            self.add(op, [x], shape, axis=self.draw.choice([-1, len(shape) - 1, 0]))
        else:
            self.add("Exp", [x], shape)
            exp = f"v{len(self.nodes) - 1}"
            self.add("Div", [self.floats(1), exp], shape)
            self.add("Mul", [f"v{len(self.nodes) - 1}", x], shape)

    def computed(self) -> None:
        """A target made of the shape, piece by piece."""
        x = self.pick(lambda s: len(s) >= 1)
        if x is None:
            return
        shape, i = self.shapes[x], len(self.nodes)
        self.nodes.append(helper.make_node("Shape", [x], [f"s{i}"]))
        parts = []
        for axis in range(len(shape)):
            way = self.draw.randint(0, 2)
            if way == 0:
                self.nodes.append(helper.make_node("Gather", [f"s{i}", self.ints(axis)], [f"s{i}_{axis}"]))
            elif way == 1:
                self.nodes.append(
                    helper.make_node("Slice", [f"s{i}", self.ints(axis), self.ints(axis + 1)], [f"s{i}_{axis}"])
                )
            else:
                scalar = self.constant(np.array(axis, np.int64))
                self.nodes.append(helper.make_node("Gather", [f"s{i}", scalar], [f"s{i}_{axis}u"]))
                self.nodes.append(helper.make_node("Unsqueeze", [f"s{i}_{axis}u", self.ints(0)], [f"s{i}_{axis}"]))
            parts.append(f"s{i}_{axis}")
        order = self.order(range(len(shape)))
        self.nodes.append(helper.make_node("Concat", [parts[k] for k in order], [f"s{i}_t"], axis=0))
        if self.chance() or order != sorted(order):
            self.add("Reshape", [x, f"s{i}_t"], tuple(shape[k] for k in order))
        else:
            self.add("Expand", [x, f"s{i}_t"], shape)

    def halves(self) -> None:
        x = self.pick(lambda s: len(s) >= 1 and max(s) >= 2)
        if x is None:
            return
        shape = list(self.shapes[x])
        axis = max(range(len(shape)), key=lambda k: shape[k])
        cut = self.draw.randint(1, shape[axis] - 1)
        for start, end in ((0, cut), (cut, shape[axis])):
            part = tuple(end - start if k == axis else d for k, d in enumerate(shape))
            last = self.draw.choice([end, 2**63 - 1]) if end == shape[axis] else end
            self.add("Slice", [x, self.ints(start), self.ints(last), self.ints(axis)], part)

    def axes(self) -> None:
        """Axes that come and go."""
        x = self.pick(lambda s: len(s) <= 4)
        if x is None:
            return
        shape = self.shapes[x]
        axis = self.draw.randint(0, len(shape))
        wide = (*shape[:axis], 1, *shape[axis:])
        self.add("Unsqueeze", [x, self.ints(axis)], wide)
        name = f"v{len(self.nodes) - 1}"
        way = self.draw.randint(0, 3)
        if way == 0:
            self.add("Squeeze", [name, self.ints(axis - len(wide))], shape)
        elif way == 1:
            self.add("Unsqueeze", [name, self.ints(0)], (1, *wide))
        elif way == 2:
            self.add("Gather", [name, self.constant(np.array(0, np.int64))], shape, axis=axis)

    def integers(self) -> None:
        """What integers do otherwise than floats: truncate, wrap around, stay exact."""
        kind = self.draw.choice([np.int32, np.int64])
        x = self.pick(of=kind)
        if x is None:
            source = self.pick() or "x0"
            self.add("Cast", [source], self.shapes[source], kind, to=self.element(kind))
            return
        op = self.draw.choice(["Add", "Sub", "Mul", "Div", "Neg", "Abs", "Cast", "Float", "Max"])
        k = self.constant(np.array(self.draw.choice([-3, -1, 1, 2, 5]), kind))
        if op in ("Neg", "Abs"):
            self.add(op, [x], self.shapes[x], kind)
        elif op == "Cast":
            other = np.int32 if kind is np.int64 else np.int64
            self.add("Cast", [x], self.shapes[x], other, to=self.element(other))
        elif op == "Float":
            self.add("Cast", [x], self.shapes[x], to=self.element(self.float))
        elif op == "Div" or self.chance():
            self.add(op, [x, k], self.shapes[x], kind)
        else:
            self.add(op, [k, x], self.shapes[x], kind)

    def choices(self) -> None:
        """Comparisons, logic, and selections by them."""
        x = self.pick()
        assert x
        mask = self.pick(lambda s: s == self.shapes[x], of=np.bool_)
        if mask is None or self.chance():
            limit = self.floats(self.draw.choice(NEUTRAL))
            mask = self.add(self.draw.choice(["Greater", "Less", "Equal"]), [x, limit], self.shapes[x], np.bool_)
        if self.chance():
            mask = self.add("Not", [mask], self.shapes[x], np.bool_)
        if self.chance():
            k = self.floats(self.draw.choice(NEUTRAL))
            pair = [x, k] if self.chance() else [k, x]
            self.add("Where", [mask, *pair], self.shapes[x])

    def window(self) -> None:
        """A Clip of a Clip or Relu, or with contradictory bounds."""
        x = self.pick()
        assert x
        low, high = self.draw.choice([(0.0, 6.0), (-1.0, 1.0), (0.5, 0.25), (-2.0, -1.0)])
        bounds = [self.floats(low), self.floats(high)]
        way = self.draw.randint(0, 2)
        if way == 2:
            self.add("Max", [x, bounds[0]], self.shapes[x])
            self.add("Min", [f"v{len(self.nodes) - 1}", bounds[1]], self.shapes[x])
        else:
            self.add("Clip", [x, *bounds[: 1 + way]], self.shapes[x])

    def channels_last(self) -> None:
        """Into the other order of axes and back, with something between."""
        x = self.pick(lambda s: len(s) == 4)
        if x is None:
            return
        n, c, h, w = self.shapes[x]
        a = self.add("Transpose", [x], (n, h, w, c), perm=[0, 2, 3, 1])
        way = self.draw.randint(0, 3)
        if way == 0:
            a = self.add("Add", [a, self.floats(self.numbers(c))], (n, h, w, c))
        elif way == 1:
            a = self.add("Softmax", [a], (n, h, w, c), axis=self.draw.choice([-1, 1, 2]))
        elif way == 2:
            a = self.add("ReduceMean", [a], (n, 1, 1, c), axes=[1, 2])
            h = w = 1
        else:
            a = self.add("Pad", [a, self.ints(0, 1, 0, 0, 0, 0, 2, 0)], (n, h + 1, w + 2, c))
            h, w = h + 1, w + 2
        if self.chance():
            self.add("Transpose", [a], (n, c, h, w), perm=[0, 3, 1, 2])

    def loop(self) -> None:
        """A Loop with a carried value, an outer value, and a collected output."""
        x = self.pick()
        assert x
        i, shape, element = len(self.nodes), self.shapes[x], self.element(self.float)
        trips = self.constant(np.array(self.draw.randint(0, 3), np.int64))
        body = [
            helper.make_node("Identity", [f"go{i}"], [f"on{i}"]),
            helper.make_node(self.draw.choice(["Neg", "Identity", "Relu"]), [f"c{i}"], [f"n{i}"]),
            helper.make_node("Add", [f"n{i}", x], [f"r{i}"]),
            helper.make_node("Identity", [f"r{i}"], [f"s{i}"]),
        ]
        inputs = [
            helper.make_tensor_value_info(f"it{i}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"go{i}", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"c{i}", element, shape),
        ]
        outputs = [
            helper.make_tensor_value_info(f"on{i}", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"r{i}", element, shape),
            helper.make_tensor_value_info(f"s{i}", element, shape),
        ]
        condition = self.draw.choice(["", "condition"])
        graph = helper.make_graph(body, "body", inputs, outputs)
        self.nodes.append(helper.make_node("Loop", [trips, condition, x], [f"v{i}", f"scan{i}"], body=graph))
        self.shapes[f"v{i}"], self.types[f"v{i}"] = shape, self.float

    def branch(self) -> None:
        x = self.pick()
        assert x
        i = len(self.nodes)
        info = [helper.make_tensor_value_info("", self.element(self.float), self.shapes[x])]
        bodies = []
        for name, op in (("then", "Identity"), ("else", "Neg")):
            body = [
                helper.make_node("Identity", [x], [f"{name}{i}a"]),
                helper.make_node(op, [f"{name}{i}a"], [f"{name}{i}"]),
            ]
            info[0].name = f"{name}{i}"
            bodies.append(helper.make_graph(body, name, [], info))
        self.add("If", ["condition"], self.shapes[x], then_branch=bodies[0], else_branch=bodies[1])
