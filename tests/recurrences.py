"""Loops and Scans as frameworks write them, and bodies that never run, among random graphs."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.lookups import Lookups


class Recurrences(Lookups):
    """The same grammar with while loops, and Scans along other axes than the first."""

    def while_loop(self) -> None:
        """A Loop with a counter, an unchanged state, an unread state, and a collected state."""
        x = self.pick(lambda s: len(s) >= 1)
        if x is None:
            return
        i, shape, element = len(self.nodes), self.shapes[x], self.element(self.float)
        kind = self.draw.choice([np.int32, np.int64])
        trips = self.size(x, 0)
        limit = trips if kind is np.int64 else self.unnamed("Cast", [trips], to=TensorProto.INT32)
        zero, one = (self.constant(np.array(n, kind)) for n in (0, self.draw.choice([1, 1, 2])))
        begins = self.unnamed("Less", [zero, limit]) if self.chance() else self.constant(np.array(True))
        factor = self.floats(0.5)
        count = self.element(kind)
        info = helper.make_tensor_value_info
        states = [("n", count, []), ("c", element, shape), ("w", element, []), ("u", element, shape)]
        body = [
            helper.make_node("Add", [f"n{i}", one], [f"n{i}_"]),
            helper.make_node("Mul", [f"c{i}", f"w{i}"], [f"d{i}"]),
            helper.make_node("Add", [f"d{i}", x], [f"c{i}_"]),
            helper.make_node("Identity", [f"w{i}"], [f"w{i}_"]),
            helper.make_node("Neg", [f"u{i}"], [f"u{i}_"]),
            helper.make_node("Less", [f"n{i}_", limit], [f"go{i}_"]),
            helper.make_node("Identity", [f"c{i}_"], [f"seen{i}"]),
        ]
        given = [info(f"it{i}", TensorProto.INT64, []), info(f"go{i}", TensorProto.BOOL, [])]
        given += [info(f"{name}{i}", kind, dims) for name, kind, dims in states]
        made = [info(f"go{i}_", TensorProto.BOOL, [])]
        made += [info(f"{name}{i}_", kind, dims) for name, kind, dims in states]
        graph = helper.make_graph(body, "body", given, [*made, info(f"seen{i}", element, shape)])
        most = "" if self.chance() else self.constant(np.array(2**31 - 1, np.int64))
        at = len(self.nodes)
        names = [f"s{at}_n", f"v{at}", f"s{at}_w", f"s{at}_u", f"s{at}_seen"]
        self.nodes.append(helper.make_node("Loop", [most, begins, zero, x, factor, x], names, body=graph))
        self.shapes[f"v{at}"], self.types[f"v{at}"] = shape, self.float
        if self.chance():
            self.add("Gather", [names[-1], self.constant(np.array(-1, np.int64))], shape, axis=0)

    def scan(self) -> None:
        """A Scan along the second axis, moved to the front and back."""
        x = self.pick(lambda s: len(s) >= 2 and len(s) <= 4)
        if x is None:
            return
        i, shape, element = len(self.nodes), self.shapes[x], self.element(self.float)
        perm = [1, 0, *range(2, len(shape))]
        moved = tuple(shape[k] for k in perm)
        turned = self.add("Transpose", [x], moved, perm=perm)
        step = [helper.make_tensor_value_info(f"{name}{i}", element, moved[1:]) for name in ("h", "x", "h_", "y")]
        body = [
            helper.make_node("Add", [f"h{i}", f"x{i}"], [f"sum{i}"]),
            helper.make_node("Tanh", [f"sum{i}"], [f"h_{i}"]),
            helper.make_node(self.draw.choice(["Identity", "Neg"]), [f"h_{i}"], [f"y{i}"]),
        ]
        graph = helper.make_graph(body, "body", step[:2], step[2:])
        zeros = self.floats(np.zeros(moved[1:]))
        at = len(self.nodes)
        names = [f"v{at}", f"s{at}_y"]
        directions = {"scan_input_directions": [1]} if self.chance() else {}
        self.nodes.append(helper.make_node("Scan", [zeros, turned], names, body=graph, num_scan_inputs=1, **directions))
        self.shapes[f"v{at}"], self.types[f"v{at}"] = moved[1:], self.float
        if self.chance():
            self.add("Transpose", [names[1]], shape, perm=perm)

    def never(self) -> None:
        """A branch that is not taken, with an impossible product whose size is unknown when loaded."""
        x = self.pick(lambda s: len(s) >= 1)
        if x is None:
            return
        i, shape, element = len(self.nodes), self.shapes[x], self.element(self.float)
        ones = self.ints(*[1] * len(shape))
        sizes = self.unnamed("Mul", [self.unnamed("Shape", [x]), ones])
        same = self.add("Reshape", [x, sizes], shape)
        weight = self.floats(np.ones((997, 2)))
        info = helper.make_tensor_value_info
        product = helper.make_node("MatMul", [same, weight], [f"never{i}"])
        other = helper.make_node("Relu", [same], [f"always{i}"])
        inner = {
            "then_branch": helper.make_graph([product], "never", [], [info(f"never{i}", element, None)]),
            "else_branch": helper.make_graph([other], "always", [], [info(f"always{i}", element, None)]),
        }
        taken = [
            helper.make_node("Not", ["condition"], [f"not{i}"]),
            helper.make_node("If", [f"not{i}"], [f"taken{i}"], **inner),
        ]
        left = [helper.make_node("Neg", [x], [f"left{i}"])]
        then = helper.make_graph(taken, "taken", [], [info(f"taken{i}", element, None)])
        otherwise = helper.make_graph(left, "left", [], [info(f"left{i}", element, None)])
        self.add("If", ["condition"], shape, then_branch=then, else_branch=otherwise)
