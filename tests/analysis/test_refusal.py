"""What a runtime would refuse as a constant, in bodies that may never run, stays computed; all else does not."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as rt
import pytest
from onnx import parser

import onnxopt
from onnxopt.analysis import refusal
from onnxopt.analysis.refusal import is_refused
from onnxopt.graph import Model, read_model
from tests.samples import value

LARGEST = "v, i = TopK (x, k)  p = ReduceSum <keepdims = 0> (v)"
OTHER = "q = ReduceSum <keepdims = 0> (x)"
IF = f"If (c) <then_branch = t () => (float p) {{{LARGEST}}}, else_branch = e () => (float q) {{{OTHER}}}>"


def build(made: str, y: str) -> onnx.ModelProto:
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3] x, float[N] z, bool c) => (float y) <int64[1] five = {{5}}>
        {{ s = Shape <end = 1> (x)  t = Shape (z)  o = Sub (s, t)  {made} y = {y} }}"""
    )


NESTED = f"If (c) <then_branch = b () => (float u) {{ u = {IF} }}, else_branch = d () => (float w) {{ w = {IF} }}>"
LOOP = f"""Loop (trips, , first) <body = b (int64 n, bool on, float a) => (bool going, float sum)
    {{ {LARGEST}  going = Identity (on)  sum = Add (a, p) }}>"""


@pytest.mark.parametrize("optimizations", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize(
    ("made", "y"),
    [
        ("k = Add (o, five)", IF),
        ("l = Cast <to = 6> (o)  m = Cast <to = 7> (l)  k = Add (m, five)", IF),
        ("k = Add (o, five)", NESTED),
        ("k = Add (o, five)  trips = Cast <to = 7> (c)  first = ReduceSum <keepdims = 0> (x)", LOOP),
    ],
)
def test_what_is_loaded_is_loaded_afterwards(made: str, y: str, optimizations: str) -> None:
    """onnxruntime computes what is made of constants: so `o` has to stay, of which it is known to be 0."""
    options = rt.SessionOptions()
    options.graph_optimization_level = getattr(rt.GraphOptimizationLevel, optimizations)
    options.log_severity_level = 4
    original = build(made, y)
    result = onnxopt.optimize(original).model
    feeds = {"x": np.ones((2, 3), np.float32), "z": np.ones(2, np.float32), "c": np.array(False)}
    found = []
    for proto in (original, result):
        session = rt.InferenceSession(proto.SerializeToString(), options)
        found.append(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0])
    assert np.array_equal(*found)


def model_of(text: str) -> Model:
    return read_model(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))


def test_it_is_refused_where_it_is_read() -> None:
    model = read_model(build("k = Add (o, five)", IF))
    k, o = value(model, "k"), value(model, "o")
    assert is_refused(k, np.array([4]))
    assert not is_refused(k, np.array([3]))
    assert not is_refused(k, np.array([4]), [])
    assert is_refused(o, np.array([-1]))
    assert not is_refused(o, np.array([-2]))


def test_nothing_is_asked_where_there_are_no_bodies() -> None:
    model = model_of("g (float[2, 3] x, int64[1] k) => (v) { j = Neg (k)  v, i = TopK (x, j) }")
    with patch.object(refusal, "infer_call", side_effect=AssertionError):
        assert not is_refused(value(model, "j"), np.array([4]))


def test_what_was_impossible_before_is_nobody_elses_fault() -> None:
    model = model_of("""g (float[2, 3] x, float[3] b, bool c) => (y) { d = Neg (b)
        y = If (c) <then_branch = t () => (p) { u = MatMul (x, x)  p = Add (d, u) },
                    else_branch = e () => (q) { q = MatMul (x, x)  }> }""")
    assert not is_refused(value(model, "d"), np.ones(3, np.float32))


def test_it_asks_no_more_than_a_model_has_nodes() -> None:
    """Many constants, each of which leads to what is refused, by way of many nodes."""
    chain = " ".join(f"a{i + 1} = Add (a{i}, m{i})" for i in range(300))
    made = " ".join(f"m{i} = Neg (n)" for i in range(300))
    model = model_of(f"""g (float[2, 3] x, int64[1] n, bool c) => (y) <int64[1] a0 = {{1}}> {{
        {made}  y = If (c) <then_branch = t () => (p) {{ {chain}  p, i = TopK (x, a300) }},
                    else_branch = e () => (q) {{ q = Neg (x) }}> }}""")
    asked = 0

    def count(*call: object) -> dict[str, onnx.TypeProto]:
        nonlocal asked
        asked += 1
        return {}

    with patch.object(refusal, "infer_call", count):
        for i in range(300):
            is_refused(value(model, f"m{i}"), np.array([1]))
    assert asked < 10 * model.node_count()
