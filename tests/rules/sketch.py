"""A graph for one pass: the grammar of random graphs, with inputs, constants in every form, and bodies."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.exported import Exported
from tests.opsets import at_opset

Shape = tuple[int, ...]

EXACT_UNARY: Final = ("Neg", "Abs", "Relu", "Identity", "Floor", "Sign")
ROUNDED_UNARY: Final = ("Sigmoid", "Tanh", "Exp", "Softplus", "Erf", "Sqrt")
BINARY: Final = ("Add", "Sub", "Mul", "Max", "Min")
OPSETS: Final = (*[17] * 6, *range(7, 17), *range(18, 25))


class Sketch(Exported):
    """A drawn model: `inputs`, `outputs` and `functions` extend the grammar.

    Dims of some sizes are symbols (`dynamic`) that end in their size; dims of equal size have equal symbols or not.
    """

    def __init__(self, seed: str, float: type | None = None) -> None:
        draw = random.Random(seed)
        super().__init__(draw, np.random.default_rng(draw.randrange(1 << 32)))
        self.float = float or draw.choice([np.float32] * 7 + [np.float64])
        self.exact = self.rarely(4) is False
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[str] = []
        self.functions: list[FunctionProto] = []
        self.symbols = draw.choice(["", "", "shared", "own"])
        self.dynamic = {d for d in range(1, 30) if self.chance()}
        self.depth = ""
        self.held: dict[bytes, str] = {}
        self.own: list[TensorProto] = []

    # -- choices ---------------------------------------------------------------------------------------------

    def rarely(self, of: int) -> bool:
        """Once in `of` times."""
        return self.draw.randrange(of) == 0

    def one(self, *of: Any) -> Any:
        return self.draw.choice(of)

    def length(self) -> int:
        """Of an axis: also one, rarely none."""
        return 0 if self.rarely(60) else self.draw.choice([1, 2, 2, 3, 3, 4])

    def sizes(self, rank: int) -> Shape:
        """Of so many axes, some equal."""
        return tuple(self.length() for _ in range(rank))

    # -- values ----------------------------------------------------------------------------------------------

    def input(self, *shape: int, of: type | None = None, fixed: bool = False) -> str:
        name, of = f"x{len(self.inputs)}", of or self.float
        dims: list[int | str] = [*shape]
        if self.symbols and not fixed:
            for k, d in enumerate(shape):
                if d in self.dynamic:
                    dims[k] = f"n{d}" if self.symbols == "shared" else f"i{len(self.inputs)}_{k}_{d}"
        self.inputs.append(helper.make_tensor_value_info(name, self.element(of), dims))
        self.shapes[name], self.types[name] = shape, of
        return name

    def add(self, op: str, inputs: list[str], shape: Shape, of: type | None = None, **attributes: Any) -> str:
        name = f"{self.depth}v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.shapes[name], self.types[name] = shape, of or (self.types.get(inputs[0]) if inputs else None) or self.float
        return name

    def several(
        self, op: str, inputs: list[str], shapes: Sequence[Shape], of: type | None = None, **attributes: Any
    ) -> list[str]:
        """Returns the results of a node, one for each shape."""
        names = [f"{self.depth}v{len(self.nodes)}_{i}" for i in range(len(shapes))]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        for name, shape in zip(names, shapes, strict=True):
            self.shapes[name], self.types[name] = shape, of or self.float
        return names

    def constant(self, array: np.ndarray) -> str:
        """Returns an initializer (new, or tied to an equal one) or a Constant."""
        key = array.dtype.str.encode() + str(array.shape).encode() + array.tobytes()
        if key in self.held and self.chance():
            return self.held[key]
        name = f"{self.depth}k{len(self.weights)}"
        if self.depth and self.rarely(3):
            self.own.append(numpy_helper.from_array(array, name))
            self.weights.append(numpy_helper.from_array(array, name + "_unused"))
        elif self.rarely(2 if self.depth else 4):
            self.weights.append(numpy_helper.from_array(array, name + "_unused"))
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        else:
            self.weights.append(numpy_helper.from_array(array, name))
            self.held[key] = name
        self.shapes[name], self.types[name] = array.shape, array.dtype.type
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, value: int) -> str:
        return self.constant(np.array(value, np.int64))

    def pick(self, wanted: Any = lambda s: True, of: type | None = None) -> str | None:
        """As before; no constant, of which nothing is known where the pass looks at results."""
        of = of or self.float
        found = [n for n, s in self.shapes.items() if self.types[n] is of and wanted(s) and "k" not in n]
        return self.draw.choice(found) if found else None

    def operand(self, shape: Shape, *, positive: bool = False) -> str:
        """Returns an operand that broadcasts to `shape`.

        A number, a vector, an array, a fill, an Expand, rarely an input.
        """
        rank, way = len(shape), self.draw.randrange(12)
        make = self.factors if positive else self.numbers
        if way < 3 or not rank:
            return self.floats(make(*[1] * self.draw.choice([0, 0, min(rank, 1), rank])))
        axis = self.draw.randrange(rank)
        along = tuple(d if k == axis else 1 for k, d in enumerate(shape))
        if way < 6:
            return self.floats(make(*(along[axis:] if self.chance() else along)))
        if way < 8:
            return self.floats(make(*(shape[axis:] if self.chance() else shape)))
        if way == 8:
            return self.floats(np.full(shape, make().item()))
        if way == 9:
            return self.floats(np.broadcast_to(make(*along), shape))
        if way == 10 and not self.depth:
            return self.add("Expand", [self.floats(make(*along)), self.ints(*shape)], shape, self.float)
        return self.floats(make(*shape)) if positive or self.depth else self.input(*(along if self.chance() else shape))

    # -- steps that fit anywhere -----------------------------------------------------------------------------

    def elementwise(self, x: str) -> str:
        """Returns one elementwise step."""
        shape, way = self.shapes[x], self.draw.randrange(10)
        if self.types[x] is not self.float or way < 4:
            return self.add(self.draw.choice(EXACT_UNARY if self.exact else ROUNDED_UNARY), [x], shape)
        if way == 4:
            low, high = sorted([self.draw.randint(-4, 4), self.draw.randint(-4, 4)])
            bounds = [self.floats(low), self.floats(high)]
            return self.add("Clip", [x, *bounds[: self.draw.randint(1, 2)]], shape)
        if way == 5 and (y := self.pick(lambda s: s == shape)):
            return self.add(self.draw.choice(BINARY), [x, y], shape)
        if way == 5 and self.rarely(3):
            mask = self.add(self.one("Greater", "Less", "Equal"), [x, self.operand(shape)], shape, np.bool_)
            return self.add("Where", [mask, *self.order([x, self.operand(shape)])], shape, self.float)
        if way == 6:
            return self.add("Div", [x, self.operand(shape, positive=True)], shape)
        pair = [x, self.operand(shape)]
        return self.add(self.draw.choice(BINARY), pair if self.chance() else pair[::-1], shape, self.types[x])

    def chain(self, x: str, most: int = 3) -> str:
        for _ in range(self.draw.randint(0, most)):
            x = self.elementwise(x)
        return x

    # -- bodies ----------------------------------------------------------------------------------------------

    @contextmanager
    def body(self, name: str) -> Iterator[None]:
        """Context of a body: values added meanwhile are local to it."""
        around = self.nodes, self.own, self.depth, dict(self.shapes), dict(self.held)
        self.nodes, self.own, self.depth = [], [], f"{self.depth}{name}_"
        try:
            yield
        finally:
            self.nodes, self.own, self.depth, self.shapes, self.held = around

    def enclosed(self, inputs: Sequence[ValueInfoProto], outputs: Sequence[str]) -> GraphProto:
        """The body so far."""
        return helper.make_graph(self.nodes, self.depth, inputs, self.results(*outputs), self.own)

    def typed(self, name: str, shape: Shape | None = None, of: type | None = None) -> ValueInfoProto:
        """What a body says of a value."""
        of = of or self.types.get(name, self.float)
        return helper.make_tensor_value_info(name, self.element(of), self.shapes.get(name) if shape is None else shape)

    def results(self, *names: str) -> list[ValueInfoProto]:
        """Outputs of a body, maybe of unknown dims, maybe without a type."""
        way = self.draw.randrange(4)
        found = [self.typed(n) for n in names]
        for info in found:
            if way == 0:
                info.type.tensor_type.ClearField("shape")
            elif way == 1:
                for d in info.type.tensor_type.shape.dim:
                    d.Clear()
        return found

    # -- the whole -------------------------------------------------------------------------------------------

    def model(self, *outputs: str, opset: int | None = None) -> ModelProto:
        """Returns the model with these results, of unknown dims, at another opset if all operators exist there."""
        given = dict.fromkeys((*outputs, *self.outputs))
        infos = [
            helper.make_tensor_value_info(o, self.element(self.types[o]), [None] * len(self.shapes[o])) for o in given
        ]
        weights = [w for w in self.weights if not w.name.endswith("_unused") or self.rarely(40)]
        graph = helper.make_graph(self.nodes, "region", self.inputs, infos, weights)
        domains = [helper.make_opsetid(d, 1 if d else 17) for d in self.domains]
        made = helper.make_model(graph, functions=self.functions, opset_imports=domains, ir_version=8)
        if (wanted := opset or self.draw.choice(OPSETS)) == 17:
            return made
        return at_opset(made, wanted) or made
