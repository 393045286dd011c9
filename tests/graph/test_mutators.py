"""Whatever order the mutating methods are called in, index, links and order stay right, and so does what is computed.

Every step here keeps the meaning of the model, as rules do: it puts Identities in and takes them out, copies constants,
replaces nodes by equal ones, changes the order of independent nodes, inlines the branch that is taken.
"""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnx.parser
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from onnx import NodeProto
from onnx.reference import ReferenceEvaluator

from onnxopt.graph import Graph, Value, check_model, read_model, write_model
from onnxopt.graph.node import Node
from onnxopt.proto.messages import make_node

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x, float[2, 3] u) => (float[2, 3] y, float[2, 3] z, float[2, 3] x2)
<float[3] w = {1, 2, 3}, float[3] spare = {4, 5, 6}, bool yes = {1}>
{
  a = Add (x, w)
  b = Mul (a, u)
  k = Constant <value_floats = [3.0, 4.0, 5.0]> ()
  c = If (yes) <
    then_branch = t () => (float[2, 3] t1) <float[3] s = {2, 2, 2}> { t0 = Mul (b, s) t1 = Add (t0, w) },
    else_branch = e () => (float[2, 3] e1) { e1 = Neg (b) }
  >
  p, q = Split <axis = 0> (c)
  d = Concat <axis = 0> (q, p)
  y = Sub (d, k)
  z = Identity (b)
  x2 = Identity (x)
}
"""
FEEDS = {n: np.arange(6, dtype=np.float32).reshape(2, 3) + i for i, n in enumerate(("x", "u"))}


class Mutators(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.expected = ReferenceEvaluator(onnx.parser.parse_model(TEXT)).run(None, FEEDS)
        self.model = read_model(onnx.parser.parse_model(TEXT))
        self.touched: list[Node] = []
        self.model.watchers.append(self.touched.append)

    def pick_node(self, data: st.DataObject, wanted: object = None) -> Node | None:
        nodes = [n for n in self.model.nodes() if not callable(wanted) or wanted(n)]
        return data.draw(st.sampled_from(nodes)) if nodes else None

    def readings(self) -> list[tuple[Node, int, Value]]:
        return [(n, i, v) for n in self.model.nodes() for i, v in enumerate(n.inputs) if v is not None]

    def identity(self, graph: Graph, x: Value, before: Node) -> Value:
        node = Node(make_node("Identity", "", "", {}), [x], [Value(self.model.names.fresh("i"), graph)])
        node.stale = True
        return graph.insert(node, before).output

    @rule(data=st.data())
    def put_an_identity_in(self, data: st.DataObject) -> None:
        node, i, v = data.draw(st.sampled_from(self.readings()))
        assert node.graph is not None
        node.set_input(i, self.identity(node.graph, v, node))

    @rule(data=st.data())
    def forward_an_identity(self, data: st.DataObject) -> None:
        """Also of an output; it stays for dead code, or goes."""
        node = self.pick_node(data, lambda n: n.op == "Identity")
        if node is not None and node.inputs[0] is not None and node.graph is not None:
            node.output.replace_all_uses_with(node.inputs[0])
            if data.draw(st.booleans()):
                node.graph.remove(node)

    @rule(data=st.data())
    def copy_a_constant(self, data: st.DataObject) -> None:
        found = [r for r in self.readings() if r[2].constant]
        if found:
            node, i, v = data.draw(st.sampled_from(found))
            assert node.graph is not None
            node.set_input(i, node.graph.constant(v.array, v.name, node))

    @rule(data=st.data())
    def replace_a_node_by_its_copy(self, data: st.DataObject) -> None:
        node = self.pick_node(data, lambda n: not n.bodies)
        assert node is not None and node.graph is not None
        proto = NodeProto()
        proto.CopyFrom(node.proto)
        copy = node.graph.insert(Node(proto, list(node.inputs), []), node)
        copy.stale = True
        for i, v in enumerate(list(node.outputs)):
            if v is not None:
                node.graph.take_over(v, copy, i)
        node.graph.remove(node)

    @rule(data=st.data())
    def swap_two_that_are_independent(self, data: st.DataObject) -> None:
        def movable(n: Node) -> bool:
            read = (
                {v for v in (*n.next.inputs, *_read_inside(n.next)) if v is not None} if n.next is not None else set()
            )
            return n.next is not None and not read.intersection(n.outputs)

        node = self.pick_node(data, movable)
        if node is not None and node.graph is not None and node.next is not None:
            node.graph.move_after(node, node.next)

    @rule(data=st.data())
    def remove_what_is_dead(self, data: st.DataObject) -> None:
        node = self.pick_node(data, lambda n: not any(v is not None and v.is_used for v in n.outputs))
        if node is not None and node.graph is not None:
            node.graph.remove(node)
        for scope in self.model.scopes():
            for v in [v for v in scope.initializers.values() if not v.is_used]:
                scope.remove_initializer(v)

    @precondition(lambda self: any(n.op == "If" for n in self.model.graph))
    @rule()
    def inline_the_branch_taken(self) -> None:
        node = next(n for n in self.model.graph if n.op == "If")
        result = self.model.graph.inline(node.bodies["then_branch"])[0]
        node.output.replace_all_uses_with(result)
        self.model.graph.remove(node)

    @rule()
    def write_and_read(self) -> None:
        copy = onnx.ModelProto()
        copy.CopyFrom(write_model(self.model))
        self.model = read_model(copy)
        self.model.watchers.append(self.touched.append)

    @invariant()
    def index_and_links_agree(self) -> None:
        check_model(self.model)

    def teardown(self) -> None:
        proto = write_model(self.model)
        onnx.checker.check_model(proto, full_check=True)
        for a, b in zip(self.expected, ReferenceEvaluator(proto).run(None, FEEDS), strict=True):
            np.testing.assert_array_equal(a, b)


def _read_inside(node: Node) -> list[Value | None]:
    return [v for body in node.bodies.values() for n in body.walk() for v in n.inputs] + [
        v for body in node.bodies.values() for v in body.outputs
    ]


TestMutators = Mutators.TestCase
TestMutators.settings = settings(
    max_examples=int(os.environ.get("ONNXOPT_FUZZ", "60")), stateful_step_count=25, deadline=None, derandomize=True
)
