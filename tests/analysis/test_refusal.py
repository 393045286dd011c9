"""Constants that a runtime would refuse, in bodies that may never run, stay computed; all others are folded."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as rt
import pytest

import onnxopt
from onnxopt.analysis.constants import is_refused
from onnxopt.analysis.loading import Loading
from onnxopt.graph import Model, read_model
from tests.runtime import plain_session
from tests.samples import parsed, value

LARGEST = "v, i = TopK (x, k)  p = ReduceSum <keepdims = 0> (v)"
OTHER = "q = ReduceSum <keepdims = 0> (x)"
IF = f"If (c) <then_branch = t () => (float p) {{{LARGEST}}}, else_branch = e () => (float q) {{{OTHER}}}>"


def build(made: str, y: str) -> onnx.ModelProto:
    return parsed(
        f"""g (float[N, 3] x, float[N] z, bool c) => (float y) <int64[1] five = {{5}}>
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
    result = onnxopt.optimize(original, verify=False).model
    feeds = {"x": np.ones((2, 3), np.float32), "z": np.ones(2, np.float32), "c": np.array(False)}
    found = []
    for proto in (original, result):
        session = rt.InferenceSession(proto.SerializeToString(), options)
        found.append(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0])
    assert np.array_equal(*found)


SUM = "p = ReduceSum <keepdims = 0> (v)"
READERS = [f"v, i = TopK (y, five) {SUM}", f"v = MatMul (y, wide) {SUM}", f"v = Squeeze (y, zero) {SUM}"]
MADE = {
    "of constants": "t = Concat <axis = 0> (two, three)  y = Reshape (x, t)",
    "as it is": "s = Shape (x)  t = Mul (s, ones)  y = Reshape (x, t)",
    "as it is, twice": "s = Shape (x)  t = Mul (s, ones)  u = Reshape (x, t)  y = Reshape (u, t)",
    "of known dims": "s = Shape (x)  d = Gather (s, zero)  t = Concat <axis = 0> (d, three)  y = Reshape (x, t)",
    "picked": "s = Shape (x)  g = Gather (s, zero)  e = Mul (g, one)  y = Slice (x, zero, e, zero)",
    "one of two parts": "k = Concat <axis = 0> (two, one)  y, rest = Split <axis = 1> (x, k)",
    "repeated": "s = Shape (x)  t = Div (s, s)  y = Tile (x, t)",
}
CONSTANTS = """<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] five = {5},
    int64[2] ones = {1, 1}, float[4, 1] wide = {1, 2, 3, 4}, float[4, 1, 1] slope = {1, 2, 3, 4}>"""


def assert_loaded_and_same(text: str, **feeds: object) -> None:
    original = parsed(text)
    given = {"x": np.arange(-2, 4, dtype=np.float32).reshape(2, 3), **feeds}
    both = (original, onnxopt.optimize(original, level=3, verify=False).model)
    assert np.array_equal(*(plain_session(proto).run(None, given)[0] for proto in both))


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("reader", READERS)
def test_a_body_learns_nothing_of_what_is_around_it(made: str, reader: str) -> None:
    """The shape of what is made outside, and read in a branch that is not taken: nobody knows it before."""
    assert_loaded_and_same(
        f"""g (float[2, 3] x, bool c) => (float z) {CONSTANTS} {{
        {made}
        z = If (c) <then_branch = t () => (float p) {{ {reader} }},
                    else_branch = e () => (float q) {{ q = ReduceSum <keepdims = 0> (x) }}> }}""",
        c=np.array(False),
    )


@pytest.mark.parametrize(
    "target",
    ["t = Concat <axis = 0> (two, three)", "s = Shape (x)  t = Mul (s, ones)", "s = Shape (x)  t = Cast <to = 7> (s)"],
)
@pytest.mark.parametrize(
    ("opset", "reader"),
    [
        (9, "b = Transpose <perm = [2, 0, 1]> (a)"),
        (9, "c = Transpose (a)  b = Transpose <perm = [2, 0, 1]> (c)"),
        (9, "b = Flatten <axis = 3> (a)"),
        (9, "b = Gather <axis = 2> (a, zero)"),
        (11, "b = Softmax <axis = 2> (a)"),
        (11, "b, i = TopK <axis = 0> (a, three)"),
        (16, "b = Neg (a)"),
    ],
)
def test_of_what_a_larger_slope_widens_no_more_is_known(opset: int, target: str, reader: str) -> None:
    """Runtimes take the shape of what PRelu reads for that of its result, as soon as they know it."""
    assert_loaded_and_same(
        f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[2, 3] x) => (float z) {CONSTANTS}
        {{ {target}  y = Reshape (x, t)  a = PRelu (y, slope)  {reader}  z = ReduceSum <keepdims = 0> (b) }}"""
    )


def test_where_it_is_known_too_much_memory_is_shared() -> None:
    """Before opset 11 nobody minds the axis that is not there, and what is reduced is put in place of what it reads."""
    assert_loaded_and_same(
        f"""<ir_version: 8, opset_import: ["" : 9]> g (float[2, 3] x) => (float z) {CONSTANTS} {{
        r = ReduceMax <axes = [0]> (x)  s = Shape (x)  t = Mul (s, ones)  y = Expand (r, t)  a = PRelu (y, slope)
        b = ReduceMax <axes = [2]> (a)  z = ReduceSum <keepdims = 0> (b) }}"""
    )


def model_of(text: str) -> Model:
    return read_model(parsed(f"{text}"))


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
    with patch("onnxopt.proto.inference.infer_call", side_effect=AssertionError):
        assert not is_refused(value(model, "j"), np.array([4]))


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

    with patch("onnxopt.proto.inference.infer_call", count):
        for i in range(300):
            is_refused(value(model, f"m{i}"), np.array([1]))
    assert asked < 10 * model.node_count()


@pytest.mark.parametrize(("slope", "refused"), [("float[3]", False), ("float[2, 1]", False), ("float[4, 1, 1]", True)])
def test_a_slope_that_fits_keeps_nothing_from_being_known(slope: str, refused: bool) -> None:
    """Nobody knows the rank of what is read before the target is constant."""
    model = model_of(f"""g (float[6] x, {slope} slope, float[K] k) => (y) {{
        t = Cast <to = 7> (k)  r = Reshape (x, t)  y = PRelu (r, slope) }}""")
    assert is_refused(value(model, "t"), np.array([2, 3])) is refused


BRANCHES = """<ir_version: 8, opset_import: ["" : {opset}]> g (bool c, float[2, 3] x) => (float z)
    <int64[1] one = {{1}}, float[4, 2] w = {{1, 1, 1, 1, 1, 1, 1, 1}}> {{
    s = Shape (x)  t = Mul (s, one)  y = Reshape (x, t)
    a = If (c) <then_branch = u () => ({of} b) {{ {then} }}, else_branch = e () => ({of} d) {{ {otherwise} }}>
    z = ReduceSum <keepdims = 0> (a) }}"""


def branches(then: str, otherwise: str, opset: int) -> str:
    return BRANCHES.format(opset=opset, then=then, otherwise=otherwise, of="float[p, q]")


@pytest.mark.parametrize("c", [False, True])
@pytest.mark.parametrize("opset", [9, 10, 11])
@pytest.mark.parametrize(
    "then",
    [
        "b = Transpose (y)",
        "n = Not (c)  b = If (n) <then_branch = p () => (float[p, q] i) { i = MatMul (w, y) }, "
        "else_branch = q () => (float[p, q] j) { j = Neg (y) }>",  # the first would fail if it ran
    ],
)
def test_branches_that_differ_and_have_to_agree(then: str, opset: int, c: bool) -> None:
    """Before opset 11 a runtime takes what it knows of one branch for what the other gives out."""
    assert_loaded_and_same(branches(then, "d = Neg (y)", opset), c=np.array(c))


def test_branches_that_agree_keep_nothing_from_being_known() -> None:
    """And since opset 11 none have to."""
    for then, opset in (("b = Abs (y)", 9), ("b = Transpose (y)", 11)):
        result = onnxopt.optimize(parsed(branches(then, "d = Neg (y)", opset)), verify=False).model
        assert "Reshape" not in [n.op_type for n in result.graph.node]
    result = onnxopt.optimize(parsed(branches("b = Transpose (y)", "d = Neg (y)", 10)), verify=False).model
    assert "Reshape" in [n.op_type for n in result.graph.node]


NEVER = """If (c) <then_branch = t{i} () => (p{i}) {{ n{i} = Not (c)  p{i} = If (n{i}) <
    then_branch = m{i} () => (q{i}) {{ q{i} = MatMul ({x}, w) }},
    else_branch = o{i} () => (s{i}) {{ s{i} = Relu ({x}) }}> }},
    else_branch = f{i} () => (z{i}) {{ z{i} = Neg (x) }}>"""
SAYS = """If (c) <then_branch = k () => (float[2, 3] d) {{ d = Abs ({x}) }},
    else_branch = l () => (float[2, 3] e) {{ e = Abs ({x}) }}>"""
SAID = """<ir_version: 8, opset_import: ["" : {opset}]> g (bool c, float[N, M] x) => (float[A, B] y)
    <float[5, 2] w = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}, int64[2] ones = {{1, 1}}> {{ {nodes}
    u = Shape ({x})  h = Mul (u, ones)  r = Reshape ({x}, h)  y = {never} }}"""


def test_what_is_said_of_an_if_goes_on_being_said() -> None:
    """Something is learnt of what leads to it, which is less than what its branches say they give out."""
    nodes = f"s = Shape (x)  v = Reshape (x, s)  a = {NEVER.format(i=1, x='v')}  b = {SAYS.format(x='a')}"
    text = SAID.format(opset=17, nodes=nodes, x="b", never=NEVER.format(i=2, x="r"))
    assert_loaded_and_same(text, c=np.array(True))


def test_what_a_branch_makes_is_known_before_what_the_if_does() -> None:
    """Of one branch a runtime knows it, as that is said of what it reads, and before opset 11 so of the If."""
    other = "If (c) <then_branch = i () => (i1) { i1 = Relu (v) }, else_branch = j () => (j1) { j1 = Neg (a) }>"
    nodes = f"v = {SAYS.format(x='x')}  s = Shape (v)  t = Mul (s, ones)  a = Reshape (v, t)  b = {other}"
    text = SAID.format(opset=9, nodes=nodes, x="b", never=NEVER.format(i=2, x="r"))
    assert_loaded_and_same(text, c=np.array(True))


def test_what_a_constant_that_is_a_node_holds_is_known() -> None:
    """Where there are no initializers, constants stay nodes: in bodies of old models, and in functions."""
    model = model_of("g (float[6] x) => (r) { t = Constant <value = int64[2] {2, 3}> ()  r = Reshape (x, t) }")
    assert Loading(model).told(value(model, "r")) == (2, 3)
