"""What exporters write to reorder, pick and look up, among the nodes of random graphs."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.grammar import Grammar


class Lookups(Grammar):
    """The same grammar with tensors that are taken apart, put together and looked up."""

    def unnamed(self, op: str, inputs: list[str], **attributes: object) -> str:
        """A node whose result no other step selects: indices, sizes."""
        name = f"s{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def size(self, x: str, axis: int) -> str:
        """A dim as a number without axes, stored or read off."""
        if self.chance():
            return self.constant(np.array(self.shapes[x][axis], np.int64))
        return self.unnamed("Gather", [self.unnamed("Shape", [x]), self.constant(np.array(axis, np.int64))])

    def stack(self) -> None:
        """Queries, keys and values of one product, stacked on an axis of their own, moved or not, each picked."""
        x = self.pick(lambda s: 2 <= len(s) <= 3 and (s[-1] % 2 == 0 or s[-1] % 3 == 0))
        if x is None:
            return
        *lead, width = self.shapes[x]
        n = 2 if width % 2 == 0 else 3
        shape = (*lead, n, width // n)
        value = self.add("Reshape", [x, self.ints(*shape)], shape)
        axis = len(lead)
        if self.chance():
            perm = self.order(range(len(shape)))
            shape = tuple(shape[i] for i in perm)
            value, axis = self.add("Transpose", [value], shape, perm=perm), perm.index(axis)
        part = (*shape[:axis], *shape[axis + 1 :])
        if self.chance():
            for i in range(n):
                self.add("Gather", [value, self.constant(np.array(i, np.int64))], part, axis=axis)
            return
        names = [f"s{len(self.nodes)}_{i}" for i in range(n)]
        self.nodes.append(helper.make_node("Split", [value, self.ints(*[1] * n)], names, axis=axis))
        for name in names:
            self.add("Squeeze", [name, self.ints(axis)], part)

    def batches(self) -> None:
        """A matrix product with merged batches."""
        x = self.pick(lambda s: len(s) == 4)
        if x is None:
            return
        a, b, m, k = self.shapes[x]
        lead = self.draw.choice([a * b, -1])
        left = self.add("Reshape", [x, self.ints(lead, m, k)], (a * b, m, k))
        if self.chance():
            right = self.add("Transpose", [left], (a * b, k, m), perm=[0, 2, 1])
        else:
            turned = self.add("Transpose", [x], (a, b, k, m), perm=[0, 1, 3, 2])
            right = self.add("Reshape", [turned, self.ints(lead, k, m)], (a * b, k, m))
        made = self.add("MatMul", [left, right], (a * b, m, m))
        self.add("Reshape", [made, self.ints(a, b, m, m)], (a, b, m, m))

    def rotary(self) -> None:
        """x cos + [-x2, x1] sin."""
        x = self.pick(lambda s: len(s) >= 2 and s[-1] % 2 == 0)
        if x is None:
            return
        shape = self.shapes[x]
        half, last = shape[-1] // 2, len(shape) - 1
        part = (*shape[:-1], half)
        first = self.add("Slice", [x, self.ints(0), self.ints(half), self.ints(last)], part)
        second = self.add("Slice", [x, self.ints(half), self.ints(2**63 - 1), self.ints(last)], part)
        turned = self.add("Concat", [self.add("Neg", [second], part), first], shape, axis=-1)
        angles = self.rng.uniform(0, 6, half)
        angles = np.concatenate([angles, angles if self.chance() else angles[::-1]])
        one = self.add("Mul", [x, self.floats(np.cos(angles))], shape)
        two = self.add("Mul", [turned, self.floats(np.sin(angles))], shape)
        self.add("Add", [one, two], shape)

    def grid(self) -> None:
        """Elements looked up place by place: all of them, or fewer rows, in order or with the axes exchanged."""
        x = self.pick(lambda s: len(s) >= 2 and s[0] * s[1] <= 64)
        if x is None:
            return
        n, m, *rest = self.shapes[x]
        fewer = self.chance() and n > 1
        rows = self.constant(np.array(n - 1, np.int64)) if fewer else self.size(x, 0)
        n -= fewer
        zero, one = (self.constant(np.array(i, np.int64)) for i in (0, 1))
        i = self.unnamed("Range", [zero, rows, one])
        j = self.unnamed("Range", [zero, self.size(x, 1), one])
        down = self.unnamed("Unsqueeze", [i, self.ints(1, 2)])
        along = self.unnamed("Unsqueeze", [j, self.ints(0, 2)])
        places = [self.unnamed("Expand", [v, self.ints(n, m, 1)]) for v in (down, along)]
        if n == m and self.chance():
            places.reverse()
        self.add("GatherND", [x, self.unnamed("Concat", places, axis=-1)], (n, m, *rest))

    def narrow_sizes(self) -> None:
        """A target that is computed in 32 bits."""
        x = self.pick(lambda s: len(s) >= 2)
        if x is None:
            return
        first, second, *rest = self.shapes[x]
        sizes = self.unnamed("Cast", [self.unnamed("Shape", [x])], to=TensorProto.INT32)
        a, b = (self.unnamed("Gather", [sizes, self.ints(i)]) for i in (0, 1))
        rows = self.unnamed("Mul", [a, b])
        if self.chance():
            rows = self.unnamed("Div", [rows, self.constant(np.array([1], np.int32))])
        target = self.unnamed("Concat", [rows, self.constant(np.array(rest, np.int32))], axis=0)
        wide = self.unnamed("Cast", [target], to=TensorProto.INT64)
        self.add("Reshape", [x, wide], (first * second, *rest))

    def labels(self) -> None:
        """What is looked up in a table, and cast."""
        x = self.pick(lambda s: len(s) >= 1 and s[-1] <= 64)
        if x is None:
            return
        *lead, n = self.shapes[x]
        best = self.unnamed("ArgMax", [x], axis=-1, keepdims=0)
        table = self.constant(self.rng.integers(-5, 5, n).astype(self.draw.choice([np.int32, np.int64])))
        self.add("Cast", [self.unnamed("Gather", [table, best])], tuple(lead), to=self.element(self.float))
