"""Constants in every form, and nodes that are equal, dead, or have an input that equals its default."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from tests.rules.regions_flow import Flow
from tests.rules.sketch import Shape


class Constants(Flow):
    """Arrays of many types, and nodes on them."""

    def of(self, array: Any, of: type | None = None) -> str:
        return self.constant(np.asarray(array, of or self.float))

    def odd(self, *shape: int) -> str:
        """Returns floats, sometimes with elements that compare unusually."""
        array = np.asarray(self.numbers(*shape), self.float)
        if array.size and self.rarely(3):
            array = array.copy()
            array.reshape(-1)[self.draw.randrange(array.size)] = self.one(-0.0, np.inf, -np.inf, np.nan, 1e30, 1e-40)
        return self.of(array)

    def anything(self, v: str) -> str:
        """Returns one step on the floats `v`, constant if `v` is constant."""
        shape = self.shapes[v]
        rank, way = len(shape), self.draw.randrange(14)
        if way == 0 and rank:
            return self.transposed(v, self.order(range(rank)))
        if way == 1:
            return self.add("Reshape", [v, self.ints(-1) if prod(shape) else self.ints(0)], (prod(shape),))
        if way == 2:
            kind = self.one(np.int32, np.int64, np.float64, np.float32, np.bool_)
            wide = self.add(
                "Cast", [self.add("Clip", [v, self.of(-9), self.of(9)], shape)], shape, kind, to=self.element(kind)
            )
            return self.add("Cast", [wide], shape, self.float, to=self.element(self.float))
        if way == 3 and rank and shape[0]:
            places = self.ints(*(self.draw.randrange(-shape[0], shape[0]) for _ in range(self.draw.randint(1, 3))))
            return self.add("Gather", [v, places], (*self.shapes[places], *shape[1:]), axis=0)
        if way == 4:
            wide = (self.draw.choice([1, 2, 3]), *shape)
            return self.add("Expand", [v, self.ints(*wide)], wide)
        if way == 5 and rank:
            times = [self.draw.choice([1, 1, 2]) for _ in shape]
            return self.add("Tile", [v, self.ints(*times)], tuple(d * t for d, t in zip(shape, times, strict=True)))
        if way == 6:
            mask = self.add(self.one("Greater", "Less", "Equal"), [v, self.of(self.one(0.0, 1.0))], shape, np.bool_)
            mask = self.add("Not", [mask], shape, np.bool_) if self.chance() else mask
            return self.add("Where", [mask, v, self.operand(shape)], shape, self.float)
        if way == 7:
            fill = numpy_helper.from_array(np.array([self.one(0, 2, -0.0)], self.float))
            other = (
                self.add("ConstantOfShape", [self.ints(*shape)], shape, self.float, value=fill) if rank else self.of(1)
            )
            return self.add(self.one("Add", "Mul"), [v, other], shape)
        if way == 8 and rank == 2 and self.exact:
            w = self.floats(self.numbers(shape[1], 2))
            return self.add("MatMul", [v, w], (shape[0], 2))
        if way == 9 and rank:
            return self.along(v)
        return self.elementwise(v)


def folds(seed: str) -> ModelProto:
    """Constant and other computations side by side, also in branches."""
    g = Constants(seed)
    shape = g.sizes(g.draw.randint(0, 3))
    x = g.input(*shape)
    values = [g.odd(*shape) for _ in range(g.one(1, 2))]
    for _ in range(g.draw.randint(1, 5)):
        values.append(g.anything(g.draw.choice(values[-2:])))
    out = [g.chain(x, 1)]
    for v in values[-2:]:
        if g.shapes[v] == shape or prod(g.shapes[v]) == 1:
            out.append(g.add(g.one("Add", "Mul"), [x, v], np.broadcast_shapes(shape, g.shapes[v])))
        elif v.startswith("v"):
            out.append(v if g.chance() else g.elementwise(v))
    if g.rarely(4):
        out += g.decide(g.condition(False), values[-1:], 1, g.shapes[values[-1]])
    return g.model(*out)


def equal_constants(seed: str) -> ModelProto:
    """Initializers that are equal, or nearly, with a zero of another sign; some given out, some overridable."""
    g = Constants(seed)
    shape = g.sizes(g.draw.randint(0, 3))
    x = g.chain(g.input(*shape), 1)
    array = np.asarray(g.numbers(*shape), g.float)
    other = array.copy()
    if other.size:
        other.reshape(-1)[0] = 0.0
        array = other.copy()
        other.reshape(-1)[0] = -0.0
    held = []
    for k in range(g.draw.randint(2, 5)):
        g.weights.append(numpy_helper.from_array(array if not g.rarely(4) else other, f"e{k}"))
        g.shapes[f"e{k}"], g.types[f"e{k}"] = shape, g.float
        held.append(f"e{k}")
    out = [g.add(g.one("Add", "Mul", "Div", "Min"), [x, k], shape) for k in held]
    if g.chance():
        with g.body("then"):
            g.own.append(numpy_helper.from_array(array, "own"))
            g.shapes["own"], g.types["own"] = shape, g.float
            made = g.hand_out([g.add("Sub", [x, "own"], shape), g.draw.choice([held[0], "own"])])
            then = g.enclosed([], made)
        with g.body("else"):
            otherwise = g.enclosed([], g.hand_out([g.add("Sub", [held[0], x], shape), held[1]]))
        out += g.several("If", [g.condition(False)], [shape] * 2, then_branch=then, else_branch=otherwise)
    if g.rarely(4):
        out.append(g.draw.choice(held))
    overridable = g.draw.choice(held) if g.rarely(4) else ""
    if overridable:
        g.inputs.append(g.typed(overridable))
    return g.model(*out)


def constant_nodes(seed: str) -> ModelProto:
    """Constants of every attribute, some given out, some in bodies."""
    g = Constants(seed)
    x = g.chain(g.input(2, fixed=True), 1)

    def some() -> str:
        name = f"{g.depth}c{len(g.nodes)}"
        way = g.draw.randrange(6)
        sparse = helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([3], g.float), f"{name}_v"), numpy_helper.from_array(np.array([1])), [2]
        )
        said: dict[str, Any] = [
            {"value": numpy_helper.from_array(np.asarray(g.numbers(2), g.float), "t")},
            {"value_float": 0.5}, {"value_floats": [1.0, -2.0]}, {"value_int": 3}, {"value_ints": [1, 2]},
            {"sparse_value": sparse},
        ][way]  # fmt: skip
        g.nodes.append(helper.make_node("Constant", [], [name], **said))
        shape: Shape = () if way in (1, 3) else (2,)
        kind = np.int64 if way in (3, 4) else np.float32 if way in (1, 2) else g.float
        g.shapes[name], g.types[name] = shape, kind
        return name

    def used(c: str) -> str:
        if g.types[c] is not g.float:
            c = g.add("Cast", [c], g.shapes[c], g.float, to=g.element(g.float))
        return g.add(g.one("Add", "Sub", "Mul"), [x, c] if g.chance() else [c, x], (2,))

    out = []
    for _ in range(g.draw.randint(1, 3)):
        c = some()
        out += [used(c)] if not g.rarely(4) else [c]
    if g.chance():
        bodies = []
        for name in ("then", "else"):
            with g.body(name):
                c = some() if g.chance() else g.floats(g.numbers(2))
                made = used(c) if g.chance() else g.add("Identity", [g.floats(g.numbers(2))], (2,))
                bodies.append(g.enclosed([], [made]))
        out += g.several("If", [g.condition(False)], [(2,)], then_branch=bodies[0], else_branch=bodies[1])
    return g.model(*dict.fromkeys(out))


def twins(seed: str) -> ModelProto:
    """Nodes that compute the same, or nearly, once and again, inside and outside of branches, in any order."""
    g = Constants(seed)
    shape = g.sizes(g.draw.randint(0, 3))
    x, y = g.input(*shape), g.input(*shape)
    held = [g.operand(shape), g.operand(shape)]

    def steps() -> list[tuple[str, list[int], dict[str, Any]]]:
        return [
            (g.one("Add", "Sub", "Mul", "Max", "Neg", "Clip"), [g.draw.randrange(4) for _ in "ab"], {}) for _ in "abc"
        ]

    plan = steps()

    def grown() -> list[str]:
        values, made = [x, y, *held], []
        for op, (a, b), said in plan:
            a, b = (made[-1] if made and g.chance() else values[i] for i in (a, b))
            if op == "Clip":
                op, b = ("Clip", held[0]) if g.shapes[held[0]] == () else ("Min", b)
            inputs = [a] if op == "Neg" else [a, b]
            if op in ("Add", "Mul") and g.rarely(4):
                inputs.reverse()
            dims = np.broadcast_shapes(*(g.shapes[i] for i in inputs))
            made.append(g.add(op, inputs, dims, **said))
        return made

    state = g.draw.getstate()
    first = grown()
    if g.chance():
        g.draw.setstate(state)
    second = grown()
    out = [g.draw.choice(first), g.draw.choice(second), second[-1]]
    if g.chance():
        wanted = g.shapes[first[-1]]
        bodies = []
        for name in ("then", "else"):
            with g.body(name):
                g.draw.setstate(state)
                made = grown()
                bodies.append(
                    g.enclosed([], g.hand_out([made[-1], made[-1] if g.shapes[made[0]] != wanted else made[0]]))
                )
        out += g.several("If", [g.condition(False)], [wanted] * 2, then_branch=bodies[0], else_branch=bodies[1])
        if g.rarely(3):
            out += g.several("If", ["condition"], [wanted] * 2, then_branch=bodies[0], else_branch=bodies[1])
    return g.model(*(o if g.chance() else g.chain(o, 1) for o in dict.fromkeys(out)))


def unread(seed: str) -> ModelProto:
    """Nodes, optional outputs and initializers without readers, also in bodies."""
    g = Constants(seed)
    g.symbols = ""
    x = g.chain(g.input(1, g.draw.choice([1, 2]), 4, 4), 1)
    shape, kept = g.shapes[x], [x]
    for _ in range(g.draw.randint(1, 4)):
        v, way = g.draw.choice(kept), g.draw.randrange(6)
        if way == 0:
            kept.append(g.several("Dropout", [v], [shape, shape])[0])
            g.types[kept[-1][:-1] + "1"] = np.bool_
        elif way == 1 and g.float is np.float32 and g.shapes[v] == shape:
            pooled = (*shape[:2], 3, 3)
            names = g.several("MaxPool", [v], [pooled, pooled], kernel_shape=[2, 2])
            g.types[names[1]] = np.int64
            g.outputs.append(g.draw.choice(names))
        elif way == 2 and g.float is np.float32:
            n = g.shapes[v][-1] if g.shapes[v] else 0
            if n and len(g.shapes[v]) > 1:
                made = g.several("LayerNormalization", [v, g.floats(g.factors(n))], [g.shapes[v]] * 3, axis=-1)
                kept.append(made[0])
        elif way == 3:
            k = g.ints(1)
            names = g.several("TopK", [v, k], [(*g.shapes[v][:-1], 1)] * 2, axis=-1)
            g.types[names[1]] = np.int64
            g.outputs.append(g.draw.choice(names))
        elif way == 4:
            g.floats(g.numbers(3))
        else:
            kept.append(g.elementwise(v))
    if g.rarely(3):
        g.decide(g.condition(False), [x], 2, shape)
        g.outputs += [f"v{len(g.nodes) - 1}_{i}" for i in range(2) if g.chance()]
    return g.model(g.draw.choice(kept))


def functions(seed: str) -> ModelProto:
    """Functions with unread results and unread inputs."""
    g = Constants(seed)
    shape = g.sizes(g.draw.randint(0, 3))
    given, results = g.draw.randint(1, 3), g.draw.randint(1, 3)
    x = [g.input(*shape) for _ in range(2)]
    names = [f"f_a{i}" for i in range(given)]
    with g.body("f"):
        g.shapes.update(dict.fromkeys(names, shape))
        g.types.update(dict.fromkeys(names, g.float))
        made = []
        for _ in range(results):
            v = g.draw.choice([*names, *made])
            pair = [v, g.draw.choice(names)]
            made.append(g.add(g.one("Add", "Sub", "Neg", "Relu"), pair, shape))
            if g.nodes[-1].op_type in ("Neg", "Relu"):
                del g.nodes[-1].input[1:]
        if g.rarely(3):
            g.add("Abs", [made[0]], shape)
        imports = [helper.make_opsetid("", 17)]
        g.functions.append(helper.make_function("local", "F", names, made, g.nodes, imports))
        if g.rarely(3):
            g.functions.append(helper.make_function("local", "G", names, made, g.nodes, imports))
    out = []
    for k in range(g.draw.randint(1, 3)):
        operands = [g.draw.choice(x) if k == 0 or g.chance() else x[0] for _ in range(given)]
        out += g.several("F", operands, [shape] * results, domain="local")
    read = [o for o in out if not g.rarely(3)] or out[:1]
    return g.model(*(o if g.chance() else g.chain(o, 1) for o in read))


def repeated(seed: str) -> ModelProto:
    """A constant that repeats itself, whole or along axes, beside a value of the same or another size."""
    g = Constants(seed)
    rank = g.draw.randint(2, 4)
    shape = tuple(g.draw.choice([1, 2, 3, 4]) for _ in range(rank))
    along = tuple(1 if g.chance() else d for d in shape)
    array = np.ascontiguousarray(np.broadcast_to(g.numbers(*along), shape)).copy()
    if g.rarely(5) and array.size:
        array.reshape(-1)[-1] = -0.0 if g.chance() else 7
    x = g.chain(g.input(*(shape if not g.rarely(4) else [1 if g.rarely(3) else d for d in shape])), 1)
    way = g.draw.randrange(5)
    c = g.constant(array.astype(g.float))
    if way == 0:
        mask = g.add("Greater", [x, g.of(0)], g.shapes[x], np.bool_)
        pair = [c, x] if g.chance() else [x, c]
        v = g.add("Where", [mask, *pair], np.broadcast_shapes(shape, g.shapes[x]), g.float)
    elif way == 1 and rank == 2:
        w = g.floats(g.numbers(3, shape[1]))
        a = g.input(shape[0], 3)
        v = g.add("Gemm", [a, w, c], shape)
    elif way == 2:
        op = g.one("Greater", "Less", "Equal")
        v = g.add(op, [x, c] if g.chance() else [c, x], np.broadcast_shapes(shape, g.shapes[x]), np.bool_)
    else:
        op = g.one("Add", "Sub", "Mul", "Max", "Min")
        v = g.add(op, [x, c] if g.chance() else [c, x], np.broadcast_shapes(shape, g.shapes[x]))
    if g.rarely(4):
        g.outputs.append(g.add("Neg", [c], shape))
    return g.model(v if g.types[v] is not g.float else g.chain(v, 1))


def zero_states(seed: str) -> ModelProto:
    """Recurrent networks with a state of zeros, or nearly, in several forms."""
    g = Constants(seed, np.float32)
    op = g.one("LSTM", "GRU", "RNN")
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    steps, batch, width, hidden = (g.draw.choice([1, 2, 3]) for _ in range(4))
    ways = g.one(1, 1, 2)
    x = g.input(steps, batch, width)
    w, r = g.floats(g.numbers(ways, gates * hidden, width)), g.floats(g.numbers(ways, gates * hidden, hidden))
    b = g.floats(g.numbers(ways, 2 * gates * hidden)) if g.chance() else ""
    shape = (ways, batch, hidden)

    def state() -> str:
        way, number = g.draw.randrange(7), g.one(0.0, 0.0, 0.0, -0.0, 1.0)
        fill = numpy_helper.from_array(np.array([number], np.float32))
        if way == 0:
            return ""
        if way == 1:
            return g.of(np.full(shape, number))
        if way == 2:
            return g.add("ConstantOfShape", [g.ints(*shape)], shape, np.float32, **({"value": fill} if number else {}))
        if way == 3:
            s = g.add("Shape", [x], (3,), np.int64)
            n = g.add("Gather", [s, g.ints(1)], (1,), np.int64, axis=0)
            dims = g.add("Concat", [g.ints(ways), n, g.ints(hidden)], (3,), np.int64, axis=0)
            return g.add("ConstantOfShape", [dims], shape, np.float32, value=fill)
        if way == 4:
            one = g.add("Expand", [g.of(number), g.ints(2 * ways, batch, hidden)], (2 * ways, batch, hidden))
            return g.add("Slice", [one, g.ints(0), g.ints(ways), g.ints(0)], shape)
        if way == 5:
            halves = [g.of(np.full((ways, 1, hidden), number)) for _ in range(batch)]
            return g.add("Concat", halves, shape, axis=1)
        return g.transposed(g.of(np.full((batch, ways, hidden), number)), [1, 0, 2])

    inputs = [x, w, r, b, "", state(), *([state()] if op == "LSTM" else [])]
    while not inputs[-1]:
        inputs.pop()
    out = (steps, ways, batch, hidden)
    said = {"direction": "bidirectional"} if ways == 2 else {}
    shapes = [out, *[shape] * (2 if op == "LSTM" else 1)]
    made = g.several(op, inputs, shapes[: g.draw.randint(1, len(shapes))], hidden_size=hidden, **said)
    return g.model(*made)


REGIONS = {
    "constant-folding": (folds,),
    "deduplicate-constants": (equal_constants,),
    "lift-constants": (constant_nodes,),
    "common-subexpressions": (twins, twins, functions),
    "dead-code": (unread, functions),
    "constants-once": (repeated,),
    "default-inputs": (zero_states,),
}
