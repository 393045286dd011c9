"""Products and convolutions with foldable neighbours, side by side, and of narrower types."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import ModelProto

from tests.rules.regions_parts import Parts
from tests.rules.sketch import Shape


class Linear(Parts):
    """Operators with weights, and movers of their results."""

    def product(self, x: str, n: int, term: bool = True) -> str:
        """A MatMul or Gemm of the last axis, maybe with its bias added."""
        shape = self.shapes[x]
        w, out = self.numbers(shape[-1], n), (*shape[:-1], n)
        if len(shape) == 2 and self.chance():
            turned = self.chance()
            said = {"transB": 1} if turned else {}
            if self.rarely(4):
                said["alpha"] = 2.0  # type: ignore[assignment]
            given = [x, self.floats(w.T if turned else w)]
            return self.add("Gemm", given + [self.floats(self.numbers(n))] * term, out, **said)
        v = self.add("MatMul", [x, self.floats(w)], out)
        if term:
            pair = [v, self.floats(self.numbers(n))]
            v = self.add("Add", pair if self.chance() else pair[::-1], out)
        return v

    def convolution(self, x: str, n: int, term: bool = True) -> str:
        """Returns a convolution with kernels of one or two positions, sometimes depthwise."""
        b, c, *rest = self.shapes[x]
        size = self.draw.choice([1, 2]) if min(rest) > 1 else 1
        group = c if n % c == 0 and self.rarely(3) else 1
        w = self.floats(self.numbers(n, c // group, *[size] * len(rest)))
        out = (b, n, *(d - size + 1 for d in rest))
        return self.add("Conv", [x, w, *([self.floats(self.numbers(n))] if term else [])], out, group=group)

    def made(self, most: int = 6) -> str:
        """What weights make of an input."""
        n = self.draw.choice([1, 2, 4, most])
        if self.float is np.float32 and self.rarely(3):
            rest = [self.draw.choice([1, 2, 3]) for _ in range(self.one(1, 2))]
            return self.convolution(self.input(self.one(1, 2), self.one(1, 2), *rest), n, self.chance())
        lead = [self.draw.choice([1, 2, 3]) for _ in range(self.one(1, 2, 2))]
        return self.product(self.input(*lead, self.draw.choice([1, 2, 3])), n, not self.rarely(3))

    def moved(self, v: str, most: int = 3) -> str:
        """By what a factor, or a term, gets past."""
        for _ in range(self.draw.randint(0, most)):
            shape, way = self.shapes[v], self.draw.randrange(7)
            rank, axis = len(shape), self.draw.randrange(max(len(shape), 1))
            if way == 0 and rank > 1:
                v = self.transposed(v, self.order(range(rank)))
            elif way == 1 and rank and shape[-1] % 2 == 0:
                v = self.reshaped(v, (*shape[:-1], 2, shape[-1] // 2))
            elif way == 2 and rank and shape[axis] > 1:
                cut = self.draw.randint(1, shape[axis] - 1)
                v = self.draw.choice(self.cut(v, axis, [cut, shape[axis] - cut]))
            elif way == 3:
                k = self.draw.randint(0, rank)
                v = self.add("Unsqueeze", [v, self.ints(k)], (*shape[:k], 1, *shape[k:]))
            elif way == 4 and rank and shape[axis] == 1:
                v = self.add("Squeeze", [v, self.ints(axis)], tuple(d for k, d in enumerate(shape) if k != axis))
            elif way == 5 and rank:
                v = self.piece(v, axis, 0, shape[axis])
            elif way == 6 and rank > 1:
                v = self.reshaped(v, (prod(shape[:-1]), shape[-1]))
        return v


def factors(seed: str) -> ModelProto:
    """A factor behind or in front of a mover of a product."""
    g = Linear(seed)
    g.exact = True
    if g.rarely(3):  # in front: a number for each channel
        shape = [g.draw.choice([1, 2, 3]) for _ in range(g.one(2, 3, 4))]
        x = g.chain(g.input(*shape), 1)
        axis = 1 if len(shape) == 4 else len(shape) - 1
        each = [shape[axis] if k == axis else 1 for k in range(len(shape))]
        v = g.add(g.one("Mul", "Mul", "Div"), [x, g.floats(g.factors(*(each if g.chance() else [])))], tuple(shape))
        if len(shape) == 4 and g.float is np.float32:
            if g.chance():
                v = g._pad(v, g.one(2, 3), 2)
            return g.model(g.chain(g.convolution(v, 2), 1))
        v = g.moved(v, 2)
        return g.model(g.chain(g.product(v, 2), 1) if g.shapes[v] and g.shapes[v][-1] < 9 else v)
    v = g.made()
    for _ in range(g.draw.randint(0, 2)):
        way = g.draw.randrange(4)
        if way == 0:
            v = g.add(g.one("Relu", "Neg", "Identity", "Abs"), [v], g.shapes[v])
        elif way == 1 and g.shapes[v]:
            axis = g.draw.randrange(len(g.shapes[v]))
            op = g.one("ReduceMax", "ReduceSum")
            kept = g.with_dim(v, axis, 1)
            given = [v, *([g.ints(axis)] if op == "ReduceSum" else [])]
            v = g.add(op, given, kept, keepdims=1, **({} if len(given) > 1 else {"axes": [axis]}))
        else:
            v = g.moved(v, 2)
    if g.rarely(4):  # a product with something else is linear in it, too
        other = g.input(*(g.shapes[v][-1:] or [1]), 2)
        v = g.add("MatMul", [v, other], (*g.shapes[v][:-1], 2)) if len(g.shapes[v]) > 1 else v
    if g.rarely(6):
        g.outputs.append(v)
    z = g.floats(g.factors(*[1] * g.one(0, 0, 1, len(g.shapes[v])))) if g.shapes[v] else g.floats(2)
    pair = [v, z]
    out = (
        g.add("Div", pair, g.shapes[v])
        if g.rarely(3)
        else g.add("Mul", pair if g.chance() else pair[::-1], g.shapes[v])
    )
    return g.model(g.chain(out, 1))


def terms(seed: str) -> ModelProto:
    """A term behind what moves a part of a product with a bias."""
    g = Linear(seed)
    v = g.made()
    if not g.rarely(4) and g.nodes[-1].op_type not in ("Add", "Gemm", "Conv"):
        v = g.add("Add", [v, g.floats(g.numbers(g.shapes[v][-1]))], g.shapes[v])
    v = g.moved(v)
    if g.rarely(6):
        g.outputs.append(v)
    shape = g.shapes[v]
    axis = g.draw.randrange(len(shape)) if shape else 0
    each = tuple(d if k == axis else 1 for k, d in enumerate(shape)) if g.chance() else ()
    c = g.floats(g.numbers(*(each[axis:] if g.chance() else each)))
    out = g.add("Sub", [v, c], shape) if g.rarely(3) else g.add("Add", [v, c] if g.chance() else [c, v], shape)
    return g.model(g.chain(out, 1))


def side_by_side(seed: str) -> ModelProto:
    """Products or convolutions of one tensor, with equal or different readers."""
    g = Linear(seed)
    n = g.draw.choice([2, 3, 3, 4])
    term = g.chance()
    widths = [g.draw.choice([2, 4])] * n if not g.rarely(3) else [g.draw.choice([1, 2, 4]) for _ in range(n)]
    if g.float is np.float32 and g.rarely(3):
        x = g.chain(g.input(g.one(1, 2), g.one(1, 2, 3), 3, 2), 1)
        size = g.one(1, 2)
        parts = []
        for m in widths:
            w = g.floats(g.numbers(m, g.shapes[x][1], size, 1))
            b = [g.floats(g.numbers(m))] if term and not g.rarely(4) else []
            parts.append(g.add("Conv", [x, w, *b], (g.shapes[x][0], m, 4 - size, 2)))
    else:
        lead = [g.draw.choice([1, 2, 3]) for _ in range(g.one(1, 2))]
        x = g.chain(g.input(*lead, g.draw.choice([1, 2, 3])), 1)
        if len(lead) == 1 and g.chance():
            said = {"transB": 1} if g.chance() else {}
            parts = []
            for m in widths:
                w = g.numbers(g.shapes[x][-1], m)
                b = [g.floats(g.numbers(m))] if term and not g.rarely(4) else []
                parts.append(g.add("Gemm", [x, g.floats(w.T if said else w), *b], (*lead, m), **said))
        else:
            parts = [g.product(x, m, term) if g.rarely(6) else _plain(g, x, m) for m in widths]
    return g.model(*_onward(g, parts))


def _plain(g: Linear, x: str, n: int) -> str:
    return g.add("MatMul", [x, g.floats(g.numbers(g.shapes[x][-1], n))], (*g.shapes[x][:-1], n))


def _onward(g: Linear, parts: list[str]) -> list[str]:
    """The same step behind each, some number of times; sometimes not the same."""
    for _ in range(g.draw.randint(0, 3)):
        way, op = g.draw.randrange(5), g.one("Add", "Mul", "Sub")
        unary = g.draw.choice(["Relu", "Neg", "Abs"] if g.exact else ["Tanh", "Sigmoid"])
        made = []
        for p in parts:
            shape = g.shapes[p]
            if way == 0 or g.rarely(20):
                made.append(g.add(unary, [p], shape))
            elif way == 1:
                made.append(g.add(op, [p, g.floats(g.numbers(*(shape[-1:] if g.chance() else ())))], shape))
            elif way == 2 and shape[-1] % 2 == 0 and len(shape) < 5:
                made.append(g.reshaped(p, (*shape[:-1], shape[-1] // 2, 2)))
            elif way == 3 and len(shape) > 2:
                perm = [0, 2, 1, *range(3, len(shape))] if not g.rarely(4) else g.order(range(len(shape)))
                made.append(g.transposed(p, perm))
            else:
                made.append(g.add("Mul", [p, g.floats(2)], shape))
        parts = made
    if g.rarely(3) and len({g.shapes[p] for p in parts}) == 1:
        parts = [*parts[2:], g.add("Add", parts[:2], g.shapes[parts[0]])]
    return parts


def split_apart(seed: str) -> ModelProto:
    """Parts of a Split, each of which goes on alike."""
    g = Linear(seed)
    shape: Shape = tuple(g.draw.choice([1, 2, 3]) for _ in range(g.draw.randint(1, 4)))
    axis = g.draw.randrange(len(shape))
    n = g.one(2, 3)
    sizes = [g.draw.choice([1, 2, 4])] * n
    shape = tuple(sum(sizes) if k == axis else d for k, d in enumerate(shape))
    x = g.chain(g.input(*shape), 1)
    parts = g.several(
        "Split", [x, g.ints(*sizes)], [g.with_dim(x, axis, d) for d in sizes], axis=g.said(axis, len(shape))
    )
    return g.model(*_onward(g, parts))


def networks(seed: str) -> ModelProto:
    """Products and convolutions of float32, on numbers that narrower types hold, too."""
    g = Linear(seed, np.float32)
    g.exact = not g.rarely(6)
    v = g.made()
    for _ in range(g.draw.randint(0, 4)):
        way = g.draw.randrange(5)
        if way == 0 and g.shapes[v] and g.shapes[v][-1] < 9:
            v = g.product(v, g.one(1, 2, 3), g.chance()) if len(g.shapes[v]) > 1 else v
        elif way == 1 and g.shapes[v]:
            v = g.along(v)
        elif way == 2:
            v = g.moved(v, 1)
        else:
            v = g.elementwise(v)
        if g.rarely(8):
            g.outputs.append(v)
    return g.model(v)


REGIONS = {
    "scale-propagation": (factors,),
    "term-propagation": (terms,),
    "merge-parallel": (side_by_side, side_by_side, split_apart),
    "convert-dtype": (networks,),
}
