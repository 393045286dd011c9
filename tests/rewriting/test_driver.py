"""The driver: fuel, rules that fail or undo each other, and cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxopt.errors import NoFixpointError, PassError
from onnxopt.graph import Value, read_model
from onnxopt.passes.basics.elim_identity import identity
from onnxopt.passes.linear.conv_folding import fold_conv_bn
from onnxopt.rewriting import Driver, Match, matcher, op, rewrite, var
from onnxopt.rewriting import driver as driver_module
from tests.rewriting.engine import model, run
from tests.samples import operators


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


@pytest.mark.parametrize("declines", [True, False])
def test_a_rule_that_changes_the_graph_itself_is_a_bug_with_a_place(declines: bool) -> None:
    """What it changed puts its anchor back into the queue: one that declines afterwards was asked for ever."""

    @rewrite(op.Relu(var("x")))
    def marking(m: Match, x: Value) -> Value:
        """Writes down that it was here."""
        m.graph.touch(m.anchor)
        m.require(not declines, "seen")
        return m.op.Abs(x)  # type: ignore[no-any-return]

    with pytest.raises(PassError, match=r'g: main: rule marking changed the graph itself, at Relu "r" -> y \(test_dri'):
        Driver([marking]).run(model("[r] y = Relu (x)"))


def test_what_a_guard_finds_out_is_no_change_of_the_graph() -> None:
    asked = []

    @rewrite(op.Relu(var("x")))
    def asking(m: Match, x: Value) -> Value:
        """Of a value that turns out to be known, readers are looked at again."""
        if not asked:
            m.graph.model.mark(m.anchor)
        asked.append(m.anchor)
        m.require(len(asked) > 1, "nothing is known yet")
        return m.op.Abs(x)  # type: ignore[no-any-return]

    assert Driver([asking]).run(model("[r] y = Relu (x)")) == 1
    assert len(asked) == 2


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


def test_the_cost_of_the_driver_per_node_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in matches tried, which do not depend on the machine."""
    calls = 0

    match = matcher.match

    def counting(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return match(*given)

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


def test_an_anchor_that_stays_is_looked_at_again() -> None:
    """Its readers go to what it hands on; itself it is an output that nothing else can make, which another rule may
    know better."""

    @rewrite(op.Identity(var("x")))
    def not_twice(m: Match, x: Value) -> Value:
        """Identity(x) = Abs(x), for what nobody reads."""
        m.require(not m.anchor.output.users, "read here")
        return m.op.Abs(x)

    outputs = "(float[N, 4] x) => (float[N, 4] y, float[N, 4] z)"
    m = model("y = Identity (x) a = Neg (y) z = Relu (a)", signature=outputs)
    driver = run(m, identity, not_twice)
    assert operators(m) == ["Abs", "Neg", "Relu"]
    assert driver.records["identity"].declined.keys() == {"a graph output is produced by a node"}
