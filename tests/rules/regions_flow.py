"""If, Loop and Scan: known conditions and trips, states of every kind, equal branches."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, ValueInfoProto, helper

from tests.rules.regions_layout import Layout, inverse
from tests.rules.sketch import Shape


class Flow(Layout):
    """Bodies."""

    def condition(self, known: bool, *shapes: Shape) -> str:
        """Constant if it is `known`."""
        if known:
            return self.constant(np.full(self.draw.choice(shapes or [(), (), (1,)]), self.chance()))
        if not any(i.name == "condition" for i in self.inputs):
            self.inputs.append(helper.make_tensor_value_info("condition", self.element(np.bool_), []))
            self.types["condition"], self.shapes["condition"] = np.bool_, ()
        return "condition"

    def branch(self, name: str, values: list[str], count: int, shape: Shape | None = None) -> GraphProto:
        """Returns several values of a branch: computed from outer ones, its own, or the same twice."""
        with self.body(name):
            made = [self.chain(self.draw.choice(values), 2) for _ in range(count)]
            for i, v in enumerate(made):
                if shape is not None and self.shapes[v] != shape:
                    v = self.floats(self.numbers(*shape))
                    self.shapes[v], self.types[v] = shape, self.float
                # An outer value is none of the body's, and twice the same needs a name of its own.
                if not v.startswith(self.depth) or v in made[:i] or not any(v in n.output for n in self.nodes):
                    v = self.add("Identity", [v], self.shapes[v])
                made[i] = v
            return self.enclosed([], made)

    def decide(self, condition: str, values: list[str], count: int, shape: Shape) -> list[str]:
        """The results of an If."""
        then = self.branch("then", values, count, shape)
        otherwise = then if self.rarely(6) else self.branch("else", values, count, shape)
        if otherwise is not then and self.rarely(3):  # siblings may use the same names
            renamed(otherwise, "else_", "then_")
        return self.several("If", [condition], [shape] * count, then_branch=then, else_branch=otherwise)

    def hand_out(self, names: list[str]) -> list[str]:
        """Returns an output of a body: by an Identity for an input, an outer value, or a repeated output."""
        made = {o for n in self.nodes for o in n.output}
        found: list[str] = []
        for v in names:
            if v not in made or v in found or self.rarely(6):
                v = self.add("Identity", [v], self.shapes[v], self.types[v])
            found.append(v)
        return found


def renamed(graph: GraphProto, old: str, new: str) -> None:
    """Rename values of the body that begin with `old`, in place."""
    own = {o for n in graph.node for o in n.output} | {t.name for t in graph.initializer}
    names = {n: n.replace(old, new, 1) for n in own if n.startswith(old)}
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    for info in (*graph.output, *graph.initializer):
        info.name = names.get(info.name, info.name)


def branches(seed: str) -> ModelProto:
    """An If whose condition is constant, maybe in a branch of another."""
    g = Flow(seed)
    shape = g.sizes(g.draw.randint(0, 3))
    values = [g.chain(g.input(*shape), 1) for _ in range(g.one(1, 2))]
    values.append(g.floats(g.numbers(*shape)))
    g.shapes[values[-1]], g.types[values[-1]] = shape, g.float
    if g.rarely(3):
        with g.body("outer"):
            inner = g.decide(g.condition(not g.rarely(4)), values, 1, shape)
            body = g.enclosed([], inner)
        other = g.branch("other", values, 1, shape)
        [v] = g.several("If", [g.condition(g.rarely(4))], [shape], then_branch=body, else_branch=other)
        return g.model(g.chain(v, 1))
    made = g.decide(g.condition(not g.rarely(6)), values, g.one(1, 1, 2, 3), shape)
    if g.rarely(3):
        made = [*made, *g.decide(g.condition(True), [*values, made[0]], 1, shape)]
    return g.model(*(m if g.chance() else g.chain(m, 2) for m in made))


def ranks(seed: str) -> ModelProto:
    """An If with branches of different rank and a reader that accepts one of them, and Ifs on the same condition."""
    g = Flow(seed)
    rank = g.draw.randint(2, 4)
    wide = tuple(g.draw.choice([1, 2, 3]) for _ in range(rank))
    wide = (1, *wide[1:]) if rank == 4 or g.chance() else (*wide[:-1], 1)
    axis = 0 if wide[0] == 1 else rank - 1
    x = g.chain(g.input(*wide, fixed=True), 1)
    narrow = tuple(d for k, d in enumerate(wide) if k != axis)
    squeezed = g.chance()  # is that what the reader takes?
    kept = narrow if squeezed else wide
    # The condition of PyTorch's exporter is about the size; which passes do not fold that run alone.
    size = g.add("Gather", [g.add("Shape", [x], (rank,), np.int64), g.number(axis)], (), np.int64)
    condition, straight = g.add("Equal", [size, g.number(1)], (), np.bool_), True
    for _ in range(g.draw.randint(0, 2)):
        condition, straight = g.add("Not", [condition], (), np.bool_), not straight
    bodies = []
    for taken in (straight, not straight):
        with g.body("then" if len(bodies) == 0 else "else"):
            squeeze = squeezed == taken
            v = g.add("Squeeze", [x, g.ints(axis)], narrow) if squeeze else g.add("Identity", [x], wide)
            bodies.append(g.enclosed([], [v]))
    [v] = g.several("If", [condition], [kept], then_branch=bodies[0], else_branch=bodies[1])
    if g.rarely(3):
        v = g.chain(v, 1)
    if len(kept) >= 3 and g.chance() and g.float is np.float32:
        w = g.floats(g.numbers(2, kept[1], *[1] * (len(kept) - 2)))
        out = g.add("Conv", [v, w], (kept[0], 2, *kept[2:]))
    else:
        out = g.transposed(v, g.order(range(len(kept))))
    if g.rarely(3):
        other = g.decide(condition, [x], 1, wide)
        g.outputs += other
    return g.model(out)


def few_trips(seed: str) -> ModelProto:
    """A Loop of no, one or few trips, with and without collected outputs."""
    return _looped(Flow(seed), [0, 1, 1, 1, 2])


def bags(seed: str) -> ModelProto:
    """A Loop whose trips take a slice or row at constant positions, sometimes almost, and compute with it."""
    g = Flow(seed)
    g.symbols = ""
    n, length, rest = g.draw.randint(2, 4), g.draw.randint(1, 3), g.sizes(g.draw.randint(0, 2))
    x = g.chain(g.input(n * length + g.draw.randint(0, 2), *rest), 1)
    starts = np.arange(n) * length if g.chance() else np.array([g.draw.randint(0, n) for _ in range(n)])
    ends = starts + length
    if g.rarely(8):
        ends[-1] += 1
    begins = "" if g.chance() else g.constant(np.array(True))
    with g.body("loop"):
        inputs = [g.typed("loop_i", (), np.int64), g.typed("loop_go", (), np.bool_)]
        g.shapes["loop_i"], g.types["loop_i"] = (), np.int64
        go = "loop_go" if g.chance() else g.constant(np.array(True))
        g.shapes[go], g.types[go] = (), np.bool_
        bounds = [
            g.add(
                "Unsqueeze", [g.add("Gather", [g.ints(*b), "loop_i"], (), np.int64, axis=0), g.ints(0)], (1,), np.int64
            )
            for b in (starts.tolist(), ends.tolist())
        ]
        if g.rarely(3):
            v = g.add("Gather", [x, "loop_i"], rest, g.float, axis=0)
        else:
            v = g.add("Slice", [x, *bounds, g.ints(0)], (length, *rest), g.float)
        v = g.chain(v, 2)
        if g.shapes[v] and g.chance():
            axis = g.draw.randrange(len(g.shapes[v]))
            kept = [d for k, d in enumerate(g.shapes[v]) if k != axis]
            v = g.add("ReduceSum", [v, g.ints(g.one(axis, axis - len(g.shapes[v])))], tuple(kept), g.float, keepdims=0)
        if g.rarely(3):
            axis = g.draw.randint(0, len(g.shapes[v]))
            wide = (*g.shapes[v][:axis], 1, *g.shapes[v][axis:])
            v = g.add("Unsqueeze", [v, g.ints(axis)], wide, g.float)
        made = [g.chain(v, 2)]
        if g.rarely(3):
            made.append(g.elementwise(v))
        shapes = [(n, *g.shapes[m]) for m in made]
        body = g.enclosed(inputs, g.hand_out([go, *made]))
    outs = g.several("Loop", [g.number(n), begins], shapes, body=body)
    return g.model(*(g.chain(o, 1) for o in outs))


def recurrences(seed: str) -> ModelProto:
    """A Loop of some trips, or of as many as its condition says."""
    return _looped(Flow(seed), [1, 2, 3, 3])


def _looped(g: Flow, counts: list[int]) -> ModelProto:
    """Returns the value itself, or from a branch whose output is no output of the model."""
    if not g.rarely(3):
        chosen = _loop(g, counts)
        return g.model(*(c if g.chance() or g.types[c] is not g.float else g.chain(c, 1) for c in chosen))
    g.symbols = ""
    with g.body("taken"):
        chosen = _loop(g, counts)
        kinds, shapes = [g.types[c] for c in chosen], [g.shapes[c] for c in chosen]
        taken = g.enclosed([], g.hand_out(chosen))
    with g.body("left"):
        held = [g.constant(np.zeros(s, k)) for s, k in zip(shapes, kinds, strict=True)]
        left = g.enclosed([], g.hand_out(held))
    made = g.several("If", [g.condition(False)], shapes, then_branch=taken, else_branch=left)
    for name, kind in zip(made, kinds, strict=True):
        g.types[name] = kind
    return g.model(*made)


def _loop(g: Flow, counts: list[int]) -> list[str]:
    stacks = g.one(0, 1, 1, 2)
    n = g.draw.choice([c for c in counts if c or not stacks])  # what no trip collects has no size but 0
    g.symbols = "" if stacks else g.symbols
    shape = g.sizes(g.draw.randint(0, 2))
    given = [g.chain(g.input(*shape), 1) for _ in range(g.one(1, 1, 2, 3))]
    outer = g.input(*shape)
    kind = g.one(np.int64, np.int64, np.int32)
    counter, stops = g.rarely(3), g.rarely(3)
    begins = "" if g.chance() else g.constant(np.array(True))
    if begins and not stacks and g.chance():
        begins = g.condition(g.chance(), ())
    trips = g.number(n) if not g.rarely(8) else g.constant(np.array([n], np.int64))
    if g.rarely(4) and shape and counts[0]:
        trips = g.add("Gather", [g.add("Shape", [outer], (len(shape),), np.int64), g.number(0)], (), np.int64)
    with g.body("loop"):
        inputs = [g.typed("loop_i", (), np.int64), g.typed("loop_go", (), np.bool_)]
        insides = []
        for k in range(len(given)):
            name = given[k] if g.rarely(6) and given.count(given[k]) == 1 else f"loop_c{k}"  # as outside: another value
            inputs.append(_as_drawn(g, g.typed(name, shape)))
            g.shapes[name], g.types[name] = shape, g.float
            insides.append(name)
        handed: list[str] = []
        for inside in insides:
            way = g.draw.randrange(7)
            if way == 0:
                v = inside  # never changes
            elif way == 1:
                v = g.draw.choice(insides)  # they change places
            elif way == 2:
                v = g.add("Add", [inside, outer], shape)
            elif way == 3 and handed:
                v = handed[-1]  # twice the same
            else:
                v = g.chain(g.draw.choice([inside, outer]), 2)
            handed.append(v)
        if counter:
            inputs.append(g.typed("loop_n", (), kind))
            g.shapes["loop_n"], g.types["loop_n"] = (), kind
            step = g.constant(np.array(g.one(1, 1, 1, 2), kind))
            handed.append(g.add("Add", ["loop_n", step], (), kind))
        go = "loop_go"
        g.shapes[go], g.types[go] = (), np.bool_
        if stops:
            number = handed[-1] if counter else "loop_i"
            g.shapes["loop_i"], g.types["loop_i"] = (), np.int64
            limit = g.constant(np.array(g.draw.choice([0, 1, 2, 3, 4]), kind if counter else np.int64))
            go = g.add("Less", [number, limit], (), np.bool_)
        elif g.rarely(4):
            go = g.constant(np.array(g.chance()))
            g.shapes[go], g.types[go] = (), np.bool_
        collected = [g.draw.choice([*handed, *insides, outer]) for _ in range(stacks)]
        collected = [c if g.chance() else g.chain(c, 1) if g.types[c] is g.float else c for c in collected]
        results = g.hand_out([go, *handed, *collected])
        shapes = [g.shapes[r] for r in results[1:]]
        kinds = [g.types[r] for r in results[1:]]
        body = g.enclosed(inputs, results)
    first = [*given, *([g.constant(np.array(g.one(0, 0, 0, 1), kind))] if counter else [])]
    shapes = [s if i < len(first) else (n, *s) for i, s in enumerate(shapes)]
    made = g.several("Loop", [trips, begins, *first], shapes, body=body)
    for name, of in zip(made, kinds, strict=True):
        g.types[name] = of
    last = made[len(first) :]
    read = []
    for name in last:
        if g.chance():  # the last of what was collected
            index = g.constant(np.full(picked := g.one((), (1,)), -1))
            read.append(g.add("Gather", [name, index], (*picked, *g.shapes[name][1:]), g.types[name], axis=0))
            if g.rarely(3):
                read.append(name)
        else:
            read.append(name)
    read += [name for name in made[: len(first)] if not g.rarely(4)]
    return g.order([r for r in read if not g.rarely(5)] or made[:1])


def _as_drawn(g: Flow, info: ValueInfoProto) -> ValueInfoProto:
    """Maybe without dims."""
    if g.rarely(4):
        info.type.tensor_type.ClearField("shape")
    return info


def scans(seed: str) -> ModelProto:
    """A Scan along any axis of a transposed operand, with changing and unchanged states."""
    g = Flow(seed)
    g.symbols = ""  # onnxruntime dies of a Scan of nothing
    rank = g.draw.randint(1, 3)
    shape = tuple(g.draw.choice([1, 2, 3]) for _ in range(rank))
    count = g.one(1, 1, 2)
    scanned, axes, directions = [], [], []
    axis = g.draw.randrange(rank)
    part = tuple(d for k, d in enumerate(shape) if k != axis)
    for _ in range(count):
        x = g.chain(g.input(*shape), 1)
        place = axis
        if rank > 1 and not g.rarely(4):
            goes = g.draw.randrange(rank)
            perm = [k for k in range(rank) if k != axis]
            perm.insert(goes, axis)
            if g.rarely(6):
                perm = g.order(range(rank))
                goes = perm.index(axis)
            x, place = g.transposed(x, perm), goes
        scanned.append(x)
        axes.append(place)
        directions.append(g.draw.randint(0, 1))
    each = [tuple(d for k, d in enumerate(g.shapes[x]) if k != a) for x, a in zip(scanned, axes, strict=True)]
    n = g.draw.randint(0, 2)
    given = []
    for _ in range(n):
        given.append(g.input(*part) if g.chance() else g.floats(np.zeros(part)))
        g.shapes[given[-1]], g.types[given[-1]] = part, g.float
    weight = g.floats(g.numbers())
    with g.body("scan"):
        inputs = []
        for name, dims in [*((f"scan_h{k}", part) for k in range(n)), *((f"scan_x{k}", d) for k, d in enumerate(each))]:
            inputs.append(_as_drawn(g, g.typed(name, dims)))
            g.shapes[name], g.types[name] = dims, g.float
        handed = []
        for k in range(n):
            way, inside = g.draw.randrange(4), f"scan_h{k}"
            if way == 0:
                handed.append(inside)
            elif way == 1 and handed:
                handed.append(handed[-1])
            elif way == 2 and each[0] == part:
                handed.append(g.add("Add", [inside, "scan_x0"], part))
            else:
                handed.append(g.add("Add", [inside, weight], part))
        collected = []
        for _ in range(g.draw.randint(0 if n else 1, 2)):
            v = g.draw.choice([*handed, *(f"scan_x{k}" for k in range(count))])
            collected.append(v if g.rarely(3) else g.chain(v, 2))
        results = g.hand_out([*handed, *collected])
        body = g.enclosed(inputs, results)
        made_of = [g.shapes[r] for r in results]
    out_axes = [g.draw.randrange(len(s) + 1) for s in made_of[n:]]
    shapes = list(made_of[:n])
    for s, a in zip(made_of[n:], out_axes, strict=True):
        shapes.append((*s[:a], shape[axis], *s[a:]))
    said = {"scan_input_axes": [a - rank if g.rarely(4) else a for a in axes]} if any(axes) or g.chance() else {}
    if out_axes and (any(out_axes) or g.chance()):
        said["scan_output_axes"] = out_axes
    if g.rarely(3):
        said["scan_input_directions"] = directions
    if out_axes and g.rarely(3):
        said["scan_output_directions"] = [g.draw.randint(0, 1) for _ in out_axes]
    made = g.several("Scan", [*given, *scanned], shapes, body=body, num_scan_inputs=count, **said)
    read = []
    for i, name in enumerate(made):
        dims = g.shapes[name]
        if i >= n and len(dims) > 1 and g.chance():
            perm = [k for k in range(len(dims)) if k != out_axes[i - n]]
            perm.insert(g.draw.randrange(len(dims)), out_axes[i - n])
            read.append(g.transposed(name, perm if not g.rarely(6) else inverse(perm)))
        elif i >= n and dims and g.rarely(3):
            along = out_axes[i - n] if not g.rarely(4) else 0
            left = tuple(d for k, d in enumerate(dims) if k != along)
            read.append(g.add("Gather", [name, g.number(-1)], left, axis=along))
        elif not g.rarely(4):
            read.append(name)
    return g.model(*(read or made[:1]), opset=g.draw.choice([17, 17, 9, 10, 11, 13, 16, 19, 21, 24]))


def loops(seed: str) -> ModelProto:
    """As the grammar of random graphs has them."""
    g = Flow(seed)
    g.symbols = ""
    g.input(*(g.draw.choice([1, 2, 3]) for _ in range(g.one(1, 2, 3))))
    g.condition(False)
    for _ in range(g.draw.randint(1, 2)):
        g.draw.choice([g.loop, g.while_loop, g.while_loop, g.scan])()
    return g.model(*[n for n in g.shapes if n.startswith("v")][-2:] or ["x0"])


REGIONS = {
    "inline-branches": (branches,),
    "known-conditions": (ranks,),
    "batch-loops": (bags,),
    "inline-loops": (few_trips,),
    "simplify-loops": (recurrences, recurrences, scans, loops),
    "scan-axes": (scans, scans, loops),
}
