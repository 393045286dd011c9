"""Inlined functions, and functions left in place, which keep the functions they call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt import OptimizeOptions, optimize_file, stats
from onnxopt.graph import write_model
from tests.runtime import plain_session

pytestmark = pytest.mark.usefixtures("kept_judge")
HEAD = '<ir_version: 10, opset_import: ["" : 17, "my" : 1]> g (float[N] x) => (float[N] y) '
X = np.array([3, -1, 0.5], np.float32)


def function(name: str, body: str, opset: int = 17) -> str:
    return f'<domain: "my", opset_import: ["" : {opset}, "my" : 1]> {name} (a) => (b) {{ {body} }}'


H = function("h", "b = Neg (a)")
F = function("f", "t = my.h (a) b = Sigmoid (t)", 16)
IF = """c = Constant <value = bool[1] {1}> ()
b = If (c) <then_branch = t () => (p) { p = my.h (a) }, else_branch = e () => (q) { q = Identity (a) }>"""


def run(path: Path) -> np.ndarray:
    return np.asarray(plain_session(path).run(None, {"x": X})[0])


@pytest.mark.parametrize(
    ("main", "functions", "left"),
    [
        ("y = my.f (x)", (F, H), {"f", "h"}),
        ("t = my.h (x) y = my.f (t)", (F, H), {"f", "h"}),
        (  # a chain of three
            "y = my.f (x)",
            (F, function("h", "t = my.k (a) b = Neg (t)"), function("k", "b = Abs (a)")),
            {"f", "h", "k"},
        ),
        (  # two callers
            "t = my.f (x) u = my.e (t) y = my.h (u)",
            (F, function("e", "t = my.h (a) b = Tanh (t)", 15), H),
            {"e", "f", "h"},
        ),
        ("y = my.f (x)", (function("f", IF, 16), H), {"f", "h"}),
        ("y = my.f (x)", (function("f", "t = my.h (a) b = Sigmoid (t)"), H), set()),
        ("y = my.f (x)", (F, H, function("unused", "b = Abs (a)")), {"f", "h"}),
    ],
)
def test_what_functions_in_place_call_is_there(
    main: str, functions: tuple[str, ...], left: set[str], tmp_path: Path
) -> None:
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(parser.parse_model(HEAD + f"{{ {main} }}" + "".join(functions)), source)
    model = OptimizeOptions(inline_functions=True).load(source)
    assert {name.rpartition("::")[2] for name in model.functions} == left
    report = optimize_file(source, target, inline_functions=True)
    assert report.verification is not None and report.verification.agrees
    assert np.array_equal(run(source), run(target))


@pytest.mark.parametrize(
    ("versions", "body", "left"),
    [
        ('"" : 17, "my" : 23', "b = Neg (a)", set()),  # of which nothing is called
        ('"" : 17, "my" : 23', "t = my.k (a) b = Neg (t)", set()),
        ('"" : 17, "my" : 23', f"{IF.replace('my.h', 'my.k')}", set()),
        ('"" : 17, "ai.onnx.ml" : 2, "my" : 23', "b = Neg (a)", set()),
        ('"" : 16, "my" : 1', "b = Neg (a)", {"h"}),  # whose versions say something
        ('"" : 17, "ai.onnx.ml" : 2', "t = ai.onnx.ml.Scaler <offset = [0.0], scale = [2.0]> (a) b = Neg (t)", {"h"}),
    ],
)
def test_versions_of_a_domain_say_nothing_of_functions(
    versions: str, body: str, left: set[str], tmp_path: Path
) -> None:
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    head = HEAD.replace('"my" : 1', '"my" : 1, "ai.onnx.ml" : 3')
    model = parser.parse_model(head + "{ y = my.h (x) }" + function("k", "b = Abs (a)") + function("h", body))
    function_of_h = next(f for f in model.functions if f.name == "h")
    del function_of_h.opset_import[:]
    for given in versions.split(", "):
        domain, _, version = given.partition(" : ")
        function_of_h.opset_import.add(domain=domain.strip('"'), version=int(version))
    onnx.save(model, source)
    loaded = OptimizeOptions(inline_functions=True).load(source)
    assert {name.rpartition("::")[2] for name in loaded.functions} == left
    report = optimize_file(source, target, inline_functions=True)
    assert report.verification is not None and report.verification.agrees
    assert np.array_equal(run(source), run(target))


def test_the_standard_s_domain_has_two_names(tmp_path: Path) -> None:
    """Softmax-11 is another than Softmax-13: the version of a function that spells the domain out says something."""
    model = parser.parse_model(HEAD + "{ y = my.h (x) }" + function("h", "b = Softmax (a)", opset=11))
    for opset in (*model.opset_import, *model.functions[0].opset_import):
        opset.domain = opset.domain or "ai.onnx"
    onnx.save(model, tmp_path / "a.onnx")
    loaded = OptimizeOptions(inline_functions=True).load(tmp_path / "a.onnx")
    assert [f.proto.opset_import[0].version for f in loaded.functions.values()] == [11]


def test_ten_thousand_functions(tmp_path: Path) -> None:
    """onnx's inliner refuses 10,001, also where nothing calls them."""
    model = parser.parse_model(HEAD + "{ y = my.f (x) }" + F.replace(": 16", ": 17") + H)
    for i in range(10_000):
        model.functions.add().CopyFrom(model.functions[1])
        model.functions[-1].name = f"h{i}"
    onnx.save(model, tmp_path / "a.onnx")
    loaded = OptimizeOptions(inline_functions=True).load(tmp_path / "a.onnx")
    assert [node.op for node in loaded.graph] == ["Neg", "Sigmoid"]
    assert stats(tmp_path / "a.onnx", work=True).work is not None
    for i, f in enumerate(model.functions[2:]):
        model.graph.node.insert(0, onnx.helper.make_node(f.name, ["x"], [f"t{i}"], domain="my"))
    onnx.save(model, tmp_path / "a.onnx")
    loaded = OptimizeOptions(inline_functions=True).load(tmp_path / "a.onnx")
    assert [node.op for node in loaded.graph] == ["Neg"] * 10_001 + ["Sigmoid"]


def test_an_input_that_is_given_out_as_it_is(tmp_path: Path) -> None:
    text = '<domain: "my", opset_import: ["my" : 1]> f (a) => (a, a_out) { a_out = my.h (a) }'
    model = parser.parse_model(HEAD + "{ k, n = my.f (x) y = Sub (k, n) }" + text + H)
    onnx.save(model, tmp_path / "a.onnx")
    loaded = OptimizeOptions(inline_functions=True).load(tmp_path / "a.onnx")
    assert [node.op for node in loaded.graph] == ["Neg", "Identity", "Sub"]
    y = plain_session(write_model(loaded)).run(None, {"x": X})[0]
    np.testing.assert_array_equal(y, 2 * X)


@pytest.mark.parametrize(
    ("main", "attributes", "expected"),
    [
        ("y = my.f <s = 2.0> (x)", "<s, t: float = 4.0>", 2 * np.where(X < 0, 4 * X, X)),
        ("y = my.f (x)", "<s: float = 3.0, t: float = 4.0>", 3 * np.where(X < 0, 4 * X, X)),
        ("y = my.f <s = 2.0> (x)", "<s, t>", 2 * np.where(X < 0, 0.01 * X, X)),  # LeakyRelu's own default
        ("y = my.f <s = 2.0, t = 0.5> (x)", "<s, t>", 2 * np.where(X < 0, 0.5 * X, X)),
    ],
)
def test_attributes_of_calls_and_defaults(main: str, attributes: str, expected: np.ndarray, tmp_path: Path) -> None:
    """The function calls another, to which it passes its attribute on."""
    head = '<domain: "my", opset_import: ["" : 17, "my" : 1]> '
    inner = head + "g <alpha> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }"
    body = "t = my.g <alpha: float = @t> (a) c = Constant <value_float: float = @s> () b = Mul (c, t)"
    model = parser.parse_model(HEAD + f"{{ {main} }}" + inner + head + f"f {attributes} (a) => (b) {{ {body} }}")
    onnx.save(model, tmp_path / "a.onnx")
    loaded = OptimizeOptions(inline_functions=True).load(tmp_path / "a.onnx")
    assert not loaded.functions
    np.testing.assert_allclose(plain_session(write_model(loaded)).run(None, {"x": X})[0], expected, rtol=1e-6)


def test_names_of_a_function_meet_none_of_the_model(tmp_path: Path) -> None:
    """A body hides a name of the function, names of function and model are equal, and an operand is absent."""
    branch = "t () => (p) { t = Add (b, k) p = Neg (t) }"
    body = f"""c = Constant <value = bool[1] {{1}}> () t = Neg (a) b, k = my.two (t)
        d = If (c) <then_branch = {branch}, else_branch = e () => (q) {{ q = Abs (t) }}>"""
    two = '<domain: "my", opset_import: ["" : 17]> two (a, o) => (b, c) { b = Exp (a) c = Clip (a, o) }'
    text = f'<domain: "my", opset_import: ["" : 17, "my" : 1]> h (a) => (d) {{ {body} }}'
    model = parser.parse_model(HEAD + "{ t = my.h (x) d = my.h (t) y, = my.two (d) }" + text + two)
    onnx.save(model, tmp_path / "a.onnx")
    loaded = OptimizeOptions(inline_functions=True).load(tmp_path / "a.onnx")
    assert not loaded.functions
    first = -(np.exp(-X) - X)
    expected = np.exp(-(np.exp(-first) - first))
    np.testing.assert_allclose(plain_session(write_model(loaded)).run(None, {"x": X})[0], expected, rtol=1e-5)


def test_inputs_and_initializers_of_bodies_in_functions(tmp_path: Path) -> None:
    """The inputs of a Loop's body, and of a Scan's, got new names that no node of the body read."""
    loop = """c = Constant <value = int64 {3}> ()
        t = Loop (c, , a) <body = l (int64 i, bool k, float[N] p) => (bool k_out, float[N] p_out)
            <float two = {2}> { k_out = Identity (k) f = Cast <to = 1> (i) m = Mul (p, two) p_out = Add (m, f) }>
        s, b = Scan <num_scan_inputs = 1, body = e (float s_in, float r) => (float s_out, float o)
            { s_out = Add (s_in, r) o = Identity (s_out) }> (z, t)"""
    body = f"z = Constant <value = float {{0}}> () {loop}"
    model = parser.parse_model(HEAD + "{ t = my.f (x) y = my.f (t) }" + function("f", body))
    onnx.save(model, tmp_path / "a.onnx")
    loaded = OptimizeOptions(inline_functions=True).load(tmp_path / "a.onnx")
    assert not loaded.functions
    y = plain_session(write_model(loaded)).run(None, {"x": X})[0]
    np.testing.assert_array_equal(y, run(tmp_path / "a.onnx"))


def test_functions_without_a_call_keep_no_opset(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(HEAD + "{ y = Neg (x) }" + H), tmp_path / "a.onnx")
    optimize_file(tmp_path / "a.onnx", tmp_path / "b.onnx", target_opset=18)
    result = onnx.load(tmp_path / "b.onnx")
    assert not result.functions and result.opset_import[0].version == 18
