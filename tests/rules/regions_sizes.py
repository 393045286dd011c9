"""Index arithmetic on shapes: computed targets, sizes of 32 bits, single numbers, several Shapes."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import ModelProto, numpy_helper

from tests.rules.regions_layout import Layout
from tests.rules.sketch import Shape


class Sizes(Layout):
    """Values computed from shapes; `now`: their numbers."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.symbols = self.one("shared", "shared", "own", "own", "")
        self.now: dict[str, np.ndarray] = {}

    def integer(self, op: str, inputs: list[str], value: np.ndarray, **attributes: object) -> str:
        value = np.asarray(value)
        name = self.add(op, inputs, value.shape, value.dtype.type, **attributes)
        self.now[name] = value
        return name

    def held_as(self, array: np.ndarray) -> str:
        name = self.constant(array)
        self.now[name] = array
        return name

    def shape_of(self, x: str) -> str:
        return self.integer("Shape", [x], np.array(self.shapes[x], np.int64))

    def dim(self, x: str, axis: int, scalar: bool) -> str:
        """Returns a dim of `x`, picked or sliced from a new or an existing Shape."""
        rank = len(self.shapes[x])
        there = [n.output[0] for n in self.nodes if n.op_type == "Shape" and n.input[0] == x and not n.attribute]
        s = self.draw.choice(there) if there and self.chance() else self.shape_of(x)
        value, at = self.now[s], self.one(axis, axis, axis - rank)
        if scalar:
            return self.integer("Gather", [s, self.number(at)], value[axis], axis=0)
        way = self.draw.randrange(4)
        if way == 0:
            end = axis + 1 if axis + 1 < rank or self.chance() else 2**63 - 1
            inputs = [s, self.ints(axis), self.ints(end), *([self.ints(0)] if self.chance() else [])]
            return self.integer("Slice", inputs, value[axis : axis + 1])
        if way == 1:
            one = self.integer("Gather", [s, self.number(at)], value[axis], axis=0)
            return self.integer("Unsqueeze", [one, self.ints(0)], value[axis : axis + 1])
        return self.integer("Gather", [s, self.ints(at)], value[axis : axis + 1], axis=0)

    def arithmetic(self, x: str) -> str:
        """Returns one small step with a result of at least one."""
        value = self.now[x]
        way = self.draw.randrange(5)
        k = self.draw.choice([1, 1, 2, 3])
        number = np.array(k, value.dtype) if self.chance() or not value.ndim else np.full((1,), k, value.dtype)
        if way == 0:
            return self.integer("Add", [x, self.held_as(number)], value + number)
        if way == 1:
            return self.integer("Mul", [x, self.held_as(number)], value * number)
        if way == 2:
            return self.integer("Div", [x, self.held_as(number)], value // number)
        if way == 3:
            one = self.held_as(np.array(1, value.dtype))
            return self.integer("Sub", [self.integer("Add", [x, one], value + 1), one], value)
        others = [n for n, v in self.now.items() if v.shape == value.shape and v.dtype == value.dtype and n[0] != "k"]
        y = self.draw.choice(others)
        return self.integer("Mul", [x, y], value * self.now[y])

    def use(self, target: str, x: str) -> str:
        """A tensor of the shape that is computed."""
        dims = tuple(int(d) for d in self.now[target])
        way = self.draw.randrange(4)
        if way == 0 and prod(dims) == prod(self.shapes[x]):
            return self.add("Reshape", [x, target], dims)
        if way == 1:
            fill = {"value": numpy_helper.from_array(np.array([3], self.float))} if self.chance() else {}
            return self.add("ConstantOfShape", [target], dims, np.float32 if not fill else self.float, **fill)
        return self.add("Expand", [self.floats(self.numbers()), target], dims, self.float)


def targets(seed: str) -> ModelProto:
    """Targets of Reshapes, Expands and Slices that are computed piece by piece."""
    g = Sizes(seed)
    x = g.chain(g.input(*_some(g, g.draw.randint(1, 4))), 1)
    out = []
    for _ in range(g.draw.randint(1, 3)):
        shape, way = g.shapes[x], g.draw.randrange(7)
        rank = len(shape)
        if way == 0:  # the axes in another order, or some merged
            order = g.order(range(rank))
            parts = [g.dim(x, k, False) for k in order]
            value = np.array([shape[k] for k in order], np.int64)
            target = g.integer("Concat", parts, value, axis=0)
            out.append(g.add("Reshape", [x, target], tuple(int(d) for d in value)))
        elif way == 1 and rank > 1:
            a, b = g.dim(x, 0, False), g.dim(x, 1, False)
            product = g.integer("Mul", [a, b], g.now[a] * g.now[b])
            rest = [g.dim(x, k, False) for k in range(2, rank)] if g.chance() else [g.ints(-1)] * (rank > 2)
            merged = (shape[0] * shape[1], *(shape[2:] if len(rest) == rank - 2 or rank == 3 else (prod(shape[2:]),)))
            target = g.integer("Concat", [product, *rest], np.array(merged, np.int64), axis=0)
            out.append(g.add("Reshape", [x, target], merged))
        elif way == 2:
            parts = [g.dim(x, k, False) if g.chance() else g.ints(1) for k in range(rank)]
            target = g.integer("Concat", parts, np.concatenate([g.now.get(p, np.array([1])) for p in parts]), axis=0)
            out.append(g.add("Expand", [x, target], shape))
        elif way == 3:
            k = g.draw.randrange(rank)
            end = g.dim(x, k, False)
            start = g.ints(0) if g.chance() else g.integer("Sub", [end, g.dim(x, k, False)], np.zeros(1, np.int64))
            out.append(g.add("Slice", [x, start, end, g.ints(k)], shape))
        elif way == 4:
            k = g.draw.randrange(rank)
            n = g.dim(x, k, True)
            for _ in range(g.draw.randint(0, 2)):
                n = g.arithmetic(n)
            n = g.integer("Unsqueeze", [n, g.ints(0)], g.now[n].reshape(1))
            out.append(g.use(n, x))
        elif way == 5:  # where a number is asked for, one; as exporters say which dims an Expand keeps
            s = g.shape_of(x)
            ones = g.held_as(np.ones(rank, np.int64))
            is_one = g.add("Equal", [s, ones], (rank,), np.bool_)
            chosen = g.integer("Where", [is_one, ones, s], g.now[s])
            out.append(g.use(chosen, x))
        else:
            s = g.shape_of(x)
            total = g.integer("ReduceProd", [s], np.array([prod(shape)], np.int64), axes=[0], keepdims=1)
            out.append(g.add("Reshape", [x, total], (prod(shape),)))
        if g.shapes[out[-1]] and g.chance() and g.types[out[-1]] is g.float:
            x = out[-1]
    if g.rarely(4):
        out.append(g.shape_of(x))
    return g.model(*out)


def _some(g: Sizes, rank: int) -> Shape:
    return tuple(g.draw.choice([1, 2, 3, 4, 5]) for _ in range(rank))


def computed(seed: str) -> ModelProto:
    """As the grammar of random graphs has them."""
    g = Sizes(seed)
    g.input(*_some(g, g.draw.randint(1, 4)))
    for _ in range(g.draw.randint(1, 3)):
        g.computed()
        if g.chance():
            g.elementwise(list(g.shapes)[-1])
    return g.model([n for n in g.shapes if n.startswith("v")][-1])


def sources(seed: str) -> ModelProto:
    """Dims common to several tensors, each picked from its Shape; dims of moved tensors."""
    g = Sizes(seed)
    g.symbols = g.one("shared", "shared", "")
    dims = _some(g, g.draw.randint(1, 4))
    x = g.input(*dims)
    y = g.input(*g.draw.choice([dims, dims[:1], (*dims[:-1], 3), dims[::-1]]))
    values = [x, y]
    for v in (x, y):
        for _ in range(g.draw.randint(0, 2)):
            way = g.draw.randrange(4)
            if way == 0:
                v = g.transposed(v, g.order(range(len(g.shapes[v]))))
            elif way == 1:
                k = g.draw.randint(0, len(g.shapes[v]))
                v = g.add("Unsqueeze", [v, g.ints(k)], (*g.shapes[v][:k], 1, *g.shapes[v][k:]))
            else:
                v = g.elementwise(v)
        values.append(v)
    out = [g.chain(v, 1) for v in values[2:] if g.chance()]
    for _ in range(g.draw.randint(1, 3)):
        picked = []
        for _ in range(g.draw.randint(1, 3)):
            v = g.draw.choice(values)
            picked.append(g.dim(v, g.draw.randrange(len(g.shapes[v])), False))
        target = picked[0]
        if len(picked) > 1 or g.chance():
            target = g.integer("Concat", picked, np.concatenate([g.now[p] for p in picked]), axis=0)
        out.append(g.use(target, x) if g.chance() else target)
        if g.rarely(4):
            v = g.draw.choice(values)
            a, b = sorted([g.draw.randint(0, len(g.shapes[v])), g.draw.randint(0, len(g.shapes[v]))])
            if a < b:
                out.append(g.integer("Shape", [v], np.array(g.shapes[v][a:b], np.int64), start=a, end=b))
    plain = 17 if any(n.op_type == "Shape" and n.attribute for n in g.nodes) else None
    return g.model(*out, opset=plain)


def narrow(seed: str) -> ModelProto:
    """Sizes of 32 bits between Casts, computed and used."""
    g = Sizes(seed)
    x = g.input(*_some(g, g.draw.randint(1, 4)))
    rank = len(g.shapes[x])
    s = g.shape_of(x) if g.chance() else g.dim(x, g.draw.randrange(rank), g.chance())
    v = g.integer("Cast", [s], g.now[s].astype(np.int32), to=g.element(np.int32))
    out, steps = [], [v]
    for _ in range(g.draw.randint(1, 4)):
        value, way = g.now[v], g.draw.randrange(7)
        if way == 0 and value.ndim:
            k = g.draw.randrange(len(value))
            at = g.number(k) if g.chance() else g.ints(k)
            v = g.integer("Gather", [v, at], value[k] if not g.shapes[at] else value[k : k + 1], axis=0)
        elif way == 1 and value.ndim and len(value) > 1:
            v = g.integer("Slice", [v, g.ints(1), g.ints(2**63 - 1)], value[1:])
        elif way == 2 and value.ndim:
            other = g.held_as(np.array([2], np.int32))
            v = g.integer("Concat", [v, other], np.concatenate([value, g.now[other]]), axis=0)
        elif way == 3 and value.ndim:
            v = g.integer("ReduceProd", [v], value.prod(keepdims=True, dtype=np.int32), axes=[0], keepdims=1)
        elif way == 4 and not value.ndim:
            v = g.integer("Unsqueeze", [v, g.ints(0)], value.reshape(1))
        else:
            v = g.arithmetic(v)
        steps.append(v)
    ends = [v, *([g.draw.choice(steps)] if g.chance() else [])]
    for end in ends:
        for _ in range(g.one(1, 1, 1, 2)):
            kind = g.one(np.int64, np.int64, np.int64, g.float)
            wide = g.integer("Cast", [end], g.now[end].astype(kind), to=g.element(kind))
            if kind is g.float or g.chance():
                out.append(wide)
            else:
                if not g.now[wide].ndim:
                    wide = g.integer("Unsqueeze", [wide, g.ints(0)], g.now[wide].reshape(1))
                out.append(g.use(wide, x) if prod(g.now[wide]) < 5000 and min(g.now[wide]) >= 0 else wide)
    if g.rarely(5):
        out.append(g.draw.choice(steps))
    return g.model(*out)


def narrow_sizes(seed: str) -> ModelProto:
    """As the grammar of random graphs has them."""
    g = Sizes(seed)
    g.input(*_some(g, g.draw.randint(2, 4)))
    for _ in range(g.draw.randint(1, 2)):
        g.narrow_sizes()
    return g.model([n for n in g.shapes if n.startswith("v")][-1])


def numbers(seed: str) -> ModelProto:
    """Numbers computed alike, one by one, and joined; also of floats."""
    g = Sizes(seed)
    x = g.input(*_some(g, g.draw.randint(1, 4)))
    n = g.draw.choice([2, 2, 3, 4])
    kind = g.one(np.int64, np.int64, np.int32, np.float32)
    s = g.shape_of(x)
    if kind is np.float32 or kind is np.int32:
        s = g.integer("Cast", [s], g.now[s].astype(kind), to=g.element(kind))
    picks = [g.draw.randrange(len(g.shapes[x])) for _ in range(n)]
    vectors = g.rarely(3)  # of one element each
    places = [g.ints(k) if vectors else g.number(k) for k in picks]
    lanes = [g.integer("Gather", [s, i], g.now[s][[k] if vectors else k], axis=0) for i, k in zip(places, picks)]
    all_lanes = [lanes]
    for _ in range(g.draw.randint(1, 4)):
        op, way = g.one("Add", "Sub", "Mul", "Max", "Min"), g.draw.randrange(5)
        f = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}[op]
        if way == 0:
            op = g.one("Neg", "Abs")
            lanes = [g.integer(op, [v], -g.now[v] if op == "Neg" else abs(g.now[v])) for v in lanes]
        elif way == 1:
            beside = g.draw.choice(all_lanes)
            lanes = [g.integer(op, [v, w], f(g.now[v], g.now[w])) for v, w in zip(lanes, beside, strict=True)]
        elif way == 2:
            one = g.held_as(np.array(g.draw.choice([1, 2, 3]), kind))
            lanes = [g.integer(op, [v, one], f(g.now[v], g.now[one])) for v in lanes]
        else:
            made = []
            for v in lanes:
                k = g.held_as(np.array(g.draw.randint(1, 4), kind))
                pair = (v, k) if way == 3 else (k, v)
                made.append(g.integer(op, [*pair], f(g.now[pair[0]], g.now[pair[1]])))
            lanes = made
        all_lanes.append(lanes)
    ends = lanes
    if not vectors:
        ends = [g.integer("Unsqueeze", [v, g.ints(g.one(0, -1))], g.now[v].reshape(1)) for v in lanes]
    if g.rarely(4):
        ends = [*ends]
        ends.insert(g.draw.randrange(n), g.held_as(np.array([5], kind)))
    joined = g.integer("Concat", ends, np.concatenate([g.now[e] for e in ends]), axis=g.one(0, 0, -1))
    if g.rarely(4):
        g.outputs.append(g.draw.choice(g.draw.choice(all_lanes)))
    return g.model(joined)


REGIONS = {
    "shape-arithmetic": (targets, targets, computed),
    "shape-sources": (sources,),
    "widen-indices": (narrow, narrow, narrow_sizes),
    "convert-int32": (targets, computed, numbers, sources),
    "pack-scalars": (numbers,),
}
