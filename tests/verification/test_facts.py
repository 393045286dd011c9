"""Conditions that every run decides alike are facts: the other branch needs no case."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from onnxopt.verification.model.facts import can_change
from tests.runtime import plain_session
from tests.verification.pairs import own_check, verdict

CONSTANTS = """float zero = {0}, float mone = {-1}, float two = {2}, float six = {6}, float huge = {1e30},
    int64 none = {0}, int64 one = {1}, int64 less = {-1}, int64 many = {1000}, int64 far = {4000000000000000000},
    bool on = {1}, int64 four = {4}, int64[1] v1 = {1}, int64[1] v2 = {2}, int64[1] v0 = {0},
    int64[2] row = {1, 2}, int32 high = {2000000000}"""
HEAD = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 4] x, int64[m] k, uint8[m] u, float16[m] h, bool q)'
SMALLEST = "ReduceMin <keepdims = 0>"
LARGEST = "ReduceMax <keepdims = 0>"

# By the nodes of the condition c: its value in every run.
FACTS = {
    "c = Identity (on)": True,
    f"a = Relu (x) l = {SMALLEST} (a) c = Less (l, mone)": False,
    f"a = Relu (x) l = {SMALLEST} (a) d = Less (l, mone) c = Not (d)": True,
    f"s = Sigmoid (x) l = {LARGEST} (s) c = Greater (l, two)": False,
    f"t = Tanh (x) b = Add (t, two) l = {LARGEST} (b) c = GreaterOrEqual (l, six)": False,
    f"t = Clip (x, mone, two) l = {LARGEST} (t) c = Greater (l, six)": False,
    f"s = Softmax (x) l = {LARGEST} (s) c = Equal (l, two)": False,
    f"a = Abs (x) l = {SMALLEST} (a) c = Less (l, zero)": False,
    "s = Size (x) c = GreaterOrEqual (s, none)": True,
    "s = Size (x) c = Less (s, none)": False,
    "s = Size (x) c = Equal (s, less)": False,
    "s = Shape (x) d = Gather (s, none) e = Add (d, one) c = Greater (e, none)": True,
    "s = Shape (x) d = Gather (s, none) e = Sub (d, one) f = Max (e, none) c = Less (f, none)": False,
    f"i = Cast <to = 7> (u) l = {LARGEST} (i) c = LessOrEqual (l, many)": True,
    f"i = Cast <to = 6> (u) j = Cast <to = 7> (i) n = Mul (j, j) l = {SMALLEST} (n) c = Less (l, none)": False,
    "s = Shape (x) d = Slice (s, v1, v2) e = Squeeze (d) c = Equal (e, four)": True,
    "s = Shape (x) d = Slice (s, v1, v2) e = ReduceProd <keepdims = 0> (d) f = Sub (e, four) c = Equal (f, none)": True,
    "s = Shape <start = 1> (x) t = Concat <axis = 0> (s, s) e = Gather (t, one) c = Less (e, none)": False,
    "c = Or (on, q)": True,
    "d = Not (on) c = And (q, d)": False,
    "d = Cast <to = 7> (q) e = Where (on, one, d) c = Equal (e, one)": True,
    "b = ArgMax <axis = 1, keepdims = 0> (x) l = ReduceMin <keepdims = 0> (b) c = Less (l, none)": False,
    "s = Size (x) e = Add (s, one) c = Cast <to = 9> (e)": True,
    "c = Equal (q, q)": True,
}
# The value may differ: in NaN, in an overflow, in rounding, in an empty tensor, in a later iteration.
OPEN = {
    f"a = Abs (x) l = {SMALLEST} (a) c = GreaterOrEqual (l, zero)": "NaN",
    f"a = Abs (k) l = {SMALLEST} (a) c = GreaterOrEqual (l, none)": "the magnitude of the lowest integer overflows",
    f"n = Mul (k, k) l = {SMALLEST} (n) c = Less (l, none)": "a square overflows",
    f"n = Neg (k) l = {LARGEST} (k) i = {LARGEST} (n) j = Max (l, i) c = Less (j, none)": "a negation overflows",
    f"i = Cast <to = 7> (u) l = {LARGEST} (i) c = Less (l, none)": "the integer maximum of nothing",
    f"s = Sigmoid (x) l = {SMALLEST} (s) c = Greater (l, zero)": "a small result is zero",
    f"s = Sigmoid (x) l = {LARGEST} (s) c = GreaterOrEqual (two, l)": "NaN",
    f"s = Tanh (x) b = Add (s, huge) d = Sub (b, huge) l = {LARGEST} (d) c = Greater (l, two)": "rounding",
    f"i = Cast <to = 7> (u) l = {SMALLEST} (i) c = LessOrEqual (l, many)": "the integer minimum of nothing",
    f"e = Exp (h) f = Sub (e, e) l = {LARGEST} (f) m = Cast <to = 1> (l) c = Equal (m, m)": "NaN of infinities",
    "s = Size (x) e = Mul (s, far) c = Less (e, none)": "a size overflows",
    "c = Equal (q, on)": "an input",
    "s = Shape (x) d = Slice (s, v0, v1) e = Squeeze (d) c = Equal (e, four)": "a free dim",
    "s = Shape (x) e = ReduceProd <keepdims = 0> (s) c = Greater (e, none)": "a free dim",
    f"s = Shape (x) t = Reshape (s, row) d = Gather (t, none) l = {LARGEST} (d) c = Greater (l, many)": "a row",
    f"b = Add (high, high) e = Cast <to = 7> (b) f = Min (e, k) l = {LARGEST} (f) c = Less (l, none)": "a sum",
    "d = Not (q) e = Or (d, q) c = And (e, q)": "an input",
}


def asked(condition: str, then: str = "p = Mul (x, two)", other: str = "r = Add (x, two)") -> str:
    return f"""{HEAD} => (float[n, 4] y) <{CONSTANTS}> {{ {condition}
        y = If (c) <then_branch = t () => (p) {{ {then} }}, else_branch = e () => (r) {{ {other} }}> }}"""


def taken(truth: bool) -> str:
    return f"{HEAD} => (float[n, 4] y) <{CONSTANTS}> {{ y = {'Mul' if truth else 'Add'} (x, two) }}"


@pytest.mark.parametrize(("condition", "truth"), FACTS.items(), ids=FACTS)
def test_the_value_of_a_condition_in_every_run(condition: str, truth: bool) -> None:
    found = can_change(parser.parse_model(asked(condition)))
    assert found.open == set() and found.possible("y") in ({truth}, ())


@pytest.mark.parametrize("condition", OPEN)
def test_a_condition_that_may_have_both_values(condition: str) -> None:
    assert can_change(parser.parse_model(asked(condition))).open == {"y"}, OPEN[condition]


@pytest.mark.parametrize("condition", [*FACTS, *OPEN])
def test_onnxruntime_computes_the_values_of_facts(condition: str) -> None:
    """No input, however unusual, makes onnxruntime contradict a fact."""
    model = parser.parse_model(f"{HEAD} => (bool c) <{CONSTANTS}> {{ {condition} }}")
    session = plain_session(model)
    names = {i.name for i in session.get_inputs()}
    found = set()
    for number in (0.0, -0.0, 1.0, -1e30, 1e30, 65000.0, np.inf, -np.inf, np.nan, 3e38):
        for count in (0, 2) if "ArgMax" not in condition else (2,):
            whole = np.int64(np.clip(number, -(2.0**63), 2.0**62)) if np.isfinite(number) else np.int64(-(2**63))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                feeds = {
                    "x": np.full((count, 4), number, np.float32),
                    "k": np.full(count, whole, np.int64),
                    "u": np.full(count, 255 if number > 0 else 0, np.uint8),
                    "h": np.full(count, number, np.float16),
                    "q": np.array(number > 0),
                }
            (truth,) = session.run(None, {name: v for name, v in feeds.items() if name in names})
            found.add(bool(truth))
    if condition in FACTS:
        assert found == {FACTS[condition]}
    elif "NaN" in OPEN[condition] or "input" in OPEN[condition] or "integer" in OPEN[condition]:
        assert len(found) == 2, OPEN[condition]


RIGHT = ("equal", "verified", "verified in pieces")
ALWAYS = "s = Size (x) c = GreaterOrEqual (s, none)"


@pytest.mark.parametrize("condition", [*list(FACTS)[1:9:2], *list(FACTS)[11:14]])
def test_a_branch_that_no_run_takes_needs_no_case(condition: str, tmp_path: Path) -> None:
    a, truth = asked(condition), FACTS[condition]
    for check in (verdict, own_check):
        assert check(tmp_path, a, taken(truth)).status in RIGHT
        assert check(tmp_path, taken(truth), a).status in RIGHT
        assert check(tmp_path, a, taken(not truth)).status == "different"
    other = asked(condition, **({"other": "r = Abs (x)"} if truth else {"then": "p = Abs (x)"}))
    assert verdict(tmp_path, a, other).status in RIGHT


@pytest.mark.parametrize("condition", OPEN)
def test_a_branch_that_some_run_may_take_is_compared(condition: str, tmp_path: Path) -> None:
    for truth in (True, False):
        for check in (verdict, own_check):
            assert check(tmp_path, asked(condition), taken(truth)).status in ("inconclusive", "different")


@pytest.mark.parametrize("wrong", ["l = Less (s, less)", "l = Less (s, one)", "l = Identity (q)", "l = Equal (s, far)"])
def test_another_condition_in_place_of_a_fact(wrong: str, tmp_path: Path) -> None:
    """The result's condition must be a fact as well, or the branches are compared."""
    b = asked(f"s = Size (x) {wrong} c = Not (l)")
    for check in (verdict, own_check):
        v = check(tmp_path, asked(ALWAYS), b)
        assert (v.status in RIGHT) is (wrong == "l = Less (s, less)"), v.message


INNER = """AROUND y = If (q) <
        then_branch = t () => (p) { p = If (d) <then_branch = t1 () => (p1) { p1 = Mul (x, two) },
                                               else_branch = e1 () => (r1) { r1 = Add (x, two) }> },
        else_branch = e () => (r) { r = Neg (x) }>"""


@pytest.mark.parametrize(
    ("around", "is_fact"),
    [
        ("d = Identity (q)", True),
        ("n = Not (q) d = Not (n)", True),
        ("d = And (q, q2)", False),
        ("d = Or (q2, q)", True),
    ],
)
def test_the_condition_of_an_enclosing_branch(around: str, is_fact: bool, tmp_path: Path) -> None:
    """Inside a branch, the condition has the value of the branch."""
    head = HEAD.replace("bool q", "bool q, bool q2")
    inner = INNER.replace("AROUND", around)
    a, b = (
        f"{head} => (float[n, 4] y) <{CONSTANTS}> {{ {text} }}"
        for text in (inner, inner.replace("r1 = Add (x, two)", "r1 = Abs (x)"))
    )
    assert can_change(parser.parse_model(a)).open == ({"y"} if is_fact else {"y", "p"})
    assert (verdict(tmp_path, a, b).status in RIGHT) is is_fact
    wrong = a.replace("p1 = Mul (x, two)", "p1 = Mul (x, six)")
    assert verdict(tmp_path, a, wrong).status == "different"


def test_a_number_cast_to_a_condition_is_any_number_but_zero() -> None:
    inner = "p = If (d) <then_branch = t1 () => (p1) { p1 = Abs (x) }, else_branch = e1 () => (r1) { r1 = Neg (x) }>"
    text = f"""<ir_version: 10, opset_import: ["" : 20]> g (float[n, 4] x, float s) => (float[n, 4] y)
        <float two = {{2}}> {{ c = Cast <to = 9> (s) d = Less (s, two)
        y = If (c) <then_branch = t () => (p) {{ {inner} }}, else_branch = e () => (r) {{ r = Exp (x) }}> }}"""
    assert can_change(parser.parse_model(text)).open == {"y", "p"}


@pytest.mark.parametrize(
    ("trips", "compared", "is_fact"),
    [("two", "i, three", True), ("four", "i, three", False), ("none", "i, three", True), ("k", "i, none", True),
     ("k", "i, three", False)],
)  # fmt: skip
def test_the_iteration_number_of_a_loop(trips: str, compared: str, is_fact: bool) -> None:
    op = "LessOrEqual" if compared == "i, three" else "GreaterOrEqual"
    a = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x, int64 k) => (float[n, 4] y)
        <int64 two = {{2}}, int64 four = {{5}}, int64 three = {{3}}, int64 none = {{0}}, bool on = {{1}}>
        {{ y = Loop ({trips}, on, x) <body = l (int64 i, bool go, float[n, 4] v) => (bool on2, float[n, 4] w) {{
           on2 = Identity (go) e = {op} ({compared})
           w = If (e) <then_branch = t () => (p) {{ p = Abs (v) }},
                       else_branch = f () => (r) {{ r = Neg (v) }}> }}> }}"""
    assert ("w" not in can_change(parser.parse_model(a)).open) is is_fact


@pytest.mark.parametrize(("step", "is_fact"), [("Abs (v)", True), ("Sub (v, one)", False)])
@pytest.mark.parametrize("kind", ["Loop", "Scan"])
def test_a_state_that_changes_between_iterations(kind: str, step: str, is_fact: bool) -> None:
    """A fact of the first iterations alone is none."""
    body = f"next = {step} d = Less (v, least) w = If (d) <then_branch = t () => (p) {{ p = Identity (v) }}, "
    body += "else_branch = f () => (r) { r = Neg (v) }>"
    node = {
        "Loop": "z, y = Loop (k, on, none) <body = l (int64 i, bool go, int64 v) => (bool on2, int64 next, int64 w) "
        f"{{ on2 = Identity (go) {body} }}>",
        "Scan": "z, y = Scan <num_scan_inputs = 1, body = l (int64 v, int64 s) => (int64 next, int64 w) "
        f"{{ {body} }}> (none, x)",
    }[kind]
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (int64[n] x, int64 k) => (int64 z, int64[m] y)
        <int64 none = {{0}}, int64 one = {{1}}, int64 least = {{-5}}, bool on = {{1}}> {{ {node} }}"""
    assert ("w" not in can_change(parser.parse_model(text)).open) is is_fact


def test_equal_names_in_two_bodies_have_separate_facts() -> None:
    inner = "d = Less (s, none) z = If (d) <then_branch = {0}t () => ({0}p) {{ {0}p = Abs (x) }}, "
    inner += "else_branch = {0}e () => ({0}r) {{ {0}r = Neg (x) }}> {0} = Identity (z)"
    text = f"""{HEAD} => (float[n, 4] y) <{CONSTANTS}> {{ y = If (q) <
        then_branch = t () => (p) {{ s = Size (x) {inner.format("p")} }},
        else_branch = e () => (r) {{ s = {SMALLEST} (k) {inner.format("r")} }}> }}"""
    assert can_change(parser.parse_model(text)).open == {"y", "z"}


def test_equal_names_of_initializers_in_two_bodies() -> None:
    inner = "d = Less (k, none) {0} = If (d) <then_branch = {0}t () => ({0}p) {{ {0}p = Abs (x) }}, "
    inner += "else_branch = {0}e () => ({0}r) {{ {0}r = Neg (x) }}>"
    text = f"""{HEAD} => (float[n, 4] y) <{CONSTANTS}> {{ y = If (q) <
        then_branch = t () => (z) <int64 k = {{1}}> {{ {inner.format("z")} }},
        else_branch = e () => (w) <int64 k = {{-1}}> {{ {inner.format("w")} }}> }}"""
    found = can_change(parser.parse_model(text.replace("int64[m] k, ", "")))
    assert [set(found.possible(name)) for name in "zw"] == [{False}, {True}]


def test_facts_of_a_function_hold_for_all_its_calls() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[n] x, int64 k) => (float[n] y)
        <int64 none = {0}> { s = Size (x) a = f.Choose (x, s) CALL }
        <domain: "f", opset_import: ["" : 17]> Choose (v, i) => (w) {
          none = Constant <value_int = 0> () d = Less (i, none)
          w = If (d) <then_branch = t () => (p) { p = Abs (v) }, else_branch = e () => (r) { r = Neg (v) }> }"""
    for call, found in (("y = f.Choose (a, s)", set()), ("y = f.Choose (a, k)", {"w"})):
        assert can_change(parser.parse_model(text.replace("CALL", call))).open == found


def test_the_body_of_an_unknown_operator_may_get_any_values() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "lab" : 1]> g (float[n] x) => (float[n] y) <bool on = {1}> {
        y = lab.Search (on, x) <body = b (bool c, float[n] v) => (w) { w = If (c) <
            then_branch = t () => (p) { p = Abs (v) }, else_branch = f () => (r) { r = Neg (v) }> }> }"""
    assert can_change(parser.parse_model(text)).open == {"w"}


def test_an_overridable_default_is_no_fact() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, float least = {3}) => (float[n] y)
        <float zero = {0}> { c = Less (least, zero)
          y = If (c) <then_branch = t () => (p) { p = Abs (x) }, else_branch = e () => (r) { r = Neg (x) }> }"""
    assert can_change(parser.parse_model(text)).open == {"y"}
