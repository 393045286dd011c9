"""Tensors taken apart and joined: Split, Slice, Gather, Concat, and computation on each part."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
from onnx import ModelProto, helper

from tests.rules.regions_layout import Layout, axes_put_in, axes_taken_out
from tests.rules.sketch import Shape


class Parts(Layout):
    """Steps that take apart and join."""

    def with_dim(self, x: str, axis: int, size: int) -> Shape:
        return tuple(size if k == axis else d for k, d in enumerate(self.shapes[x]))

    def said(self, axis: int, rank: int) -> int:
        return axis if self.chance() else axis - rank

    def cut(self, x: str, axis: int, sizes: list[int]) -> list[str]:
        """By a Split, by Slices, by what lists places."""
        rank = len(self.shapes[x])
        shapes = [self.with_dim(x, axis, n) for n in sizes]
        if not self.rarely(4):
            return self.several("Split", [x, self.ints(*sizes)], shapes, axis=self.said(axis, rank))
        return [self.piece(x, axis, sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]

    def piece(self, x: str, axis: int, start: int, end: int) -> str:
        """From `start` to `end`, counted from either side."""
        size, rank = self.shapes[x][axis], len(self.shapes[x])
        first = start - size if start and self.rarely(4) else start
        last = self.one(end, 2**63 - 1, end + 3) if end == size else self.one(end, end, end - size)
        inputs = [x, self.ints(first), self.ints(last), self.ints(self.said(axis, rank))]
        return self.add("Slice", inputs + [self.ints(1)] * self.rarely(3), self.with_dim(x, axis, end - start))

    def lengths(self, total: int) -> list[int]:
        """Returns lengths of parts, at least one part."""
        left, found = total, []
        while left > 0 and len(found) < 4:
            found.append(self.draw.randint(1, left))
            left -= found[-1]
        return [*found, left] if left else found


def slices(seed: str) -> ModelProto:
    """Slices or listed positions that cover an axis, or almost; a Split with one read part."""
    g = Parts(seed)
    g.symbols = g.symbols if g.rarely(3) else ""
    x = g.input(*g.sizes(g.draw.randint(1, 4)))
    axis = g.draw.randrange(len(g.shapes[x]))
    g.shapes[x] = g.with_dim(x, axis, size := g.draw.randint(2, 6))
    g.inputs[0].type.tensor_type.shape.dim[axis].dim_value = size
    sizes = g.lengths(size)
    if g.rarely(3) and len(sizes) > 1:
        parts = g.cut(x, axis, sizes)
        if g.chance():  # each part in as many again, but where something else reads it
            again = [g.cut(v, axis, g.lengths(g.shapes[v][axis])) if g.chance() else [v] for v in parts]
            return g.model(*(g.chain(v, 1) for made in again for v in made), *(parts[:1] if g.rarely(6) else []))
        return g.model(g.chain(g.draw.choice(parts), 2))
    parts = []
    for i, n in enumerate(sizes):
        start = sum(sizes[:i])
        for _ in range(g.one(1, 1, 1, 2)):
            if g.rarely(3) and len(g.shapes[x]) > 1:
                listed = g.ints(*range(start, start + n))
                parts.append(g.add("Gather", [x, listed], g.with_dim(x, axis, n), axis=g.said(axis, len(g.shapes[x]))))
            else:
                parts.append(g.piece(x, axis, start, start + n))
    if g.rarely(6):
        parts.append(g.piece(x, axis, 0, g.draw.randint(1, size)))
    return g.model(*(p if g.rarely(4) else g.chain(p, 2) for p in g.order(parts)))


def columns(seed: str) -> ModelProto:
    """All columns of a table, as scikit-learn takes them."""
    g = Parts(seed)
    g.symbols = ""
    n = g.draw.randint(2, 4)
    x = g.input(g.draw.choice([1, 2, 3]), n)
    taken = []
    for i, size in enumerate(sizes := g.lengths(n)):
        start = sum(sizes[:i])
        places = g.ints(*range(start, start + size))
        taken.append(g.add("ArrayFeatureExtractor", [x, places], (g.shapes[x][0], size), domain="ai.onnx.ml"))
    return g.model(*(g.chain(t, 1) for t in taken), opset=17)


def joined(seed: str) -> ModelProto:
    """A Concat cut where it was joined, or elsewhere."""
    g = Parts(seed)
    g.symbols = g.symbols if g.rarely(3) else ""
    shape = g.sizes(g.draw.randint(1, 3))
    axis = g.draw.randrange(len(shape))
    values = []
    for _ in range(g.draw.randint(2, 4)):
        one = tuple(
            g.draw.choice([0, 1, 2, 3] if g.rarely(6) else [1, 2, 3]) if k == axis else d for k, d in enumerate(shape)
        )
        values.append(g.chain(g.input(*one), 1) if not g.rarely(4) else g.floats(g.numbers(*one)))
        g.shapes[values[-1]], g.types[values[-1]] = one, g.float
    if g.rarely(4):
        values.append(values[0])
    lengths = [g.shapes[v][axis] for v in values]
    whole = tuple(sum(lengths) if k == axis else d for k, d in enumerate(shape))
    x = g.add("Concat", values, whole, axis=g.said(axis, len(shape)))
    bounds = sorted({0, *g.draw.sample(range(1, len(values)), g.draw.randint(1, len(values) - 1)), len(values)})
    sizes = [sum(lengths[a:b]) for a, b in pairwise(bounds)]
    if g.rarely(6) and sizes[0] and len(sizes) > 1:
        sizes = [sizes[0] - 1, sizes[1] + 1, *sizes[2:]]
    if g.rarely(3):
        start = g.draw.randrange(len(sizes))
        parts = [g.piece(x, axis, sum(sizes[:start]), sum(sizes[: start + 1]))]
    else:
        parts = g.cut(x, axis, sizes)
    if g.rarely(6):
        g.outputs.append(x)
    read = [p for p in parts if not g.rarely(5)] or parts[:1]
    return g.model(*(p if g.rarely(4) else g.chain(p, 2) for p in read))


def stacked(seed: str) -> ModelProto:
    """A stack on an axis of its own, sometimes transposed, with each position picked."""
    g = Parts(seed)
    lead = tuple(g.draw.choice([1, 2, 3]) for _ in range(g.draw.randint(0, 2)))
    n, m = g.draw.choice([2, 3]), g.draw.choice([1, 2, 3])
    rest = tuple(g.draw.choice([1, 2, 3]) for _ in range(g.draw.randint(0, 1)))
    shape, axis = (*lead, n, m, *rest), len(lead)
    v = g.reshaped(g.chain(g.input(*lead, n * m * prod(rest)), 1), shape)
    if g.chance():
        perm = g.order(range(len(shape)))
        v, axis = g.transposed(v, perm), perm.index(axis)
    rank, part = len(shape), tuple(d for k, d in enumerate(g.shapes[v]) if k != axis)
    read = [i for i in range(n) if not g.rarely(6)] or [0, 1]
    if g.chance():
        places = [i if g.chance() else i - n for i in read]
        parts = [g.add("Gather", [v, g.number(i)], part, axis=g.said(axis, rank)) for i in places]
    else:
        ones = g.several("Split", [v, g.ints(*[1] * n)], [g.with_dim(v, axis, 1)] * n, axis=g.said(axis, rank))
        parts = []
        for i in read:
            if g.rarely(4):
                parts.append(
                    g.add("Reshape", [ones[i], g.ints(*part)] if part else [ones[i], g.ints(-1)], part or (1,))
                )
            else:
                parts.append(g.add("Squeeze", [ones[i], g.ints(g.said(axis, rank))], part))
    if g.rarely(8):
        g.outputs.append(v)
    return g.model(*(g.chain(p, 2) for p in parts))


def stacks(seed: str) -> ModelProto:
    """As the grammar of random graphs has them."""
    g = Parts(seed)
    lead = g.sizes(g.one(1, 2))
    g.input(*lead, g.one(2, 4, 3, 6))
    g.stack()
    return g.model(*[n for n in g.shapes if n.startswith("v")][-3:] or ["x0"])


def axes_of_parts(seed: str) -> ModelProto:
    """Parts of a Split with equal axes inserted or removed; the same for several Gathers."""
    g = Parts(seed)
    rank = g.draw.randint(1, 3)
    shape = [g.draw.choice([1, 1, 2, 3]) for _ in range(rank)]
    axis = g.draw.randrange(rank)
    n = g.draw.choice([2, 3])
    way = g.draw.randrange(4)
    if way == 0:  # picked, and an axis put in
        shape[axis] = 3
        x = g.chain(g.input(*shape), 1)
        part = tuple(d for k, d in enumerate(shape) if k != axis)
        behind = g.draw.sample(range(rank + 1), 2) if g.rarely(4) else [g.draw.randrange(rank)]
        made = []
        for i in range(n):
            one = g.add("Gather", [x, g.number(g.one(i, i - 3))], part, axis=g.said(axis, rank))
            wide = list(part)
            for a in sorted(behind):
                wide.insert(a, 1)
            made.append(g.add("Unsqueeze", [one, g.ints(*behind)], tuple(wide)))
        return g.model(*(g.chain(m, 1) for m in made))
    lengths = [g.draw.choice([1, 1, 2]) if way == 1 else 1 for _ in range(n)]
    shape[axis] = sum(lengths)
    x = g.chain(g.input(*shape), 1)
    parts = g.several(
        "Split", [x, g.ints(*lengths)], [g.with_dim(x, axis, d) for d in lengths], axis=g.said(axis, rank)
    )
    read = [p for p in parts if not g.rarely(6)]
    made = []
    if way == 1:
        axes = sorted(g.draw.sample(range(rank + 1), 1)) if g.chance() else sorted(g.draw.sample(range(rank + 2), 2))
    else:
        ones = [k for k, d in enumerate(g.shapes[parts[0]]) if d == 1]
        axes = [axis] if way == 2 else g.draw.sample(ones, g.draw.randint(1, len(ones)))
    for p in read:
        dims = list(g.shapes[p])
        if way == 1:
            for a in axes:
                dims.insert(a, 1)
        else:
            dims = [d for k, d in enumerate(dims) if k not in axes]
        wide = rank + len(axes) if way == 1 else rank
        given = g.ints(*(g.said(a, wide) for a in g.order(axes)))
        made.append(g.add("Unsqueeze" if way == 1 else "Squeeze", [p, given], tuple(dims)))
    return g.model(*(g.chain(m, 1) for m in made or [x]), *(parts[-1:] if g.rarely(8) else []))


def lanes(seed: str) -> ModelProto:
    """Parts of a tensor, and of another, computed alike, and joined."""
    g = Parts(seed)
    rank = g.draw.randint(1, 3)
    axis = g.draw.randrange(rank)
    n = g.draw.choice([2, 2, 3, 4])
    sizes = [g.draw.choice([1, 1, 2])] * n if not g.rarely(3) else [g.draw.choice([1, 2]) for _ in range(n)]
    shape = tuple(sum(sizes) if k == axis else g.draw.choice([1, 2, 3]) for k in range(rank))

    def parts() -> list[str]:
        x = g.chain(g.input(*shape), 1)
        return g.several("Split", [x, g.ints(*sizes)], [g.with_dim(x, axis, d) for d in sizes], axis=g.said(axis, rank))

    first = parts()
    packs = [first, parts()] if g.chance() else [first]
    now = first
    for _ in range(g.draw.randint(1, 3)):
        way, op = g.draw.randrange(5), g.one("Add", "Sub", "Mul", "Max", "Min")
        if way == 0:
            op = g.draw.choice(["Neg", "Abs", "Relu"] if g.exact else ["Exp", "Sigmoid"])
            now = [g.add(op, [v], g.shapes[v]) for v in now]
        elif way == 1:
            other = g.draw.choice(packs)
            now = [g.add(op, [v, w], g.shapes[v]) for v, w in zip(now, other, strict=True)]
        elif way == 2:
            one = g.floats(g.numbers(*[1] * g.draw.randint(0, rank)))
            now = [g.add(op, [v, one], g.shapes[v]) for v in now]
        elif way == 3:
            now = [g.add(op, [v, g.floats(g.numbers(*g.shapes[v][axis:]))], g.shapes[v]) for v in now]
        else:
            now = [g.add(op, [v, g.floats(g.numbers())], g.shapes[v]) for v in now]
        packs.append(now)
    order = now if not g.rarely(6) else g.order(now)
    joined = [*order, *(g.elementwise(v) for v in packs[0][:1])] if g.rarely(3) else order
    if g.rarely(4):
        joined = [*joined, *(g.add("Neg", [v], g.shapes[v]) for v in packs[0])]
    total = sum(g.shapes[v][axis] for v in joined)
    out = g.add("Concat", joined, g.with_dim(now[0], axis, total), axis=g.said(axis, rank))
    if g.rarely(6):
        g.outputs.append(g.draw.choice(now))
    return g.model(g.chain(out, 1))


def sequences(seed: str) -> ModelProto:
    """A sequence of which elements are taken at constant positions."""
    g = Parts(seed)
    g.symbols = g.symbols if g.rarely(3) else ""
    shape = list(g.sizes(g.draw.randint(1, 3)))
    axis = g.draw.randrange(len(shape))
    shape[axis] = size = g.draw.randint(1, 6)
    x = g.chain(g.input(*shape), 1)
    way = g.draw.randrange(4)
    sizes = g.lengths(size)
    given = g.ints(*sizes)
    if way == 0:
        step = g.draw.randint(1, 3)
        sizes = [min(step, size - i) for i in range(0, size, step)]
        given = g.number(step)
    s = f"s{len(g.nodes)}"
    keep = {"keepdims": g.draw.randint(0, 1)} if g.chance() else {}
    g.nodes.append(helper.make_node("SplitToSequence", [x, given], [s], axis=g.said(axis, len(shape)), **keep))
    made = []
    for _ in range(g.draw.randint(1, 4)):
        i = g.draw.randrange(len(sizes))
        at = g.constant(np.array(g.one(i, i - len(sizes)), g.one(np.int64, np.int32)))
        made.append(
            g.add("SequenceAt", [s, at], tuple(sizes[i] if k == axis else d for k, d in enumerate(shape)), g.float)
        )
    if g.rarely(8):
        g.add("SequenceLength", [s], (), np.int64)
        g.outputs.append(g.last)
    return g.model(*(m if g.rarely(4) else g.chain(m, 1) for m in made), opset=g.one(17, 17, 12, 14, 18, 21))


class Canvas(Parts):
    """A tensor of which boxes are assigned."""

    def places(self, shape: Shape, axis: int, start: int, size: int) -> str:
        """Returns the positions of a box from `start` along the axis: a constant, or expanded and joined ranges."""
        box = tuple(size if k == axis else d for k, d in enumerate(shape[: axis + 1]))
        lines = [np.arange(n) + (start if k == axis else 0) for k, n in enumerate(box)]
        if self.rarely(8) and size > 1:
            lines[axis] = lines[axis][::-1]
        if 0 in box or not self.rarely(3):
            grid = np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(*box, len(box))
            return self.constant(np.ascontiguousarray(grid, np.int64))
        parts = []
        for k, line in enumerate(lines):
            first, last = self.number(int(line[0])), self.number(int(line[0]) + len(line))
            v = self.add("Range", [first, last, self.number(1)], line.shape, np.int64)
            v = self.add("Reshape", [v, self.ints(-1, *[1] * (len(box) - 1 - k))], (), np.int64)
            v = self.add("Expand", [v, self.ints(*box)], box, np.int64)
            parts.append(self.add("Unsqueeze", [v, self.ints(-1)], (*box, 1), np.int64))
        return self.add("Concat", parts, (*box, len(box)), np.int64, axis=-1)

    def assign(self, x: str, u: str, axis: int, start: int) -> str:
        """Overwrite the part from `start` by `u`."""
        shape, box = self.shapes[x], self.shapes[u]
        way, size = self.draw.randrange(4), box[axis]
        extra = {"reduction": "add"} if self.rarely(12) and self.float is np.float32 else {}
        if way == 0:
            line = (np.arange(size) + start).reshape(-1, *[1] * (len(shape) - 1 - axis))
            if size == 1 and start and self.chance():
                line = line - shape[axis]
            given = self.constant(np.ascontiguousarray(np.broadcast_to(line, box), np.int64))
            if size == 1 and self.chance():
                given = self.add("Expand", [self.number(start), self.add("Shape", [u], (), np.int64)], box, np.int64)
            return self.add("ScatterElements", [x, given, u], shape, axis=self.said(axis, len(shape)), **extra)
        if way == 1 and axis:
            perm = [axis, *(k for k in range(len(shape)) if k != axis)]
            xt, ut = self.transposed(x, perm), self.transposed(u, perm)
            places = self.constant(np.arange(start, start + size, dtype=np.int64).reshape(-1, 1))
            made = self.add("ScatterND", [xt, places, ut], self.shapes[xt], **extra)
            return self.transposed(made, [perm.index(k) for k in range(len(shape))])
        if way == 2 and size == 1 and axis < 2:
            places = (
                self.ints(start)
                if not axis
                else self.constant(np.stack([np.arange(shape[0]), np.full(shape[0], start)], -1))
            )
            u = self.add("Squeeze", [u, self.ints(axis)], (*box[:axis], *box[axis + 1 :]))
            return self.add("ScatterND", [x, places, u], shape, **extra)
        return self.add("ScatterND", [x, self.places(shape, axis, start, size), u], shape, **extra)


def assigned(seed: str) -> ModelProto:
    """Boxes assigned along an axis in sequence, and readers of parts of intermediate results."""
    g = Canvas(seed)
    g.symbols = ""
    shape = list(g.sizes(g.draw.randint(1, 3)))
    axis = g.draw.randrange(len(shape))
    shape[axis] = size = g.draw.randint(2, 6)
    if g.rarely(3):
        x = g.add("ConstantOfShape", [g.ints(*shape)], tuple(shape), np.float32)
        x = x if g.float is np.float32 else g.add("Cast", [x], tuple(shape), g.float, to=g.element(g.float))
    elif g.chance():
        x = g.chain(g.input(*shape), 1)
    else:
        halves = [tuple(n if k == axis else d for k, d in enumerate(shape)) for n in (1, size - 1)]
        x = g.add("Concat", [g.input(*h) for h in halves], tuple(shape), axis=axis)
    made = []
    at = 0
    for _ in range(g.draw.randint(1, 4)):
        start = g.draw.randrange(size) if g.rarely(3) else at % size
        end = g.draw.randint(start + 1, size)
        part = g.with_dim(x, axis, end - start)
        u = g.chain(g.input(*part), 1) if not g.rarely(4) else g.floats(np.full(part, g.numbers()))
        if g.rarely(4) and end <= size:
            u = g.elementwise(g.piece(x, axis, start, end))
        x = g.assign(x, u, axis, start)
        at = end
        if g.rarely(3):
            first = g.draw.randrange(size)
            made.append(g.piece(x, axis, first, g.draw.randint(first + 1, size)))
        if g.rarely(5):
            place = g.number(g.draw.randrange(-size, size))
            made.append(g.add("Gather", [x, place], (*shape[:axis], *shape[axis + 1 :]), axis=g.said(axis, len(shape))))
    return g.model(g.chain(x, 1), *(g.chain(m, 1) for m in made), opset=g.one(17, 17, 17, 16, 18, 21))


def framed(seed: str) -> ModelProto:
    """A box inside one number, nearly now and then."""
    g = Canvas(seed)
    g.symbols = ""
    shape = tuple(g.draw.randint(1, 4) for _ in range(g.draw.randint(1, 3)))
    starts = [g.draw.randrange(d) for d in shape]
    sizes = [g.draw.randint(1, d - s) for d, s in zip(shape, starts, strict=True)]
    u = g.chain(g.input(*sizes), 1)
    places = np.stack(np.meshgrid(*(np.arange(n) + s for n, s in zip(sizes, starts, strict=True)), indexing="ij"), -1)
    if g.rarely(8):
        places = places[::-1]
    x = g.floats(np.full(shape, g.numbers())) if not g.rarely(6) else g.input(*shape)
    y = g.add("ScatterND", [x, g.constant(np.ascontiguousarray(places, np.int64)), u], shape)
    return g.model(g.chain(y, 1), opset=g.one(17, 17, 16, 18, 21))


REGIONS = {
    "slice-assignments": (assigned, assigned, framed),
    "slices-to-split": (slices, slices, columns),
    "parts-of-concat": (joined,),
    "stacks-to-split": (stacked, stacked, stacks),
    "axes-before-split": (axes_of_parts, stacked),
    "axes-first": (axes_put_in, axes_taken_out, axes_of_parts),
    "pack-parts": (lanes,),
    "split-sequences": (sequences,),
}
