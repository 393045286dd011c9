"""Graph passes: insertions, queries, changes, results; rules held to one kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxopt
from onnxopt.errors import EmissionError, InvariantError, PassError, UsageError
from onnxopt.graph import Graph, Model, check_model, write_model
from onnxopt.pipeline import DebugPass, PassInfo, Sequential, graph_pass, model_pass
from onnxopt.pipeline.interpreter import GraphInterpreter, StmtPass
from tests.pipeline.conftest import MakeModel
from tests.samples import operators


def checked(m: Model) -> onnx.ModelProto:
    check_model(m)
    proto = write_model(m)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def test_what_a_pass_makes_is_in_place_and_known(model: MakeModel) -> None:
    m = model("a = Abs (x) y = Relu (a)")
    node = next(n for n in m.graph if n.op == "Relu")
    zero = m.graph.constant(np.float32(0))
    clip = m.graph.make("Clip", [node.inputs[0], zero], before=node)
    first, second = m.graph.make("Split", [clip], outputs=2, before=node, axis=1)
    whole = m.graph.make("Concat", [first, second], before=node, axis=1)
    assert [(onnxopt.shape(v), onnxopt.dtype(v)) for v in (clip, first, whole)] == [(("N", s), 1) for s in (4, 2, 4)]
    node.output.replace_all_uses_with(whole)
    m.graph.remove(node)
    assert operators(m) == ["Abs", "Clip", "Split", "Concat"]
    assert [o.name for o in checked(m).graph.output] == ["y"]


@pytest.mark.parametrize("body", ["a = Abs (x) y = Relu (x)", "a = Abs (x) y = Relu (a)"])
def test_an_output_of_the_model_may_become_anything(model: MakeModel, body: str) -> None:
    for source in ("x", "a", "c"):
        m = model(body)
        relu = next(n for n in m.graph if n.op == "Relu")
        known = {
            "x": m.graph.inputs[0],
            "a": next(iter(m.graph)).output,
            "c": m.graph.constant(np.ones((1, 4), "float32")),
        }
        relu.output.replace_all_uses_with(known[source])
        m.graph.remove(relu)
        assert [o.name for o in checked(m).graph.output] == ["y"]


def test_a_call_that_there_is_not(model: MakeModel) -> None:
    @graph_pass()
    def wrong(graph: Graph, ctx: Any) -> None:
        """Makes what there is not."""
        for node in graph:
            graph.make("Elu", node.inputs, before=node, slope=1.0)

    with pytest.raises(EmissionError, match=r"pass wrong: g: main: Elu for Identity -> a: it has no attribute `slope`"):
        wrong()(model())


def test_functions_are_added(model: MakeModel) -> None:
    m = model("y = Relu (x)")
    m.add_function(parser.parse_function('<domain: "own", opset_import: ["" : 17]> F (a) => (b) { b = Abs (a) }'))
    relu = next(iter(m.graph))
    relu.output.replace_all_uses_with(m.graph.make("own::F", relu.inputs, before=relu))
    m.graph.remove(relu)
    assert operators(m) == ["own::F"]
    assert {o.domain for o in checked(m).opset_import} == {"", "own"}
    with pytest.raises(UsageError, match="there is a function own::F already"):
        m.add_function(parser.parse_function('<domain: "own", opset_import: ["" : 17]> F (a) => (b) { b = Abs (a) }'))


def test_the_operator_of_a_node_can_be_set(model: MakeModel) -> None:
    m = model("a = Add (x, x) b = LeakyRelu <alpha = 0.2> (a) y = Relu (b)")
    add, leaky, _ = m.graph
    version = m.version
    add.op = "Mul"
    leaky.op = "Elu"
    assert m.version > version
    assert [n.op_type for n in checked(m).graph.node] == ["Mul", "Elu", "Relu"]
    assert list(m.graph.by_op["Mul"]) == [add]
    for node, wrong in ((add, "Relu"), (leaky, "Selu2"), (leaky, "Relu"), (add, "Constant")):
        with pytest.raises(EmissionError):
            node.op = wrong
    assert [n.op_type for n in checked(m).graph.node] == ["Mul", "Elu", "Relu"]


def test_a_node_that_is_emitted_again_keeps_its_name(model: MakeModel) -> None:
    class Wrap(GraphInterpreter):
        info = PassInfo("wrap")

        def call_operator(self, node: Any, args: Any) -> Any:
            again = super().call_operator(node, args)
            return self.op.Abs(self.op.Abs(again)) if node.op == "Relu" else again

    m = model("[first] a = Relu (x) [second] y = Relu (a)")
    Wrap()(m)
    names = [(n.op, n.name) for n in m.graph]
    assert [n for n in names if n[0] == "Relu"] == [("Relu", "first"), ("Relu", "second")]
    assert len({name for _, name in names}) == 6
    checked(m)


# -- analyses ------------------------------------------------------------------------------------------------


def test_analyses_are_handed_on_until_something_changes(model: MakeModel) -> None:
    asked: list[str] = []

    def depth(m: Model) -> int:
        asked.append("depth")
        return m.node_count()

    def names(graph: Graph) -> list[str]:
        asked.append("names")
        return [n.name for n in graph]

    def looks(m: Model, ctx: Any) -> None:
        ctx.analysis(depth, m)
        ctx.analysis(names, m.graph)

    @model_pass()
    def look(m: Model, ctx: Any) -> None:
        """Asks."""
        looks(m, ctx)

    def changing(**info: Any) -> Any:
        @model_pass(name="change", **info)
        def change(m: Model, ctx: Any) -> None:
            """Changes an attribute."""
            next(iter(m.graph)).set_attr("doc", None)

        return change()

    def run(*passes: Any) -> list[str]:
        asked.clear()
        Sequential(passes)(model())
        return asked.copy()

    assert run(look(), look()) == ["depth", "names"]
    assert run(look(), changing(), look()) == ["depth", "names", "depth", "names"]
    assert run(look(), changing(preserves=(depth,)), look()) == ["depth", "names", "names"]
    assert run(look(), changing(preserves=(depth, names)), changing(preserves=(depth,)), look()) == [
        *("depth", "names"),
        "names",
    ]


# -- kinds that are held to what they are --------------------------------------------------------------------


def doc_string(m: Model) -> None:
    next(iter(m.graph)).proto.doc_string = "seen"


def opset(m: Model) -> None:
    m.proto.opset_import.add(domain="more", version=1)


def attribute(m: Model) -> None:
    next(iter(m.graph)).proto.attribute.add(name="alpha")


def inputs(m: Model) -> None:
    next(iter(m.graph)).inputs.append(None)


def body(m: Model) -> None:
    owner = next(n for n in m.graph if n.bodies)
    next(iter(owner.bodies["then_branch"])).proto.doc_string = "seen"


NESTED = """c = Constant <value_int = 1> () d = Cast <to = 9> (c)
y = If (d) <
    then_branch = t () => (float[N, 4] p) { p = Relu (x) }, else_branch = e () => (float[N, 4] q) { q = Abs (x) }
>"""


@pytest.mark.parametrize("edit", [doc_string, opset, attribute, inputs, body])
def test_a_debug_pass_that_edits_a_proto_is_found_out(model: MakeModel, edit: Callable[[Model], None]) -> None:
    class Edits(DebugPass):
        info = PassInfo("edits")

        def inspect(self, m: Model, ctx: Any) -> None:
            edit(m)

    with pytest.raises(PassError, match="the debug pass edits changed the model"):
        Edits()(model(NESTED))


def test_a_debug_pass_may_write_the_model(model: MakeModel) -> None:
    class Writes(DebugPass):
        info = PassInfo("writes")

        def inspect(self, m: Model, ctx: Any) -> None:
            write_model(m)

    m = model(NESTED)
    relu = next(iter(next(n for n in m.graph if n.bodies).bodies["then_branch"]))
    relu.output.replace_all_uses_with(relu.graph.make("Elu", relu.inputs, before=relu))  # type: ignore[union-attr]
    m.graph.constant(np.zeros(5000, np.float32))
    Writes()(m)
    checked(m)


def stmt(change: Callable[[Any], None]) -> StmtPass:
    class Restate(StmtPass):
        info = PassInfo("restate")

        def run_node(self, node: Any, ctx: Any) -> None:
            change(node)

    return Restate()


def test_a_stmt_pass_changes_what_nodes_say(model: MakeModel) -> None:
    def change(node: Any) -> None:
        if node.op == "Relu":
            node.op = "Elu"
            node.set_attr("alpha", 0.5)

    m = model(NESTED)
    stmt(change)(m)
    assert [n.op for n in m.nodes()].count("Elu") == 1
    checked(m)


def rewire(node: Any) -> None:
    if node.op == "Neg":
        node.set_input(0, node.graph.inputs[0])


def reorder(node: Any) -> None:
    if node.op == "Identity":
        node.graph.move_after(node, node.next)


def add(node: Any) -> None:
    if node.op == "Relu":
        node.graph.make("Abs", node.inputs)


@pytest.mark.parametrize("change", [rewire, reorder, add])
def test_a_stmt_pass_that_changes_what_reads_what_is_found_out(model: MakeModel, change: Callable[[Any], None]) -> None:
    with pytest.raises(PassError, match="main: the StmtPass restate changed what reads what"):
        stmt(change)(model())


def test_who_overrides_run_is_held_to_the_kind_too(model: Any) -> None:
    class Applies(DebugPass):
        """As Paddle Lite's passes are written: all in one method."""

        info = PassInfo("applies")

        def run(self, model: Any, ctx: Any) -> None:
            model.graph.first.proto.doc_string = "seen"

    class Rewires(StmtPass):
        """The same of a StmtPass."""

        info = PassInfo("rewires")

        def run(self, model: Any, ctx: Any) -> None:
            model.graph.last.set_input(0, model.graph.inputs[0])

    with pytest.raises(PassError, match="the debug pass applies changed the model"):
        Applies()(model())
    with pytest.raises(PassError, match="the StmtPass rewires changed what reads what"):
        Rewires()(model())


def test_functions_are_added_and_removed(model: Any) -> None:
    function = parser.parse_function('<domain: "l", opset_import: ["" : 17]> halve (x) => (y) { y = Relu (x) }')

    @model_pass
    def add(model: Any, ctx: Any) -> None:
        """Adds a function, and calls it."""
        graph = model.add_function(function)
        assert [node.op for node in graph] == ["Relu"]
        relu = next(iter(model.graph.by_op["Relu"]))
        relu.output.replace_all_uses_with(model.graph.make("l::halve", relu.inputs, before=relu))
        model.graph.remove(relu)

    @model_pass
    def remove(model: Any, ctx: Any) -> None:
        """Removes it."""
        model.remove_function("l::halve")

    m = model()
    add(m)
    onnx.checker.check_model(write_model(m), full_check=True)
    assert [node.op for node in m.graph] == ["Identity", "l::halve", "Neg"]
    with pytest.raises(InvariantError, match="the function l::halve was to be removed, and main calls it: l::halve ->"):
        remove(m)
    call = next(iter(m.graph.by_op["l::halve"]))
    call.output.replace_all_uses_with(m.graph.make("Abs", call.inputs, before=call))
    m.graph.remove(call)
    remove(m)
    assert not m.functions and not write_model(m).functions
    onnx.checker.check_model(write_model(m), full_check=True)
    with pytest.raises(UsageError, match="g: there is no function l::halve") as e:
        remove(m)
    assert e.value.hint == "it has no functions"


def test_a_function_that_calls_itself_through_another_is_kept(model: Any) -> None:
    rest = """<domain: "l", opset_import: ["" : 17, "l" : 1]> f (x) => (y) { y = l.h (x) }
        <domain: "l", opset_import: ["" : 17]> h (x) => (y) { y = Relu (x) }"""
    m = model("a = Identity (x) y = l.f (a)", rest)
    with pytest.raises(InvariantError, match="and function l::f calls it"):
        m.remove_function("l::h")
    with pytest.raises(UsageError) as e:
        m.remove_function("l::ff")
    assert e.value.hint.startswith("did you mean l::f")
    assert len(m.functions) == len(m.proto.functions) == 2
