"""Rules use operators of the newest opset; the engine translates attributes of older opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import parser

from onnxopt.graph import Model, Value, read_model
from onnxopt.rewriting import Match, const, op, rewrite, var
from tests.rewriting.engine import run


@rewrite(op.Squeeze(var("x"), const("axes")))
def with_axes(m: Match, x: Value, axes: Any) -> Value:
    """Squeeze(x, axes) = Squeeze(x, axes) of as many elements."""
    shape = m.ints([-1])
    return m.op.Reshape(m.op.Squeeze(x, m.const(axes)), m.op.Add(m.op.Mul(shape, m.value("axes")), m.const([0])))


def test_an_attribute_is_matched_as_the_input_that_it_is_later() -> None:
    m = old("y = Squeeze <axes = [1]> (x)")
    run(m, with_axes, fuel=1)
    (squeeze,) = m.graph.by_op["Squeeze"]
    assert squeeze.attr("axes") == [1] and len(squeeze.inputs) == 1
    assert sorted(v.array.tolist() for v in m.graph.initializers.values()) == [[-1], [0], [1]]


@rewrite(op.Squeeze(var("x"), const("axes")))
def by_slice(m: Match, x: Value, axes: Any) -> Value:
    """Not true; it asks for what an old Slice has no attribute for."""
    one = m.ints([1])
    return m.op.Slice(x, one, one, m.value("axes"), one)


@rewrite(op.Squeeze(var("x"), const("axes")))
def by_wide_clip(m: Match, x: Value, axes: Any) -> Value:
    """Not true; it asks for a bound that an attribute cannot hold."""
    return m.op.Clip(x, m.const(np.array(0.1)))


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
