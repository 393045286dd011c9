"""Rights of rules, their arguments, and properties inherited by a replacement."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt import all_passes
from onnxopt.graph import Value, write_model
from onnxopt.rewriting import Match, const, either, op, rewrite, var
from tests.rewriting.engine import model, neg_of_relu, run
from tests.samples import operators


def test_a_replacement_takes_over_name_and_readers() -> None:
    m = model("a = Relu (x) b = Neg (a) y = Abs (b)")
    before = m.graph.last
    assert before is not None
    value = before.inputs[0]
    run(m, neg_of_relu)
    assert operators(m) == ["Neg", "Clip", "Abs"]
    assert before.inputs[0] is value
    assert value is not None
    assert value.name == "b"
    assert value.producer is not None
    assert value.producer.op == "Clip"


def test_new_nodes_have_names_of_their_own() -> None:
    @rewrite(op.Add(op.Exp(var("x"), name="exp", shared=True), 1, name="add"))
    def spread(m: Match, x: Value) -> Value:
        """exp(x) + 1 = -(-exp(x) - 1)."""
        less = m.op.Sub(m.op.Neg(m.op.Exp(x, like=m.exp)), m.const(np.float32(1)))
        return m.op.Neg(less)  # type: ignore[no-any-return]

    m = model(
        "[e] a = Exp (x) [s] y = Add (a, one) z = Relu (a)",
        "(float[N] x) => (float[N] y, float[N] z)",
        "<float one = {1}>",
    )
    run(m, spread)
    names = [n.name for n in m.graph if n.name]
    assert sorted(names) == ["e", "e_Exp", "s", "s_Neg", "s_Sub"], "of two of one name a runtime refuses the model"
    assert next(n for n in m.graph if n.name == "s").output.name == "y"


def test_a_graph_output_keeps_its_name() -> None:
    m = model("a = Relu (x) y = Neg (a)")
    run(m, neg_of_relu)
    assert [o.name for o in write_model(m).graph.output] == ["y"]
    assert m.graph.outputs[0].producer is m.graph.last


def test_declining_changes_nothing() -> None:
    @rewrite(op.Relu(var("x")))
    def never(m: Match, x: Value) -> Value:
        """Builds a lot, and then declines."""
        built = m.op.Add(m.op.Neg(x), m.const(np.ones(4, np.float32)))
        m.require(False, "never")
        return built  # type: ignore[no-any-return]

    m = model("y = Relu (x)")
    data = write_model(m).SerializeToString()
    driver = run(m, never)
    assert m.version == 0
    assert write_model(m).SerializeToString() == data
    assert driver.records["never"].declined["never"].count == 1


def test_rules_are_checked_when_they_are_defined() -> None:
    with pytest.raises(TypeError, match=r"parameters \['y'\] are not the pattern's names \['x'\]"):

        @rewrite(op.Relu(var("x")))
        def wrong(m: Match, y: Value) -> Value:
            """Other names."""
            return y

    with pytest.raises(TypeError, match="states its equation"):

        @rewrite(op.Relu(var("x")))
        def silent(m: Match, x: Value) -> Value:
            return x

    with pytest.raises(TypeError, match="starts with the call of an operator"):

        @rewrite(either(var("x"), op.Relu(var("x"))))
        def rootless(m: Match, x: Value) -> Value:
            """No anchor."""
            return x


def test_constants_reach_rules_as_read_only_arrays() -> None:
    seen: list[np.ndarray] = []

    @rewrite(op.Add(var("x"), const("k")))
    def look(m: Match, x: Value, k: np.ndarray) -> Value:
        """Looks only."""
        seen.append(k)
        m.skip()

    run(model("y = Add (k, x)", weights="<float[4] k = {1, 2, 3, 4}>"), look)
    assert seen[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        seen[0][0] = 7


def test_like_keeps_attributes_names_and_metadata() -> None:
    @rewrite(op.Softmax(var("x"), name="node"))
    def to_log(m: Match, x: Value) -> Value:
        """Not an equation: it shows what `like` keeps."""
        return m.op.LogSoftmax(x, like=m.node)  # type: ignore[no-any-return]

    m = model("[name] y = Softmax <axis = 0> (x)")
    assert m.graph.first is not None
    m.graph.first.proto.metadata_props.add(key="k", value="v")
    run(m, to_log)
    (node,) = write_model(m).graph.node
    assert (node.op_type, node.name, node.attribute[0].i, node.metadata_props[0].value) == (
        "LogSoftmax",
        "name",
        0,
        "v",
    )


def test_the_first_line_of_each_rule_is_a_whole_sentence() -> None:
    """`explain` and `passes` show the first line of a rule's docstring, and no more."""
    rules = [rule for kind in all_passes(plugins=False).values() for rule in getattr(kind, "rules", ())]
    assert len(rules) > 100
    assert [rule.equation for rule in rules if not rule.equation.endswith((".", ")"))] == []
