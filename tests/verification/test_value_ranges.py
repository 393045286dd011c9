"""Ranges of values by operator hold in onnxruntime."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from onnx import ModelProto, helper, parser

from onnxopt.verification.model.ranges import ANY, Range, Ranges
from tests.runtime import plain_session

HEAD = '<ir_version: 10, opset_import: ["" : 20, "lab" : 1]> g (float[n, 4] x, int64[n, 4] i, bool c) => (y) '
CONSTANTS = "<float six = {6}, float low = {-2}, float half = {0.5}, float two = {2}, int64 three = {3}, bool on = {1},"
CONSTANTS += " float scale = {0.25}, uint8 zero = {128}, float[4] w = {1, 2, 3, 4}, float[4, 1] w2 = {1, 2, 3, 4}>"

CASES = [
    ("y = Relu (x)", Range(0.0, inf)),
    ("r = Relu (x) y = Clip (r, low, six)", Range(0.0, 6.0)),
    ("y = Clip (x, low, six)", Range(-2.0, 6.0)),
    ("c1 = Min (x, six) y = Max (c1, low)", Range(-2.0, 6.0)),
    ("s = Sigmoid (x) y = Sub (s, half)", Range(-0.5, 0.5)),
    ("s = Softmax (x) y = Mul (s, w)", Range(0.0, 4.0)),
    ("y = Mul (x, x)", Range(0.0, inf)),
    ("y = Pow (x, two)", Range(0.0, inf)),
    ("s = Tanh (x) t = Transpose (s) y = Neg (t)", Range(-1.0, 1.0)),
    ("a = Abs (x) b = Exp (x) y = Add (a, b)", Range(0.0, inf)),
    ("a = Abs (x) y = ReduceSum (a)", Range(0.0, inf)),
    ("y = Round (x)", Range(-inf, inf, integer=True)),
    ("y = Cast <to = 1> (c)", Range(0.0, 1.0, integer=True, nan=False)),
    ("y = Cast <to = 3> (x)", Range(-128.0, 127.0, integer=True, nan=False)),
    ("g = Greater (x, half) y = Cast <to = 1> (g)", Range(0.0, 1.0, integer=True, nan=False)),
    ("q = QuantizeLinear (x, scale, zero) y = DequantizeLinear (q, scale, zero)", Range(-32.0, 31.75, nan=False)),
    ("y = Where (c, half, six)", Range(0.5, 6.0, nan=False)),
    ("y = ArgMax (x)", Range(0.0, inf, integer=True)),
    ("l = Log (x) y = Relu (l)", Range(0.0, inf)),
    ("y = Add (x, half)", None),
    ("a = Abs (x) y = Gemm <alpha = -1.0> (a, w2)", None),
    ("y = lab.Relu (x)", None),
    ("y = If (c) <then_branch = t () => (p) { p = Sigmoid (x) }, else_branch = e () => (q) { q = Clip (x, low, six) }>",
     Range(-2.0, 6.0)),
    ("y = If (c) <then_branch = t () => (p) { p = Sigmoid (x) }, else_branch = e () => (q) { q = Neg (x) }>", None),
    ("a = Relu (x) y = Loop (three, on, a) <body = b (int64 k, bool d, float[n, 4] s) => (bool e, float[n, 4] r)"
     " { e = Identity (d) r = Tanh (s) }>", Range(0.0, inf)),
    ("a = Relu (x) y = Loop (three, on, a) <body = b (int64 k, bool d, float[n, 4] s) => (bool e, float[n, 4] r)"
     " { e = Identity (d) r = Sub (s, half) }>", None),
]  # fmt: skip


def ranges_of(model: ModelProto) -> dict[str, Range]:
    found = Ranges(model.functions)
    found.analyse(model.graph)
    return found.facts


@pytest.mark.parametrize(("body", "found"), CASES)
def test_ranges(body: str, found: Range | None) -> None:
    model = parser.parse_model(f"{HEAD} {CONSTANTS} {{ {body} }}")
    made = ranges_of(model).get("y")
    assert (made and made._replace(nan=False)) == (found and found._replace(nan=False))
    if found and not found.nan:
        assert made is not None and not made.nan


def test_functions_are_followed() -> None:
    text = f"""{HEAD} {{ r = Relu (x) y = lab.twice (r) }}
    <domain: "lab", opset_import: ["" : 20]> twice (a) => (b) {{ b = Add (a, a) }}"""
    model = parser.parse_model(text)
    assert ranges_of(model)["y"].never_negative
    del model.functions[:]
    assert "y" not in ranges_of(model)


@pytest.mark.parametrize(("body", "found"), CASES)
def test_no_value_is_outside_its_range(body: str, found: Range | None) -> None:
    if found is None or "lab." in body:
        return
    model = parser.parse_model(f"{HEAD} {CONSTANTS} {{ {body} }}".replace('"lab" : 1', '"lab" : 1'))
    del model.graph.output[:]
    kind = 7 if "ArgMax" in body else 3 if "to = 3" in body else 1
    model.graph.output.append(helper.make_tensor_value_info("y", kind, None))
    rng = np.random.default_rng(0)
    for k in range(3):
        x = (30**k * rng.standard_normal((5, 4))).astype(np.float32)
        feeds = {"x": x, "i": np.zeros((5, 4), np.int64), "c": np.array(k == 0)}
        session = plain_session(model)
        (y,) = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
        y = y[np.isfinite(y)]
        assert found.takes(y.min(initial=max(found.low, 0)), y.max(initial=min(found.high, 0)))
        assert not found.integer or (y == np.round(y)).all()


def test_properties_of_ranges_for_sampling() -> None:
    small = Range(-2.0, 6.0)
    assert small.is_bounded and not small.never_negative and small.takes(-2.0, 6.00001) and not small.takes(-3.0, 0.0)
    assert small.cut(np.array([-5.0, 1.4, 9.0], np.float32)).tolist() == [-2.0, 1.399999976158142, 6.0]
    assert Range(0.0, inf, integer=True).cut(np.array([-5.0, 1.4])).tolist() == [0.0, 1.0]
    assert not ANY.is_bounded
