"""Graphs as text, and in both orders."""

from __future__ import annotations

import onnx.parser

from onnxopt.graph import read_model


def test_a_model_and_a_graph_are_text_for_people() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "l" : 1]> g (float[N] x, bool c) => (float[N] y) {
        a = l.f (x) y = If <then_branch = t () => (float[N] r) { r = Neg (a) },
                            else_branch = e () => (float[N] s) { s = Abs (a) }> (c) }
        <domain: "l", opset_import: ["" : 17]> f (x) => (y) { y = Relu (x) }"""
    m = read_model(onnx.parser.parse_model(text))
    then = next(node for node in m.graph if node.bodies).bodies["then_branch"]
    assert str(then) == "then_branch() -> (r):\n  r = Neg(a)"
    main, function = str(m).split("\n\n")
    assert main == str(m.graph)
    assert main.splitlines()[:2] == ["main(x, c: bool) -> (y):", "  a = l::f(x)"]
    assert main.splitlines()[3:5] == ["    then_branch() -> (r):", "      r = Neg(a)"]
    assert function == "function l::f(x) -> (y):\n  y = Relu(x)"
    assert (repr(m), repr(m.graph)) == ("Model(g, 5 nodes)", "Graph(main, 2 nodes)")
    assert repr(then) == "Graph(main / If / then_branch, 1 node)"


def test_nodes_are_walked_backwards_while_they_change() -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y)'
    m = read_model(onnx.parser.parse_model(header + "{ a = Neg (x) b = Abs (a) y = Exp (x) }"))
    assert [node.op for node in reversed(m.graph)] == ["Exp", "Abs", "Neg"]
    for node in reversed(m.graph):
        if not node.is_used:
            m.graph.remove(node)
        else:
            m.graph.make("Relu", [m.graph.inputs[0]], before=node)
    assert [node.op for node in m.graph] == ["Exp"], "what is put before the current node is met next"
