"""The rewriting engine: what patterns mean, what rules may do, what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.errors import NoFixpointError, PassError
from onnxopt.graph import Model, Value, check_model, read_model, write_model
from onnxopt.graph.model import Left
from onnxopt.graph.node import Node
from onnxopt.passes.conv_bn_folding import fold_conv_bn
from onnxopt.passes.elim_identity import identity
from onnxopt.rewriting import Driver, Fuel, Match, Rule, const, either, matcher, one_of, op, rewrite, text, var
from onnxopt.rewriting import driver as driver_module
from onnxopt.rewriting.pattern import Call, variants


def model(body: str, signature: str = "(float[N, 4] x) => (float[N, 4] y)", weights: str = "") -> Model:
    source = f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {weights} {{ {body} }}'
    return read_model(parser.parse_model(source))


def run(m: Model, *rules: Rule, fuel: int | None = None) -> Driver:
    driver = Driver(rules, Fuel(fuel))
    driver.run(m)
    check_model(m)
    onnx.checker.check_model(write_model(m), full_check=True)
    return driver


def operators(m: Model) -> list[str]:
    return [n.op for n in m.graph]


def as_call(pattern: Any) -> Call:
    assert isinstance(pattern, Call)
    return pattern


@rewrite(op.Neg(op.Relu(var("x")), name="neg"))
def neg_of_relu(m: Match, x: Value) -> Value:
    """-max(x, 0) = min(-x, 0)."""
    result: Value = m.op.Clip(m.op.Neg(x), None, m.const(np.float32(0)))
    return result


def test_commutative_operands_match_in_both_orders() -> None:
    both = variants(as_call(op.Add(op.Relu(var("x")), var("y"))))
    assert [text(p) for p in both] == ["Add(Relu(x), y)", "Add(y, Relu(x))"]
    assert len(variants(as_call(op.Sub(op.Relu(var("x")), var("y"))))) == 1
    assert len(variants(as_call(op.Add(op.Mul(var("x"), const("a")), const("b"))))) == 4


def test_alternatives_expand() -> None:
    p = as_call(op.Neg(either(op.Relu(var("x")), op.Abs(var("x")))))
    assert [text(v) for v in variants(p)] == ["Neg(Relu(x))", "Neg(Abs(x))"]
    assert text(one_of("Add", "Sub")(var("x"), const("k").opt(), ...)) == "Add|Sub(x, const k?, ...)"


def test_the_same_name_is_the_same_value() -> None:
    @rewrite(op.Mul(var("x"), var("x")))
    def square(m: Match, x: Value) -> Value:
        """x * x = |x| * |x|."""
        return m.op.Pow(x, m.const(np.float32(2)))  # type: ignore[no-any-return]

    assert operators_after(square, "y = Mul (x, x)") == ["Pow"]
    assert operators_after(square, "a = Neg (x) y = Mul (x, a)") == ["Neg", "Mul"]


def operators_after(rule: Rule, body: str, **options: Any) -> list[str]:
    m = model(body, **options)
    run(m, rule)
    return operators(m)


def test_inner_nodes_have_one_reader_unless_shared() -> None:
    body = "a = Relu (x) b = Neg (a) y = Add (a, b)"
    m = model(body)
    driver = run(m, neg_of_relu)
    assert operators(m) == ["Relu", "Neg", "Add"]
    assert driver.records["neg_of_relu"].declined["Relu output used elsewhere"].count == 1
    assert driver.records["neg_of_relu"].declined["Relu output used elsewhere"].example == "Neg -> b"


def test_a_match_may_read_an_inner_value_twice() -> None:
    @rewrite(op.Mul(var("x"), op.Sigmoid(var("x"))))
    def swish(m: Match, x: Value) -> Value:
        """x * sigmoid(x), both of one x."""
        return m.op.HardSwish(x)  # type: ignore[no-any-return]

    assert operators_after(swish, "a = Relu (x) s = Sigmoid (a) y = Mul (s, a)") == ["Relu", "HardSwish"]


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


def test_fuel_stops_after_so_many_rewrites() -> None:
    body = "a = Identity (x) b = Identity (a) c = Identity (b) y = Relu (c)"
    for fuel in range(4):
        m = model(body)
        run(m, identity, fuel=fuel)
        assert operators(m).count("Identity") == 3 - fuel


def test_a_rule_that_raises_is_a_bug_with_a_place() -> None:
    @rewrite(op.Relu(var("x"), name="relu"))
    def broken(m: Match, x: Value) -> Value:
        """Divides by zero."""
        raise ZeroDivisionError("on purpose")

    m = model("[the_relu] y = Relu (x)")
    with pytest.raises(PassError, match=r'g: main: rule broken failed at Relu "the_relu" -> y: ZeroDivisionError') as e:
        Driver([broken]).run(m)
    assert e.value.exit_code == 4


def test_rules_that_undo_each_other_are_named() -> None:
    @rewrite(op.Relu(var("x")))
    def forth(m: Match, x: Value) -> Value:
        """Relu to Abs."""
        return m.op.Abs(x)  # type: ignore[no-any-return]

    @rewrite(op.Abs(var("x")))
    def back(m: Match, x: Value) -> Value:
        """Abs to Relu."""
        return m.op.Relu(x)  # type: ignore[no-any-return]

    with pytest.raises(NoFixpointError, match="the last ones were back, forth"):
        Driver([forth, back]).run(model("y = Relu (x)"))


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

    with pytest.raises(TypeError, match="starts with an operator"):

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


def test_the_cost_of_the_driver_per_node_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in matches tried, which do not depend on the machine."""
    calls = 0

    def counting(pattern: Call, anchor: Any) -> Any:
        nonlocal calls
        calls += 1
        return matcher.match(pattern, anchor)

    monkeypatch.setattr(driver_module, "match", counting)
    per_node = []
    for units in (50, 500, 5000):
        m = read_model(chain(units))
        calls = 0
        Driver([identity, fold_conv_bn]).run(m)
        assert m.node_count() == 2 * units
        per_node.append(calls / (4 * units))
    assert max(per_node) <= 1.1 * min(per_node)


def chain(units: int) -> onnx.ModelProto:
    """Conv, BatchNormalization, Identity, Relu, again and again."""
    names = [f"p{i}" for i in range(4)]
    g = onnx.GraphProto(name="chain")
    g.initializer.append(onnx.numpy_helper.from_array(np.eye(2, dtype=np.float32).reshape(2, 2, 1, 1), "w"))
    g.initializer.extend(onnx.numpy_helper.from_array(np.ones(2, np.float32), n) for n in names)
    value = "x"
    for i in range(units):
        g.node.add(op_type="Conv", input=[value, "w"], output=[f"c{i}"])
        g.node.add(op_type="BatchNormalization", input=[f"c{i}", *names], output=[f"b{i}"])
        g.node.add(op_type="Identity", input=[f"b{i}"], output=[f"i{i}"])
        value = f"r{i}"
        g.node.add(op_type="Relu", input=[f"i{i}"], output=[value])
    for field, name in ((g.input, "x"), (g.output, value)):
        field.append(onnx.helper.make_tensor_value_info(name, 1, [1, 2, 2, 2]))
    return onnx.helper.make_model(g, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@rewrite(op.Squeeze(var("x"), const("axes")))
def with_axes(m: Match, x: Value, axes: Any) -> Value:
    """Squeeze(x, axes) = Squeeze(x, axes) of as many elements."""
    shape = m.const(np.array([-1], np.int64))
    result: Value = m.op.Reshape(
        m.op.Squeeze(x, m.const(axes)), m.op.Add(m.op.Mul(shape, m.value("axes")), m.const([0]))
    )
    return result


def test_an_attribute_is_matched_as_the_input_that_it_is_later() -> None:
    m = old("y = Squeeze <axes = [1]> (x)")
    run(m, with_axes, fuel=1)
    (squeeze,) = m.graph.by_op["Squeeze"]
    assert squeeze.attr("axes") == [1] and len(squeeze.inputs) == 1
    assert sorted(v.array.tolist() for v in m.graph.initializers.values()) == [[-1], [0], [1]]


@rewrite(op.Squeeze(var("x"), const("axes")))
def by_slice(m: Match, x: Value, axes: Any) -> Value:
    """Not true; it asks for what an old Slice has no attribute for."""
    one = m.const(np.array([1], np.int64))
    result: Value = m.op.Slice(x, one, one, m.value("axes"), one)
    return result


@rewrite(op.Squeeze(var("x"), const("axes")))
def by_wide_clip(m: Match, x: Value, axes: Any) -> Value:
    """Not true; it asks for a bound that an attribute cannot hold."""
    result: Value = m.op.Clip(x, m.const(np.array(0.1)))
    return result


def old(body: str, opset: int = 9) -> Model:
    source = f'<ir_version: 4, opset_import: ["" : {opset}]> g (float[N, 1] x) => (float[N] y) {{ {body} }}'
    return read_model(parser.parse_model(source))


def test_what_an_old_form_cannot_say_is_declined() -> None:
    for rule, reason in (
        (by_slice, "an attribute has to say it before opset 10"),
        (by_wide_clip, "the attribute holds single precision only"),
    ):
        m = old("y = Squeeze <axes = [1]> (x)")
        assert [*run(m, rule).records[rule.name].declined] == [reason]
        assert m.version == 0


def left(m: Model, driver: Driver) -> Left:
    return Left(m.state, m.clock, driver.declined)


def test_a_later_run_looks_only_where_something_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Node] = []

    def spy(pattern: Call, anchor: Node) -> Any:
        asked.append(anchor)
        return matcher.match(pattern, anchor)

    m = model(" ".join(f"v{i + 1} = Relu (v{i})" for i in range(20)).replace("v0", "x") + " y = Neg (x)")
    monkeypatch.setattr(driver_module, "match", spy)

    @rewrite(op.Relu(op.Neg(var("x"))))
    def relu_of_neg(m: Match, x: Value) -> Value:
        """max(-x, 0) = -min(x, 0)."""
        raise AssertionError

    first = run(m, relu_of_neg)
    assert len(asked) == 20
    asked.clear()
    known = left(m, first)
    assert Driver([relu_of_neg]).run(m, known) == 0
    assert not asked
    nodes = list(m.graph)
    nodes[5].set_attr("mark", 1)
    Driver([relu_of_neg]).run(m, known)
    assert asked == nodes[5:7], "itself, and what the pattern reaches from there"


def test_what_was_declined_is_asked_again_by_the_rules_that_declined_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @rewrite(op.Neg(var("x")))
    def when_allowed(m: Match, x: Value) -> Value:
        """-x = x, once the name of the graph's input is known: a guard may ask for anything."""
        m.require(allowed, "not yet")
        return x

    @rewrite(op.Neg(op.Relu(var("x"))))
    def never(m: Match, x: Value) -> Value:
        """Has not even its form here."""
        raise AssertionError

    allowed: list[int] = []
    m = model("a = Abs (x) b = Neg (a) y = Abs (b)")
    first = run(m, when_allowed, never)
    assert list(first.declined.values()) == [["when_allowed"]]
    allowed.append(1)
    again = Driver([when_allowed, never])
    tried: list[Call] = []

    def spy(pattern: Call, anchor: Node) -> Any:
        tried.append(pattern)
        return matcher.match(pattern, anchor)

    monkeypatch.setattr(driver_module, "match", spy)
    assert again.run(m, left(m, first)) == 1
    assert tried == [when_allowed.source]


def test_a_variable_may_have_to_be_constant_or_computed() -> None:
    @rewrite(op.Sub(var("c", constant=True), var("x", constant=False)))
    def turned(m: Match, c: Value, x: Value) -> Value:
        """c - x = -(x - c)."""
        return m.op.Neg(m.op.Sub(x, c))  # type: ignore[no-any-return]

    weights = "<float[4] k = {1, 2, 3, 4}>"
    assert operators_after(turned, "y = Sub (k, x)", weights=weights) == ["Sub", "Neg"]
    assert operators_after(turned, "y = Sub (x, k)", weights=weights) == ["Sub"]
    assert operators_after(turned, "y = Sub (x, x)") == ["Sub"]


def test_readers_of_what_becomes_constant_are_looked_at_again() -> None:
    @rewrite(op.Add(var("x"), 0))
    def plus_nothing(m: Match, x: Value) -> Value:
        """x + 0 = x."""
        return x

    m = model("z = Sub (x, x) a = Add (x, z) y = Neg (a)")
    first = run(m, plus_nothing)
    known = left(m, first)
    zero = next(iter(m.graph)).output
    zero.array = np.float32([[0]])
    m.graph.know(zero)
    assert Driver([plus_nothing]).run(m, known) == 1
