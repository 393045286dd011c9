"""What exporters and optimizers write, among the nodes of random graphs: decoders, operators of a runtime."""

from __future__ import annotations

import numpy as np

from tests.recurrences import Recurrences

CONTRIB = "com.microsoft"


class Exported(Recurrences):
    """The same grammar with longer steps."""

    def step(self) -> None:
        getattr(self, self.draw.choice(STEPS))()

    @property
    def last(self) -> str:
        return f"v{len(self.nodes) - 1}"

    def decoder(self) -> None:
        """Attention of one token over earlier ones, with axes of size one moved and moved back."""
        x = self.pick(lambda s: len(s) == 3 and s[1] == 1 and s[2] % 2 == 0)
        if x is None:
            return
        b, _, width = self.shapes[x]
        heads, past = 2, self.draw.randint(1, 3)
        d = width // heads
        lead = self.draw.choice([0, b, -1])
        self.add("Reshape", [x, self.ints(lead, 1, heads, d)], (b, 1, heads, d))
        token = self.add("Transpose", [self.last], (b, heads, 1, d), perm=[0, 2, 1, 3])
        before = self.floats(self.numbers(b, heads, past, d))
        keys = self.add("Concat", [before, token], (b, heads, past + 1, d), axis=self.draw.choice([2, -2]))
        turned = self.add("Transpose", [keys], (b, heads, d, past + 1), perm=[0, 1, 3, 2])
        self.add("MatMul", [token, turned], (b, heads, 1, past + 1))
        if self.chance():
            self.add(self.draw.choice(["Mul", "Div"]), [self.last, self.floats(2)], (b, heads, 1, past + 1))
        self.add("Softmax", [self.last], (b, heads, 1, past + 1), axis=-1)
        self.add("MatMul", [self.last, keys], (b, heads, 1, d))
        self.add("Transpose", [self.last], (b, 1, heads, d), perm=[0, 2, 1, 3])
        self.add("Reshape", [self.last, self.ints(b, 1, width)], (b, 1, width))

    def power(self) -> None:
        """Products of a value with itself, a factor somewhere among them; as in Gelus, with x in front."""
        x = self.pick()
        assert x
        shape = self.shapes[x]
        value = x = self.add("Tanh", [x], shape)  # small, or the next power of it is infinite
        scale = self.draw.choice([0.044715, -0.5, 3.0])
        turns = self.draw.choices("xxk", k=self.draw.randint(2, 4))
        for turn in turns:
            pair = [value, x if turn == "x" else self.floats(scale)]
            value = self.add("Mul", pair[:: self.draw.choice([1, -1])], shape)
        if self.chance():
            plus = self.add("Add", [value, self.floats(1)], shape)
            front = self.add("Mul", [x, self.floats(0.79788)], shape)
            self.add("Mul", [front, plus], shape)

    def signs(self) -> None:
        """Negations, of floats and integers, beside what takes a sign for itself."""
        kind = self.draw.choice([self.float, self.float, np.int32, np.int64])
        x = self.pick(of=kind)
        if x is None:
            return
        shape = self.shapes[x]
        turned = self.add("Neg", [x], shape, kind)
        other = self.draw.choice(["k", "y", "turned", "zero"])
        if other == "y":
            y = self.pick(lambda s: s == shape, of=kind) or x
            y = self.add("Neg", [y], shape, kind) if self.chance() else y
        else:
            value = {"k": 3, "turned": -2, "zero": 0}[other]
            y = self.constant(np.array(value, kind))
        divides = kind is self.float and other in ("k", "turned")  # by what is no zero, whose sign -O2 may change
        op = self.draw.choice(["Add", "Sub", "Mul", "Neg", "Abs", *(["Div"] if divides else [])])
        if op in ("Neg", "Abs"):
            self.add(op, [turned], shape, kind)
            return
        pair = [turned, y] if op == "Div" or self.chance() else [y, turned]
        made = self.add(op, pair, shape, kind)
        if self.chance():
            self.add("Neg", [made], shape, kind)

    def terms(self) -> None:
        """Constants added, subtracted, and subtracted from; together never zero, or nothing but rounding is left."""
        x = self.pick()
        assert x
        for term in self.order([1.0, 3.0, -7.0])[: self.draw.randint(2, 3)]:
            pair = [x, self.floats(term)][:: self.draw.choice([1, -1])]
            x = self.add(self.draw.choice(["Add", "Sub"]), pair, self.shapes[x])

    def truths(self) -> None:
        """Truth values, and numbers made of them."""
        x = self.pick(of=np.int64) if self.chance() else self.pick()
        if x is None:
            return
        shape, kind = self.shapes[x], self.types[x]
        op = self.draw.choice(["Greater", "Less", "Equal"])
        p = self.add(op, [x, self.constant(np.array(0, kind))], shape, np.bool_)
        for _ in range(self.draw.randint(1, 3)):
            q = self.pick(lambda s: s == shape, of=np.bool_) or p
            q = q if self.chance() else self.constant(np.array(self.chance()))
            op = self.draw.choice(["Not", "And", "Or", "Xor", "Equal"])
            p = self.add(op, [p] if op == "Not" else [p, q], shape, np.bool_)
        if self.chance():
            one = self.add("Cast", [p], shape, to=self.element(self.float))
            limit = self.floats(self.draw.choice([0.0, 0.5, 1.0]))
            other = self.pick(lambda s: s == shape, of=np.bool_) or p
            two = self.add("Cast", [other], shape, to=self.element(self.float))
            self.add("Mul", [one, two], shape)
            self.add(self.draw.choice(["Greater", "Less", "Equal"]), [one, limit], shape, np.bool_)

    def reductions(self) -> None:
        """Reductions of reductions; sums divided by the number of elements; bounds of bounds."""
        x = self.pick(lambda s: len(s) >= 2)
        if x is None:
            return
        shape = self.shapes[x]
        if self.chance():
            op, keep = self.draw.choice(["ReduceMean", "ReduceMax"]), self.draw.randint(0, 1)
            last = (*shape[:-1], 1) if keep else shape[:-1]
            inner = self.add(op, [x], last, axes=[-1], keepdims=keep)
            self.add(op, [inner], (1, *last[1:]) if keep else last[1:], axes=[0], keepdims=keep)
            return
        total = self.add("ReduceSum", [x, self.ints(-1)], (*shape[:-1], 1))
        count = self.draw.choice([float(shape[-1]), 2.0])
        self.add("Div", [total, self.floats(count)], (*shape[:-1], 1))
        op, y = self.draw.choice(["Max", "Min"]), self.pick(lambda s: s == shape) or x
        inner = self.add(op, [x, self.floats(0.5)], shape)
        self.add(op, [inner, self.draw.choice([y, self.floats(-1)])], shape)

    def contrib(self) -> None:
        """Operators that only onnxruntime knows."""
        x = self.pick(lambda s: len(s) >= 2)
        if x is None or self.float is not np.float32:
            return
        shape = self.shapes[x]
        n = shape[-1]
        op = self.draw.choice(["Gelu", "QuickGelu", "FastGelu", "BiasGelu", "FusedMatMul", "SkipLayerNormalization"])
        weights = [self.floats(self.factors(n)) for _ in range(2)]
        if op == "FusedMatMul":
            weight = self.floats(self.numbers(3, n))
            self.add(op, [x, weight], (*shape[:-1], 3), domain=CONTRIB, transB=1, alpha=0.5)
        elif op == "SkipLayerNormalization":
            skip = self.pick(lambda s: s == shape)
            if len(shape) == 3 and skip is not None:
                self.add(op, [x, skip, *weights], shape, domain=CONTRIB, epsilon=1e-5)
        else:
            self.add(op, [x, weights[0]] if op == "BiasGelu" else [x], shape, domain=CONTRIB)

    @property
    def domains(self) -> list[str]:
        """Returns the domains of the nodes."""
        return sorted({n.domain for n in self.nodes} | {""})


STEPS = [
    *["unary", "cast", "neutral", "binary", "reshape", "transpose", "slice", "concat", "expand", "branch"],
    *["conv", "conv", "batch_norm", "batch_norm", "per_channel", "per_channel"],
    *["linear", "linear", "rows", "rows", "computed", "computed", "halves", "axes"],
    *["decoder", "decoder", "contrib", "power", "signs", "terms", "truths", "reductions"],
    *["integers", "integers", "choices", "window", "channels_last", "channels_last", "loop"],
    *["stack", "batches", "rotary", "grid", "narrow_sizes", "labels", "while_loop", "scan", "never"],
]
