"""Regions with renamed, merged and inserted axes: between Transposes, Reshapes, Unsqueezes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from onnx import ModelProto

from tests.rules.sketch import Shape, Sketch


def inverse(perm: list[int]) -> list[int]:
    return [perm.index(i) for i in range(len(perm))]


class Layout(Sketch):
    """Steps along axes, with `kept` leading axes apart."""

    def transposed(self, x: str, perm: list[int]) -> str:
        return self.add("Transpose", [x], tuple(self.shapes[x][i] for i in perm), perm=perm)

    def reshaped(self, x: str, shape: Shape, batch: bool = False) -> str:
        """Returns a Reshape with a target that gives all dims, leaves one open, or copies some."""
        target = list(shape)
        if prod(shape) and self.chance():
            target[0 if batch else self.draw.randrange(len(target))] = -1
        elif prod(shape) and self.rarely(3):
            target = [0 if self.shapes[x][k : k + 1] == (d,) else d for k, d in enumerate(shape)]
        return self.add("Reshape", [x, self.ints(*target)], shape)

    def along(self, x: str, kept: int = 0, last: bool = False) -> str:
        """One step of any kind; only along the last axis if `last`."""
        shape = self.shapes[x]
        rank = len(shape)
        if rank <= kept or rank == 0:
            return self.elementwise(x)
        axis = rank - 1 if last else self.draw.randrange(kept, rank)
        said = axis if self.chance() else axis - rank
        steps: list[Callable[[str, int, int], str]] = [self._soft, self._reduce, self._split]
        steps += [self._largest, self._normal] if axis == rank - 1 else []
        steps += [] if last else [self._concat, self._pad, self._slice, self._gather]
        if self.float is np.float32:
            steps.append(self._quantized)
        return self.draw.choice(steps)(x, axis, said)

    def _soft(self, x: str, axis: int, said: int) -> str:
        if self.exact:
            return self.elementwise(x)
        return self.add(self.one("Softmax", "LogSoftmax"), [x], self.shapes[x], axis=said)

    def _reduce(self, x: str, axis: int, said: int) -> str:
        op = self.one("ReduceMax", "ReduceMin", "ReduceSum", "ReduceSum", "ReduceMean", "ReduceSumSquare")
        if not self.shapes[x][axis] or (self.exact and op == "ReduceMean"):
            op = "ReduceSum"
        shape = tuple(1 if k == axis else d for k, d in enumerate(self.shapes[x]))
        given = [x, self.ints(said)] if op == "ReduceSum" else [x]
        return self.add(op, given, shape, **({} if len(given) > 1 else {"axes": [said]}), keepdims=1)

    def _largest(self, x: str, axis: int, said: int) -> str:
        if self.shapes[x][axis] < 2 or self.exact:  # of equal ones any may be the first
            return self.elementwise(x)
        shape = tuple(2 if k == axis else d for k, d in enumerate(self.shapes[x]))
        made = self.several("TopK", [x, self.ints(2)], [shape, shape], axis=said)
        self.types[made[1]] = np.int64
        return made[0]

    def _normal(self, x: str, axis: int, said: int) -> str:
        if self.exact or not self.shapes[x][axis]:
            return self.elementwise(x)
        weights = [self.floats(self.factors(self.shapes[x][axis])) for _ in range(self.draw.randint(1, 2))]
        return self.add("LayerNormalization", [x, *weights], self.shapes[x], axis=said)

    def _gather(self, x: str, axis: int, said: int) -> str:
        n = self.shapes[x][axis]
        if not n:
            return self.elementwise(x)
        places = self.ints(*(self.draw.randrange(-n, n) for _ in range(self.draw.randint(1, 3))))
        shape = tuple(self.shapes[places][0] if k == axis else d for k, d in enumerate(self.shapes[x]))
        return self.add("Gather", [x, places], shape, axis=said)

    def _split(self, x: str, axis: int, said: int) -> str:
        n = self.shapes[x][axis]
        if n < 2:
            return self.elementwise(x)
        cut = self.draw.randint(1, n - 1)
        parts = [tuple(s if k == axis else d for k, d in enumerate(self.shapes[x])) for s in (cut, n - cut)]
        names = self.several("Split", [x, self.ints(cut, n - cut)], parts, axis=said)
        if self.chance():
            names = [self.elementwise(n) for n in names]
            return self.add("Concat", self.order(names), self.shapes[x], axis=said)
        return self.draw.choice(names)

    def _concat(self, x: str, axis: int, said: int) -> str:
        shape = self.shapes[x]
        if shape[axis] > 8:
            return self.elementwise(x)
        other = self.draw.choice([x, x, self.elementwise(x), self.pick(lambda s: s == shape) or x])
        wide = tuple(2 * d if k == axis else d for k, d in enumerate(shape))
        return self.add("Concat", [x, other], wide, axis=said)

    def _pad(self, x: str, axis: int, said: int) -> str:
        rank = len(self.shapes[x])
        before, after = self.draw.randint(0, 1), self.draw.randint(0, 2)
        pads = [0] * (2 * rank)
        pads[axis], pads[axis + rank] = before, after
        shape = tuple(d + (before + after) * (k == axis) for k, d in enumerate(self.shapes[x]))
        return self.add("Pad", [x, self.ints(*pads), *([self.floats(2)] if self.chance() else [])], shape)

    def _slice(self, x: str, axis: int, said: int) -> str:
        n = self.shapes[x][axis]
        start, step = self.draw.randint(0, max(n - 1, 0)), self.one(1, 1, 2)
        shape = tuple(len(range(start, n, step)) if k == axis else d for k, d in enumerate(self.shapes[x]))
        bounds = [start, self.one(n, 2**63 - 1), said, step]
        return self.add(
            "Slice", [x, *(self.ints(b) for b in bounds[: 4 if step > 1 else 4 - self.draw.randint(0, 1)])], shape
        )

    def _quantized(self, x: str, axis: int, said: int) -> str:
        each = self.chance() and self.shapes[x][axis] > 0
        n = (self.shapes[x][axis],) if each else ()
        scale = self.floats(self.factors(*n))
        zero = self.constant(self.rng.integers(0, 9, n).astype(np.uint8))
        q = self.add("QuantizeLinear", [x, scale, zero], self.shapes[x], np.uint8, axis=said)
        return self.add("DequantizeLinear", [q, scale, zero], self.shapes[x], self.float, axis=said)


def transposes(seed: str) -> ModelProto:
    """Transposes at the entry and exit of a region, or at a further reader."""
    g = Layout(seed)
    rank = g.draw.randint(2, 5)
    shape, perm = g.sizes(rank), g.order(range(rank))
    if perm == sorted(perm):
        perm = perm[::-1]
    entering = [g.transposed(g.chain(g.input(*shape), 1), perm) for _ in range(g.one(1, 1, 2))]
    v = entering[0]
    for other in entering[1:]:
        v = g.add(g.one("Add", "Mul", "Max", "Sub"), [v, other], g.shapes[v])
    for _ in range(g.draw.randint(1, 5)):
        v = g.along(v) if g.chance() else g.elementwise(v)
    if g.rarely(4):
        axes = sorted(g.draw.sample(range(rank), g.draw.randint(1, rank - 1)))
        left = tuple(d for k, d in enumerate(g.shapes[v]) if k not in axes)
        g.outputs.append(g.add("ReduceSum", [v, g.ints(*axes)], left, keepdims=0))
    back = inverse(perm) if not g.rarely(4) else g.order(range(rank))
    out = g.transposed(v, back)
    if g.rarely(5):
        g.outputs.append(v)
    if g.rarely(5):
        g.outputs.append(g.transposed(v, g.order(range(rank))))
    return g.model(g.chain(out, 1))


def channels_last(seed: str) -> ModelProto:
    """Several channels-last regions of the grammar of random graphs."""
    g = Layout(seed)
    g.input(*g.sizes(4))
    for _ in range(g.draw.randint(1, 3)):
        g.channels_last()
    return g.model(list(g.shapes)[-1])


def rows(seed: str) -> ModelProto:
    """Products of tokens with biases, and what treats rows alone, maybe from and to matrices."""
    g = Layout(seed)
    lead = tuple(g.draw.choice([1, 2, 3, 4]) for _ in range(g.one(2, 2, 2, 3)))
    width = g.draw.choice([1, 2, 3, 4])
    matrix = (prod(lead), width)
    v = g.reshaped(g.input(*matrix), (*lead, width)) if g.chance() else g.input(*lead, width)
    for _ in range(g.draw.randint(1, 5)):
        width = g.shapes[v][-1]
        way = g.draw.randrange(4)
        if way < 2:
            n = g.draw.choice([1, 2, 3])
            v = g.add("MatMul", [v, g.floats(g.numbers(width, n))], (*g.shapes[v][:-1], n))
            if not g.rarely(4):
                pair = [v, g.floats(g.numbers(*([n] if g.chance() else [1, n])))]
                v = g.add("Add", pair if g.chance() else pair[::-1], g.shapes[v])
        elif way == 2:
            v = g.along(v, last=True)
        else:
            v = g.elementwise(v)
        if g.rarely(8):
            g.outputs.append(v)
    if g.chance():
        v = g.reshaped(v, (prod(g.shapes[v][:-1]), g.shapes[v][-1]))
        if g.chance():
            w = g.floats(g.numbers(g.shapes[v][-1], 2))
            v = g.add("Gemm", [v, w, g.floats(g.numbers(2))], (g.shapes[v][0], 2))
    elif g.rarely(3):
        v = g.add("Flatten", [v], (prod(g.shapes[v][:-1]), g.shapes[v][-1]), axis=len(g.shapes[v]) - 1)
    return g.model(v)


def batches(seed: str) -> ModelProto:
    """Leading axes merged by a Reshape, products and operators along a batch, and Reshapes back."""
    g = Layout(seed)
    lead = tuple(g.draw.choice([1, 2, 2, 3]) for _ in range(g.one(2, 2, 2, 3)))
    rest = tuple(g.draw.choice([1, 2, 3]) for _ in range(g.one(1, 2, 2)))
    n = prod(lead)
    entering = [g.reshaped(g.chain(g.input(*lead, *rest), 1), (n, *rest), True) for _ in range(g.one(1, 2))]
    v = entering[-1]
    for _ in range(g.draw.randint(1, 5)):
        shape, way = g.shapes[v], g.draw.randrange(5)
        if way == 0 and len(shape) == 3:
            other = g.transposed(g.draw.choice(entering), [0, 2, 1])
            if g.shapes[other][1] == shape[2] and g.shapes[other][0] == shape[0]:
                v = g.add("MatMul", [v, other], (*shape[:2], g.shapes[other][2]))
        elif way == 1 and len(shape) == 3:
            v = g.transposed(v, [0, 2, 1])
        elif way == 2 and len(shape) == 3:
            m = g.draw.choice([1, 2, 3])
            w = g.numbers(*([shape[0]] if g.rarely(3) else [1] if g.chance() else []), shape[2], m)
            v = g.add("MatMul", [v, g.floats(w)], (*shape[:2], m))
        elif way == 3:
            v = g.along(v, kept=1)
        else:
            v = g.elementwise(v)
        if g.rarely(8):
            g.outputs.append(v)
        if g.shapes[v][0] != n:
            break
    if g.rarely(4):
        g.outputs.append(g.reshaped(v, (*lead, *g.shapes[v][1:])) if g.shapes[v][0] == n else v)
    v = g.reshaped(v, (*lead, *g.shapes[v][1:])) if g.shapes[v][0] == n else v
    return g.model(g.chain(v, 1))


def merged_products(seed: str) -> ModelProto:
    """Attention written with products of one batch axis."""
    g = Layout(seed)
    g.input(*(g.draw.choice([1, 2, 3]) for _ in range(4)))
    for _ in range(g.draw.randint(1, 2)):
        g.batches()
        if g.chance():
            g.elementwise(list(g.shapes)[-1])
    return g.model(list(g.shapes)[-1])


def axes_put_in(seed: str) -> ModelProto:
    """Elementwise computation on operands with removed or inserted axes, with an insertion at its end."""
    g = Layout(seed)
    rank = g.draw.randint(1, 3)
    shape = tuple(g.draw.choice([1, 2, 3, 4]) for _ in range(rank))
    axes = sorted(g.draw.sample(range(rank + 1), 1)) if not g.rarely(4) else sorted(g.draw.sample(range(rank + 2), 2))
    wide = list(shape)
    for a in axes:
        wide.insert(a, 1)
    whole = tuple(wide)

    def source() -> str:
        way = g.draw.randrange(6)
        said = [a if g.chance() else a - len(whole) for a in axes]
        if way == 0:
            return g.add("Squeeze", [g.input(*whole, fixed=g.chance()), g.ints(*said)], shape)
        if way == 1:
            long = tuple(g.draw.choice([1, 2, 3]) if k in axes else d for k, d in enumerate(whole))
            op = g.one("ReduceSum", "ReduceMax")
            given = [g.input(*long), *([g.ints(*said)] if op == "ReduceSum" else [])]
            return g.add(op, given, shape, keepdims=0, **({} if len(given) > 1 else {"axes": said}))
        if way == 2 and len(axes) == 1:
            long = tuple(3 if k in axes else d for k, d in enumerate(whole))
            return g.add("Gather", [g.input(*long), g.number(g.draw.randint(-3, 2))], shape, axis=said[0])
        if way == 3 and rank > 1:
            one = tuple(d for k, d in enumerate(shape) if k)
            return g.add("Unsqueeze", [g.input(*one), g.ints(0)], (1, *one)) if shape[0] == 1 else g.input(*shape)
        return g.input(*shape)

    values = [source() for _ in range(g.one(1, 1, 2))]
    v = values[0]
    for _ in range(g.draw.randint(1, 4)):
        way = g.draw.randrange(4)
        if way == 0 and len(values) > 1:
            pair = [v, g.draw.choice(values)]
            try:
                made = np.broadcast_shapes(g.shapes[pair[0]], g.shapes[pair[1]])
            except ValueError:
                continue
            v = g.add(g.one("Add", "Sub", "Mul", "Min"), pair, made)
        elif way == 1:
            k = g.draw.randrange(rank)
            joined = tuple(d * 2 if i == k else d for i, d in enumerate(g.shapes[v]))
            v = g.add("Concat", [v, g.elementwise(v)], joined, axis=g.one(k, k - rank)) if prod(joined) < 200 else v
        else:
            v = g.elementwise(v)
        values.append(v)

    def put_in(v: str) -> str:
        shape = list(g.shapes[v])
        for a in axes:
            shape.insert(a, 1)
        if g.rarely(4):
            return g.reshaped(v, tuple(shape))
        return g.add("Unsqueeze", [v, g.ints(*g.order(axes))], tuple(shape))

    out = put_in(v)
    if g.chance() and len(values) > 1:
        other = put_in(g.draw.choice(values[-2:]))
        g.outputs.append(g.chain(other, 1))
    if g.rarely(6):
        g.outputs.append(g.draw.choice(values))
    return g.model(g.chain(out, 1))


def axes_taken_out(seed: str) -> ModelProto:
    """Elementwise computation on operands with inserted or kept axes, with a removal at its end."""
    g = Layout(seed)
    rank = g.draw.randint(2, 4)
    axes = sorted(g.draw.sample(range(rank), g.draw.randint(1, min(2, rank - 1))))
    shape = tuple(1 if k in axes else g.draw.choice([1, 2, 3]) for k in range(rank))
    narrow = tuple(d for k, d in enumerate(shape) if k not in axes)

    def source() -> str:
        way = g.draw.randrange(5)
        said = [a if g.chance() else a - rank for a in axes]
        if way == 0:
            return g.add("Unsqueeze", [g.input(*narrow, fixed=g.chance()), g.ints(*said)], shape)
        if way == 1:
            long = tuple(g.draw.choice([1, 2, 3]) if k in axes else d for k, d in enumerate(shape))
            return g.add("ReduceSum", [g.input(*long), g.ints(*said)], shape, keepdims=1)
        if way == 2 and len(axes) == 1:
            long = tuple(3 if k in axes else d for k, d in enumerate(shape))
            return g.add("Gather", [g.input(*long), g.ints(g.draw.randint(-3, 2))], shape, axis=said[0])
        return g.input(*shape)

    values = [source() for _ in range(g.one(1, 1, 2))]
    v = values[0]
    for _ in range(g.draw.randint(1, 4)):
        k = g.draw.choice([k for k in range(rank) if k not in axes])
        way = g.draw.randrange(5)
        if way == 0:
            other = g.draw.choice([*values, g.floats(g.numbers(*shape[g.draw.randrange(rank) :]))])
            if g.shapes[other] == g.shapes[v] or g.shapes[v] == shape:
                v = g.add(g.one("Add", "Mul", "Max"), [v, other], g.shapes[v])
        elif way == 1 and g.shapes[v][k] < 7:
            joined = tuple(2 * d if i == k else d for i, d in enumerate(g.shapes[v]))
            v = g.add("Concat", [v, g.elementwise(v)], joined, axis=g.one(k, k - rank))
        else:
            v = g.elementwise(v)
        values.append(v)

    def take_out(v: str) -> str:
        left = tuple(d for k, d in enumerate(g.shapes[v]) if k not in axes)
        return g.reshaped(v, left) if g.rarely(4) else g.add("Squeeze", [v, g.ints(*g.order(axes))], left)

    out = take_out(v)
    if g.chance():
        g.outputs.append(g.chain(take_out(g.draw.choice(values[-2:])), 1))
    return g.model(g.chain(out, 1))


REGIONS = {
    "transpose-propagation": (transposes, transposes, transposes, channels_last),
    "flatten-rows": (rows,),
    "unmerge-batches": (batches, batches, merged_products),
}
