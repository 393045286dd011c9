"""Sizes accepted by one model only are tried, however large. They remain from a trace or a fold."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, parser

from onnxopt.verification import VerifyOptions, verify
from onnxopt.verification.inputs.plan import InputSpec, Plan
from onnxopt.verification.inputs.sizes import Run, Sizes, affordable, other_sizes
from tests.verification.pairs import own_check, verdict

SIZE = "s = Shape (x) one = Constant <value_int = 1> () t = Gather (s, one) "
IF = """y = If (c) <then_branch = t () => (p) { p = Neg (x) }, else_branch = e () => (q) { q = Exp (x) }>"""


def model(body: str) -> ModelProto:
    constants = "<int64 n = {20}, int64 m = {21}, int64 zero = {0}, int64[1] all = {9223372036854775807},"
    constants += " int64[1] some = {40}, int64[1] four = {4}, int64[1] back = {-3}, int64[1] first = {0},"
    constants += " int64[1] axis = {1}, float[64] table = {"
    constants += ", ".join(map(str, range(64))) + "}>"
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, t] x) => (y) {constants} {{ {body} }}'
    )


@pytest.mark.parametrize(
    ("right", "wrong", "size"),
    [
        (SIZE + "c = Greater (t, n) " + IF, ("t, n", "t, m"), 21),
        (SIZE + "c = Less (t, n) " + IF, ("t, n", "t, m"), 20),
        (SIZE + "c = Greater (n, t) " + IF, ("n, t", "m, t"), 20),
        (SIZE + "c = LessOrEqual (n, t) " + IF, ("n, t", "m, t"), 20),
        (SIZE + "c = Equal (t, n) " + IF, ("t, n", "t, m"), 20),
        (SIZE + "c = Equal (t, n) " + IF, (SIZE + "c = Equal (t, n) " + IF, "y = Exp (x)"), 20),
        (SIZE + "r = Range (zero, t, one) g = Gather (table, r) y = Add (x, g)",
         ("g = Gather (table, r)", "k = Min (r, n) g = Gather (table, k)"), 22),
        (SIZE + "r = Range (zero, t, one) u = Unsqueeze (r, axis) d = Sub (u, r) a = Abs (d) k = Min (a, n)"
         " g = Gather (table, k) y = MatMul (x, g)", ("Min (a, n)", "Min (a, m)"), 22),
        ("y = Slice (x, first, all, axis)", ("all", "some"), 41),
        ("y = Slice (x, first, all, axis)", ("all", "four"), 5),
        ("y = Slice (x, back, all, axis)", ("back", "first"), 4),
        ("a = Slice (x, first, all, axis) y = Slice (a, first, all, axis)",
         ("first, all, axis) y = Slice (a, first, all", "first, four, axis) y = Slice (a, first, some"), 41),
        ("y = Trilu <upper = 0> (x, n)", ("Trilu <upper = 0> (x, n)", "Identity (x)"), 22),
    ],
    ids=["Greater", "Less", "number first", "and equal", "Equal", "folded", "positions", "distances", "Slice",
         "few", "from the end", "few and many", "diagonal"],
)  # fmt: skip
def test_a_fault_at_large_sizes_is_found(right: str, wrong: tuple[str, str], size: int, tmp_path: Path) -> None:
    a, b = model(right), model(right.replace(*wrong))
    assert size in other_sizes(Sizes(a.graph), Sizes(b.graph))
    assert other_sizes(Sizes(a.graph), Sizes(a.graph)) == {}
    for name, proto in (("a", a), ("b", b)):
        onnx.save(proto, tmp_path / f"{name}.onnx")
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", VerifyOptions(cases=("all",)))
    assert found.status == "different", found.message
    assert size in [c.dims["t"] for c in found.cases if c.name.startswith("beyond")]
    same = verify(tmp_path / "a.onnx", tmp_path / "a.onnx", VerifyOptions(cases=("all",)))
    assert same.agrees
    assert "beyond" not in [c.name for c in same.cases]


def test_expensive_sizes_are_not_tried() -> None:
    plans = [Plan(bytes=n, windows=w) for n, w in ((1 << 30, []), (1 << 31, []), (1 << 30, [{}]))]
    assert [affordable([9, 20, 41], plan) for plan in plans] == [(9, 41, 20), (9, 20), ()]
    a, b = model("y = Slice (x, first, all, axis)"), model("y = Slice (x, first, some, axis)")
    assert other_sizes(Sizes(a.graph), Sizes(b.graph)) == {41: {"t"}}
    picture = Plan([InputSpec("x", "float32", ("n", 3, 64, 64))])
    assert affordable([9, 41], picture, known=Run(1 << 31, {"n": 2})) == (9,)
    assert affordable([9, 41], picture, known=Run(1 << 20, {"n": 2})) == (9, 41)


@pytest.mark.parametrize(
    "fixed",
    [
        "c = Concat <axis = 0> (n1, many) m = Reshape (x, c) y = Slice (m, first, END, two)",
        "m = MatMul (x, w) y = Slice (m, first, END, axis)",
        "c = Constant <value_ints = [-1, 32, 2]> () m = Reshape (x, c) y = Slice (m, first, END, axis)",
        "s0 = Slice (s, axis, END) y = Expand (one, s0)",
    ],
    ids=["computed target", "channels", "target", "of a shape"],
)
def test_an_end_of_fixed_dims_needs_no_larger_size(fixed: str) -> None:
    """An end of fixed dims (heads, channels, windows) needs no larger batch: it takes effect in every case."""
    head = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 64] x, float[64, 40] w) => (y)
        <int64[1] first = {0}, int64[1] axis = {1}, int64[1] two = {2}, int64[1] some = {20}, int64[1] few = {9},
        int64[2] many = {2, 32}> {
        s = Shape (x) one = Constant <value_float = 1.0> () n1 = Slice (s, first, axis) BODY }"""
    a, b = (Sizes(parser.parse_model(head.replace("BODY", fixed.replace("END", end))).graph) for end in ("some", "few"))
    assert other_sizes(a, b) == {}


def test_a_size_beyond_every_case_is_named(tmp_path: Path) -> None:
    a = ROWS + "y = Mul (x, half) }"
    b = ROWS + "m = Mul (x, half) a = Slice (m, first, some) b = Slice (m, some, all) y = Concat <axis = 0> (a, b) }"
    found = verdict(tmp_path, a, b, VerifyOptions(cases=("random",)))
    assert found.agrees and "only one of the two has 300 as a size, which no case exceeds" in found.message
    found = verdict(tmp_path, a, b, VerifyOptions(cases=("all",)))
    assert found.agrees and "no case exceeds" not in found.message


ROWS = """<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 40] x) => (float[batch, 40] y)
    <int64[1] first = {0}, int64[1] some = {300}, int64[1] all = {9223372036854775807}, float[1] half = {0.5}> {"""


def test_a_batch_exceeds_the_size_limit(tmp_path: Path) -> None:
    """A case beyond a limit has a batch above this limit, and finds the fault.

    A batch that fell back to three rows kept the name of the size.
    """
    found = verdict(
        tmp_path,
        ROWS + "y = Mul (x, half) }",
        ROWS + "m = Mul (x, half) a = Slice (m, first, some) b = Slice (m, some, all) c = Neg (b)"
        " y = Concat <axis = 0> (a, c) }",
        VerifyOptions(cases=("all",)),
    )
    assert found.status == "different"
    assert {c.name for c in found.cases if not all(o.ok for o in c.outputs)} == {"beyond"}
    case = next(c for c in found.cases if c.name == "beyond")
    assert case.dims == {"batch": 301}


TURNS = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, int64 n) => (float[2] y)
    <bool go = {1}, int64 most = {MOST}> { m = Min (n, most) y = Loop (TRIPS, go, x) <body =
    b (int64 i, bool c, float[2] s) => (bool d, float[2] t) { d = Identity (c) t = Tanh (s) }> }"""


@pytest.mark.parametrize("most", ["5", "40"])
def test_iterations_exceed_the_limit_of_the_result(most: str, tmp_path: Path) -> None:
    a, b = (TURNS.replace("MOST", most).replace("TRIPS", trips) for trips in "nm")
    found = verdict(tmp_path, a, b, VerifyOptions(cases=("all",)))
    assert found.status == "different", found.message


def test_the_own_check_exceeds_limits_of_the_result(tmp_path: Path) -> None:
    """The optimizer's own check runs sizes above a limit of the result, and more than one iteration.

    Its usual cases have few rows and iterations.
    """
    a = ROWS + "y = Mul (x, half) }"
    b = ROWS + "m = Mul (x, half) a = Slice (m, first, some) b = Slice (m, some, all) c = Neg (b)"
    assert own_check(tmp_path, a, b + " y = Concat <axis = 0> (a, c) }").status == "different"
    a, b = (TURNS.replace("MOST", "40").replace("TRIPS", trips) for trips in "nm")
    assert own_check(tmp_path, a, b).status == "different"


def test_each_of_two_limits_is_exceeded(tmp_path: Path) -> None:
    """Limits of both models are exceeded.

    The original's smaller limit is harmless; the result is wrong above the larger one.
    """
    size = "s = Shape (x) one = Constant <value_int = 1> () t = Gather (s, one) "
    low, high = ("k = Min (t, n) u = Sub (k, k) f = Cast <to = 1> (u) ", "c = Greater (t, big) f = Cast <to = 1> (c) ")
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, t] x) => (y) <int64 n = {20}, int64 big = {90}> {'
    found = own_check(tmp_path, head + size + low + "y = Add (x, f) }", head + size + high + "y = Add (x, f) }")
    assert found.status == "different", found.message
    assert 91 in [c.dims["t"] for c in found.cases if c.name.startswith("beyond")]


FOLDED = """<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 3, h] x) => (y)
    <int64[4] folded = {0, 3, -1, 4}, int64 most = {16}, int64 batch = {0}, int64 h = {2}, float more = {1.25},
     float one = {1}> { r = Reshape (x, folded) """
LARGER = (
    "s = Shape (x) n = Gather (s, AXIS) c = Greater (n, most) f = Where (c, more, one) m = Neg (r) y = Mul (m, f) }"
)


def test_a_size_of_one_dim_leaves_the_other_dims_as_they_are(tmp_path: Path) -> None:
    """A case of batch 17 keeps the height, which is a multiple of 4: the original rejects 17 for both dims."""
    found = own_check(tmp_path, FOLDED + "y = Neg (r) }", FOLDED + LARGER.replace("AXIS", "batch"))
    assert found.status == "different", found.message
    assert [c.dims["batch"] for c in found.cases if c.dims["batch"] > 16] == [17]


def test_the_own_check_names_a_size_that_the_original_rejects(tmp_path: Path) -> None:
    found = own_check(tmp_path, FOLDED + "y = Neg (r) }", FOLDED + LARGER.replace("AXIS", "h"))
    assert found.agrees
    assert found.message.endswith("; only one of the two has 16 as a size, which no case exceeds")


DECIDED = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, t] x) => (y)
    <int64[1] k = {NUMBER}, int64[1] one = {1}> { s = Shape <start = 1> (x) u = Sub (s, s)
    true = Equal (u, u) c = TEST u1 = Reshape (c, one) y = If (u1) <
    then_branch = t () => (p) { p = Neg (x) }, else_branch = e () => (q) { q = Relu (x) }> }"""


@pytest.mark.parametrize(
    ("before", "after", "number"),
    [
        ("Greater (s, k)", "GreaterOrEqual (s, k)", 1),
        ("Greater (s, k)", "Identity (true)", 1),
        ("Equal (s, k)", "Not (true)", 1),
        ("Less (s, k)", "Not (true)", 2),
        ("Greater (s, k)", "GreaterOrEqual (s, k)", 3),
    ],
)
def test_sizes_on_both_sides_of_a_small_limit(before: str, after: str, number: int, tmp_path: Path) -> None:
    """Usual cases have 2 and 4 elements: never 1, and never 3."""
    a, b = (DECIDED.replace("TEST", c).replace("NUMBER", str(number)) for c in (before, after))
    assert own_check(tmp_path, a, b).status == own_check(tmp_path, b, a).status == "different"
    assert own_check(tmp_path, a, a).agrees
