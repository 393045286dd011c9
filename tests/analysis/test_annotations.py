"""Wrong sizes written in a file are not believed; runtimes believe them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxopt
from tests.runtime import plain_session

# What makes v, of which the file says more than can be found out.
MAKERS = {
    "both branches": """v = If (on) <then_branch = t () => (float[2, 4] m) { m = Neg (x) },
        else_branch = e () => (float[2, 4] n) { n = Abs (x) }>""",
    "of one axis": """v = If (on) <then_branch = t () => (float[2, 4] m) { m = Neg (x) },
        else_branch = e () => (float[P, 4] n) { n = Abs (x) }>""",
    "what a Loop collects": """end, v = Loop (trips, on, x) <body = l (int64 i, bool go, float[P, Q] c)
        => (bool on_, float[P, Q] d, float[2, 4] m) { on_ = Identity (go)  d = Neg (c)  m = Neg (c) }>""",
    "what a Scan carries": """v, all = Scan (x, x) <num_scan_inputs = 1, body = l (float[P, Q] c, float[R] r)
        => (float[2, 4] d, float[P, Q] m) { d = Neg (c)  m = Neg (c) }>""",
    "what a Scan collects": """end, v = Scan (x, x) <num_scan_inputs = 1, scan_output_axes = [-2],
        body = l (float[P, Q] c, float[R] r) => (float[P, Q] d, float[2, 4] m) { d = Neg (c)  m = Neg (c) }>""",
    "a value inside": "v = Neg (x)",
}
# The same again, such that runtimes do not know it.
HIDDEN = {
    "equal sizes": "s = Shape (v)  t = Identity (s)  y = Reshape (v, t)",
    "the sizes of what is made of it": "a = Relu (v)  s = Shape (a)  t = Identity (s)  y = Reshape (a, t)",
    "sizes that go through floats": """s = Shape (v)  f = Cast <to = 1> (s)  g = Mul (f, one)  t = Cast <to = 7> (g)
        y = Reshape (v, t)""",
}
# Two that are the same, and of the one that is an output more is said.
SAME = {
    "computed twice": "y = Abs (x)  v = Abs (x)",
    "computed twice, the output first": "v = Abs (x)  y = Abs (x)",
    "handed on": "y = Abs (x)  v = Identity (y)",
    "of the same size": "y = Relu (x)  v = Reshape (y, zeros)",
    "made once more": "y = Relu (x)  v = Relu (y)",
}


def model(made: str, outputs: str = "", said: str = "") -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, M] x, int64 trips, bool on) => (float[A, B] z{outputs})
        <float one = {{1}}, int64[2] zeros = {{0, 0}}, float[5, 2] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 0}}{said}> {{ {made}
        z = If (on) <then_branch = never () => (float[A, B] p) {{ p = MatMul (y, w) }},
                     else_branch = always () => (float[A, B] q) {{ q = Identity (w) }}> }}"""
    found = parser.parse_model(text)
    branches = [a.g for a in found.graph.node[-1].attribute]
    for graph in (found.graph, *branches):
        graph.output[0].type.tensor_type.ClearField("shape")
    return found


def assert_loaded(proto: onnx.ModelProto, level: int) -> onnx.ModelProto:
    """The result, which onnxruntime loads, and which gives what it did; a second run changes nothing."""
    result = onnxopt.optimize(proto, level=level, verify=False).model
    feeds = {"x": np.ones((2, 4), np.float32), "trips": np.array(2), "on": np.array(False)}
    before, after = (plain_session(m).run(["z"], feeds)[0] for m in (proto, result))
    assert np.array_equal(before, after)
    again = onnxopt.optimize(result, level=level, verify=False).model
    assert again.SerializeToString() == result.SerializeToString()
    return result


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize(("name", "maker"), MAKERS.items(), ids=MAKERS)
def test_what_is_said_is_known_to_runtimes(name: str, maker: str, hidden: str, level: int) -> None:
    said = ", float[2, 4] v" if name == "a value inside" else ""
    with pytest.raises(Exception, match="Incompatible dimensions"):
        plain_session(model(f"{maker}  y = Identity (v)", said=said))
    assert_loaded(model(f"{maker}  {hidden}", said=said), level)


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("made", SAME.values(), ids=SAME)
def test_it_is_not_told_of_what_is_the_same(made: str, level: int) -> None:
    result = assert_loaded(model(made, outputs=", float[2, 4] v"), level)
    assert len(result.graph.node) == 3, "what is read in the branch, what is given out, and the branch"


@pytest.mark.parametrize("made", SAME.values(), ids=SAME)
def test_what_nothing_is_said_of_is_made_once(made: str) -> None:
    result = assert_loaded(model(made, outputs=", float[C, D] v"), 1)
    assert len(result.graph.node) == 2
