"""Predicates equal in all cases: they agree whatever computes them, and prove nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification import Verification, Verifier
from onnxopt.verification.coverage.gaps import undecided
from onnxopt.verification.model.dataflow import Changing
from onnxopt.verification.pieces.walk import Walk
from tests.verification.pairs import gaps, opened, own_check

FLOATS = {
    "zero": 0,
    "half": 0.5,
    "one": 1,
    "two": 2,
    "twenty": 20,
    "high": 2000,
    "wide": 4000,
    "higher": 20000,
    "low": -20,
}
CONSTANTS = ", ".join(f"float {name} = {{{number}}}" for name, number in FLOATS.items())
HEAD = '<ir_version: 9, opset_import: ["" : 17]> g (float[n, 8] x) => (y) '
HEAD += f"<{CONSTANTS}, int64 three = {{3}}, int64[1] first = {{1}}, int64[1] last = {{-1}}, bool yes = {{1}}>"
CHOSEN = "y = Where (c, x, two)"
BRANCH = "y = If (c) <then_branch = t () => (p) { p = Add (x, two) }, else_branch = e () => (q) { q = Neg (x) }>"
TURNS = """y = Loop (three, c, x) <body = l (int64 i, bool go, float[n, 8] s) => (on, z)
    { on = Identity (go) z = Add (s, two) }>"""
USED = pytest.mark.parametrize("used", [CHOSEN, BRANCH, TURNS], ids=["Where", "If", "Loop"])


def own(tmp_path: Path, a: str, b: str, used: str = CHOSEN) -> Verification:
    """Return the verdict of the optimizer's own check."""
    return own_check(tmp_path, *(f"{HEAD} {{ {text} {used} }}" for text in (a, b)))


@USED
def test_a_difference_in_a_further_case_is_found(used: str, tmp_path: Path) -> None:
    """Predicates that differ at zero only are found. At zero, one is below the bound, the other above."""
    a = "s = ReduceSumSquare <keepdims = 0> (x) m = Mul (s, two) c = Greater (m, half)"
    found = own(tmp_path, a, a.replace("Mul (s, two)", "Add (s, two)"), used)
    assert (found.status, [p.value for p in found.places][:1]) == ("different", ["m"]), found.message


@USED
def test_a_moved_bound_is_found_in_a_further_case(used: str, tmp_path: Path) -> None:
    a = "m = ReduceMin <keepdims = 0> (x) c = Greater (m, low)"
    found = own(tmp_path, a, a.replace("c = Greater (m, low)", "n = Neg (m) c = Less (n, high)"), used)
    assert (found.status, [p.value for p in found.places][:1]) == ("different", ["c"]), found.message


def test_a_constant_index_of_topk_is_inconclusive(tmp_path: Path) -> None:
    a = "t = Concat <axis = 1> (x, m) v, k = TopK <axis = 1> (t, first) y = Cast <to = 1> (k)"
    made = "s = ReduceSum (x, last) m = Add (s, FAR)"
    found = own(tmp_path, *(f"{made.replace('FAR', far)} {a}" for far in ("high", "higher")), used="")
    assert (found.status, gaps(found)) == ("inconclusive", ["`k` is nearly constant in each case"]), found.message


def test_further_cases_of_one_result_do_not_serve_the_next(tmp_path: Path) -> None:
    """Further cases made for one result do not make a branch seen in the next result.

    A branch taken in further cases only has zero inputs there.
    """
    a = "s = ReduceSumSquare <keepdims = 0> (x) m = Mul (s, two) c = Greater (m, half)"
    wrong = a.replace("Mul (s, two)", "Add (s, two)")
    then = BRANCH.replace("Neg (x)", "Mul (x, two)")
    for name, text in (("a", f"{a} {BRANCH}"), ("b", f"{wrong} {BRANCH}"), ("c", f"{a} {then}")):
        onnx.save(parser.parse_model(f"{HEAD} {{ {text} }}"), tmp_path / f"{name}.onnx")
    found = []
    with Verifier(tmp_path / "a.onnx") as verifier:
        for name in ("b", "a", "c"):
            verifier.submit(tmp_path / f"{name}.onnx")
            found.append(verifier.finish())
    assert found[0].status == "different" and found[1].status in ("equal", "verified in pieces")
    assert "zeros" in {c.name for c in found[0].cases} - {c.name for c in found[1].cases}
    assert found[2].status in ("different", "inconclusive"), found[2].message


MEAN, SUM = "m = ReduceMean <keepdims = 0> (x)", "m = ReduceSum <keepdims = 0> (x)"


@USED
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (f"{MEAN} c = Less (m, high)", f"{SUM} c = Less (m, high)"),
        (f"{MEAN} c = Less (m, high)", f"{MEAN} c = Less (m, higher)"),
        (f"{MEAN} o = Less (m, high) c = Or (o, o)", f"{SUM.replace('m', 'r', 1)} o = Less (r, high) c = Or (o, o)"),
    ],
    ids=["value", "bound", "name"],
)
def test_a_predicate_constant_in_every_case_is_inconclusive(used: str, a: str, b: str, tmp_path: Path) -> None:
    found = own(tmp_path, a, b, used)
    assert found.status == "inconclusive", found.message
    assert any(gap.endswith(" is nearly constant in each case") for gap in gaps(found)), found.message
    assert own(tmp_path, a, a, used).status in ("equal", "verified in pieces")


@USED
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("m = Mul (x, two) s = ReduceMax <keepdims = 0> (m) c = Less (s, wide)",
         "s = ReduceMax <keepdims = 0> (x) c = Less (s, high)"),
        ("m = Relu (x) s = ReduceMax <keepdims = 0> (m) c = Greater (s, zero)",
         "m = Identity (x) s = ReduceMax <keepdims = 0> (m) c = Greater (s, zero)"),
        ("m = Sigmoid (x) s = ReduceMax <keepdims = 0> (m) k = Clip (s, zero, one) c = Less (k, two)",
         "m = Sigmoid (x) k = ReduceMax <keepdims = 0> (m) c = Less (k, two)"),
        ("m = Add (x, two) s = ReduceMax <keepdims = 0> (m) n = Neg (s) c = Greater (n, low)",
         "m = Add (x, two) s = ReduceMax <keepdims = 0> (m) c = Less (s, twenty)"),
        ("m = ReduceSumSquare <keepdims = 0> (x) s = Sqrt (m) c = Less (s, high)",
         "s = ReduceL2 <keepdims = 0> (x) c = Less (s, high)"),
    ],
    ids=["scale", "sign", "bounds", "turned", "operator"],
)  # fmt: skip
def test_an_equivalent_predicate_is_right(used: str, a: str, b: str, tmp_path: Path) -> None:
    found = own(tmp_path, a, b, used)
    assert found.status in ("equal", "verified", "verified in pieces"), found.message


FEW = """n = Neg (x) y = Loop (three, yes, high_) <body = l (int64 i, bool go, bool s) => (on, z)
    { on = Identity (go) BODY }>"""
LESS = "m = ReduceMean <keepdims = 0> (n) z = Less (m, high)"


@pytest.mark.parametrize(
    ("text", "runs"),
    [(FEW.replace("BODY", LESS), 4), ("n = Neg (x) " + LESS.replace("z =", "y ="), 23)],
    ids=["a loop", "nodes"],
)
def test_a_predicate_behind_a_loop_is_probed_a_few_times(text: str, runs: int, tmp_path: Path) -> None:
    """A predicate that depends on a loop is probed in 4 runs, another one in 23.

    A loop may have hundreds of iterations. Predicates inside the body are probed, too.
    """
    told: list[str] = []
    head = HEAD.replace("bool yes", "bool high_ = {1}, bool yes")
    other = text.replace("ReduceMean <keepdims = 0> (n)", "ReduceMean <keepdims = 0> (a)").replace(
        "m =", "a = Abs (n) m ="
    )
    runners = []
    for name, body in (("a", text), ("b", other)):
        onnx.save(parser.parse_model(f"{head} {{ {body} }}"), tmp_path / name)
        runners.append(opened(str(tmp_path / name), name, tell=told.append))
    walk = Walk(
        runners[0], runners[1], [{"x": np.linspace(-1, 2, 16, dtype=np.float32).reshape(2, 8)}], {"x": "tensor(float)"}
    )
    walk.run()
    told.clear()
    assert list(undecided(walk)) == ["y"]
    assert len([t for t in told if t.startswith("running a piece of a ")]) == runs


COUNTED = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, 8] x) => (float[n, 8] y)
    <int64 most = {1000000}, bool yes = {1}, int64 zero = {0}, int64 end = {500}, float high = {4}, int64 one = {1},
     float half = {0.5}>
    { i, y, e = Loop (most, yes, zero, x, end)
        <body = l (int64 t, bool go, int64 s, float[n, 8] v, int64 u) => (on, j, w, z)
        { j = Add (s, one) w = Add (v, half) z = Identity (u) m = ReduceMax <keepdims = 0> (w) h = Less (m, high)
          COMPARED on = And (c, h) }> }"""


def counted(tmp_path: Path, a: str, b: str) -> Verification:
    return own_check(tmp_path, *(COUNTED.replace("COMPARED", text) for text in (a, b)))


def test_a_comparison_of_a_loop_counter_with_its_end_is_inconclusive(tmp_path: Path) -> None:
    """A changed comparison of a counter with its end is inconclusive. No case runs as many iterations."""
    found = counted(tmp_path, "c = Less (j, u)", "c = LessOrEqual (j, u)")
    assert found.status == "inconclusive", found.message
    assert "`c` is nearly constant in each case" in gaps(found), found.message


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("c = Less (j, u)", "c = Greater (u, j)"),
        ("c = Less (j, u)", "o = GreaterOrEqual (j, u) c = Not (o)"),
        ("c = GreaterOrEqual (s, zero)", "p = Abs (s) c = GreaterOrEqual (p, zero)"),
    ],
    ids=["turned", "not the opposite", "never negative"],
)
def test_equivalent_integer_comparisons_are_right(a: str, b: str, tmp_path: Path) -> None:
    found = counted(tmp_path, a, b)
    assert found.status in ("equal", "verified", "verified in pieces"), found.message


TURNED = """y = Loop (three, yes, x) <body = l (int64 t, bool go, float[n, 8] v) => (on, w)
    { COMPARED a = Add (v, half) w = Where (c, a, v) on = Identity (go) }>"""


def turned(tmp_path: Path, a: str, b: str) -> Verification:
    head = HEAD.replace("bool yes", "int64 far = {100}, int64 farther = {200}, bool yes")
    return own_check(tmp_path, *(f"{head} {{ {TURNED.replace('COMPARED', text)} }}" for text in (a, b)))


def test_a_decision_in_a_body_constant_in_every_iteration(tmp_path: Path) -> None:
    a = f"{MEAN.replace('(x)', '(v)')} c = Less (m, high)"
    found = turned(tmp_path, a, a.replace("high", "higher"))
    assert found.status == "inconclusive", found.message
    assert "`c` is nearly constant in each case" in gaps(found), found.message
    found = turned(tmp_path, a, a.replace("Mean", "Sum"))
    assert (found.status, [p.value for p in found.places]) == ("different", ["y"]), found.message
    assert turned(tmp_path, a, a.replace("Less (m, high)", "Greater (high, m)")).status == "equal"


def test_an_iteration_number_beyond_the_trip_count_is_not_probed(tmp_path: Path) -> None:
    """Comparisons of the iteration number beyond the trip count are equal. The loop has three iterations."""
    assert turned(tmp_path, "c = Less (t, far)", "c = Less (t, farther)").status == "equal"


@pytest.mark.parametrize(
    ("end", "turning"), [("Greater (m, high)", {"i"}), ("Greater (s, most)", set()), ("Identity (go)", set())]
)
def test_loops_with_a_data_dependent_end(end: str, turning: set[str]) -> None:
    graph = parser.parse_model(COUNTED.replace("COMPARED", "c = Identity (h)").replace("And (c, h)", end)).graph
    found = Changing(graph)
    assert (found.turning, found.open) == (turning, set())


@pytest.mark.parametrize(
    ("picked", "is_open"), [("zero", False), ("k", True)], ids=["a place that is a constant", "one that callers give"]
)
def test_the_rank_of_a_sequence_element_decides_if_known(picked: str, is_open: bool) -> None:
    """The rank of a sequence element is known for a constant position only.

    PyTorch's hstack compares the rank of the first tensor.
    """
    graph = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[n, 8] x, float[n] z, int64 k) => (y) <int64 one = {{1}}, int64 zero = {{0}}> {{
            s = SequenceConstruct (x, z) v = SequenceAt (s, {picked}) d = Shape (v) r = Size (d) c = Equal (r, one)
            y = If (c) <then_branch = t () => (p) {{ p = Neg (v) }}, else_branch = e () => (q) {{ q = Abs (v) }}>
        }}""").graph
    assert Changing(graph).open == ({"y"} if is_open else set())


def test_a_branch_excluded_by_the_rank_needs_no_evidence(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
        g (float[n, 8] x, float[n, 8] z) => (float[n, m] y) <int64 one = {1}, int64 zero = {0}> { BODY }"""
    asked = """s = SequenceConstruct (x, z) v = SequenceAt (s, zero) d = Shape (v) r = Size (d) c = Equal (r, one)
        y = If (c) <then_branch = t () => (p) { p = ConcatFromSequence <axis = 0> (s) },
                    else_branch = e () => (q) { q = ConcatFromSequence <axis = 1> (s) }>"""
    found = own_check(tmp_path, *(text.replace("BODY", body) for body in (asked, "y = Concat <axis = 1> (x, z)")))
    assert found.status == "equal", found.message


HIDDEN = {
    "a Scan": """{ y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
        body = l (float[n] v) => (w) { COMPARED a = Add (v, half) w = Where (c, a, v) }> (x) }""",
    "a function": """{ y = own.f (x) } <domain: "own", opset_import: ["" : 17]> f (v) => (w) {
        half = Constant <value = float {0.5}> () high = Constant <value = float {2000}> ()
        higher = Constant <value = float {20000}> () COMPARED a = Add (v, half) w = Where (c, a, v) }""",
}


@pytest.mark.parametrize("around", HIDDEN.values(), ids=HIDDEN)
def test_a_constant_decision_inside_a_body_or_function(around: str, tmp_path: Path) -> None:
    """A constant decision inside a subgraph that always runs is inconclusive.

    Only the results of the outer node are compared.
    """
    a = f"{MEAN.replace('(x)', '(v)')} c = Less (m, high)"
    others = a.replace("high", "higher"), a.replace("Mean", "Sum"), a.replace("Less (m, high)", "Greater (high, m)")
    mine, *theirs = (HEAD.replace("[", '["own" : 1, ', 1) + around.replace("COMPARED", text) for text in (a, *others))
    assert [own_check(tmp_path, mine, b).status for b in theirs] == ["inconclusive", "inconclusive", "equal"]


def test_a_scan_over_other_axes_is_compared(tmp_path: Path) -> None:
    """Bodies of Scans over different axes are compared on the slices that each is given."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[4, 4] x) => (y) <float high = {2000}> {
        TURNED y = Scan <num_scan_inputs = 1, AXES, body = l (float[4] NAME) => (w) {
            m = ReduceMean <keepdims = 0> (NAME) COMPARED w = Where (c, NAME, m) }> (READ) }"""
    forms = [
        {"TURNED": "", "AXES": "scan_input_axes = [1], scan_input_directions = [1]", "NAME": "v", "READ": "x"},
        {"TURNED": "t = Transpose (x)", "AXES": "scan_input_directions = [1]", "NAME": "u", "READ": "t"},
    ]
    models = []
    for form, asked in zip(forms, ("c = Less (m, high)", "c = Greater (high, m)")):
        models.append(text.replace("COMPARED", asked))
        for key, value in form.items():
            models[-1] = models[-1].replace(key, value)
    found = own_check(tmp_path, *models)
    assert found.status in ("equal", "verified in pieces"), found.message
