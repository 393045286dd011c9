"""Ifs replaced by one branch in a rewrite: the branch is compared as the cases run it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from onnxopt import VerifyOptions
from onnxopt.verification import Verification
from onnxopt.verification.inputs.cases import FLAGS as FLAG_CASES
from onnxopt.verification.inputs.cases import turned_flags
from onnxopt.verification.inputs.plan import InputSpec, Plan
from tests.verification.pairs import gaps, verdict

NUMBERS = [str((i * 7 % 11 - 5) / 4) for i in range(100)]
HEAD = f"""<ir_version: 9, opset_import: ["" : 17]>
g (float[S, 4, M] x, float[2, S, 5] h) => (float[A, B, C] y)
<float[1, 20, 4] r = {{{", ".join(NUMBERS[:80])}}}, float[1, 20, 5] g0 = {{{", ".join(NUMBERS)}}},
 int64[1] first = {{0}}, int64[1] single = {{1}}, int64[1] last = {{2}}, int64 two = {{2}}>"""
# A cell as scripted by torch: one step is squeezed, and a missing batch is added.
SQUEEZED = """m = Shape <start = 2> (x) c = Equal (m, single)
u = If (c) <then_branch = a () => (s) { s = Squeeze (x, last) }, else_branch = b () => (i) { i = Identity (x) }>"""
CELL = """z = Shape (u) k = Size (z) e = Equal (k, two) n = Not (e)
v = If (n) <then_branch = d () => (p) { p = Unsqueeze (u, first) }, else_branch = f () => (q) { q = Identity (u) }>
w = Unsqueeze (v, first) t, l = LSTM <hidden_size = 5> (w, r, g0)"""
STATE = "o = Shape <end = 1> (h) b0 = Squeeze (o) b1 = Cast <to = 9> (b0)"
NESTED = f"""y = If (b1) <then_branch = j () => (l0) {{ {CELL} l0 = Neg (l) }},
else_branch = j0 () => (l1) {{ {CELL} l1 = Abs (l) }}>"""
PLAIN = "u = Squeeze (x, last) w = Unsqueeze (u, first) t, l = LSTM <hidden_size = 5> (w, r, g0)"


def judge(folder: Path, one: str, other: str, head: str = HEAD) -> tuple[str, str]:
    options = VerifyOptions(dims={"M": 1} if "M]" in head else {})
    v = verdict(folder, *(f"{head} {{ {nodes} }}" for nodes in (one, other)), options=options)
    return v.status, v.message


def test_nested_ifs_may_be_inlined(tmp_path: Path) -> None:
    status, message = judge(tmp_path, f"{SQUEEZED} {STATE} {NESTED}", f"{PLAIN} y = Neg (l)")
    assert status == "verified in pieces", message


def test_sizes_are_known_once_all_branches_are_in_place(tmp_path: Path) -> None:
    """Sizes are known once all taken branches are inlined.

    The shape of an If inside an If is unknown before, if its branches differ in rank.
    """
    inner = CELL.partition("w =")[0]
    nested = f"y0 = If (b1) <then_branch = j () => (l0) {{ {inner} l0 = Neg (v) }}, "
    nested += f"else_branch = j0 () => (l1) {{ {inner} l1 = Abs (v) }}>"
    column = "col = Constant <value = float[4, 1] {1, -2, 3, 0.5}> () k2 = MatMul (y0, col)"
    size = "one = Constant <value_int = 1> () z2 = Shape (k2) d2 = Gather (z2, one)"
    only = "e2 = Equal (d2, one) y1 = If (e2) <then_branch = v2 () => (v0) { v0 = Neg (k2) }, "
    only += "else_branch = w2 () => (w0) { w0 = Abs (k2) }> y = Unsqueeze (y1, first)"
    status, message = judge(
        tmp_path,
        f"{SQUEEZED} {STATE} {nested} {column} {size} {only}",
        f"u = Squeeze (x, last) y0 = Neg (u) {column} y1 = Neg (k2) y = Unsqueeze (y1, first)",
        HEAD.replace("4, M]", "4, 1]"),
    )
    assert status == "verified in pieces", message


@pytest.mark.parametrize("wrong", ["y = Abs (l)", "k = Neg (l) y = Neg (k)"])
def test_an_if_replaced_by_the_wrong_branch_is_found(wrong: str, tmp_path: Path) -> None:
    status, message = judge(tmp_path, f"{SQUEEZED} {STATE} {NESTED}", f"{PLAIN} {wrong}")
    assert status == "different", message


OPEN = """<ir_version: 9, opset_import: ["" : 17]>
g (float[S, 4] x) => (float[A, B] y) <float high = {100}, int64[1] first = {0}, float zero = {0}>"""
UNTAKEN = """t = ReduceMax <keepdims = 0> (x) c = Greater (t, high)
y = If (c) <then_branch = a () => (p) { p = Neg (x) }, else_branch = b () => (q) {
  m = ReduceSum <keepdims = 0> (x) d = Greater (m, high)
  n = If (d) <then_branch = e () => (r) { r = Neg (x) }, else_branch = f () => (s) { s = Exp (x) }>
  q = Abs (n) }>"""


def test_branches_that_other_data_may_take_are_named(tmp_path: Path) -> None:
    found = verdict(tmp_path, *(f"{OPEN} {{ {nodes} }}" for nodes in (UNTAKEN, "n = Exp (x) y = Abs (n)")))
    assert found.status == "inconclusive", found.message
    assert {"the then branch on `c` was never taken", "the then branch on `d` was never taken"} <= {*gaps(found)}


def test_an_if_of_the_result_only_is_inconclusive(tmp_path: Path) -> None:
    only = "t = ReduceMax <keepdims = 0> (x) c = Greater (t, high) n = Exp (x) y = If (c) <"
    only += "then_branch = a () => (p) { p = Neg (x) }, else_branch = b () => (q) { q = Abs (n) }>"
    status, message = judge(tmp_path, "n = Exp (x) y = Abs (n)", only, OPEN)
    assert status == "inconclusive", message


FLAGS = """<ir_version: 9, opset_import: ["" : 17]> g (float[S, 4] x, bool f, bool g) => (float[A, B] y)"""
TWO = """u = If (f) <then_branch = a () => (p) { p = Neg (x) }, else_branch = b () => (q) { q = Abs (x) }>
v = If (FLAG) <then_branch = d () => (r) { r = Exp (x) }, else_branch = e () => (s) { s = Sin (x) }> y = Add (u, v)"""
ONE = """y = If (f) <then_branch = a () => (p) { p0 = Neg (x) p1 = Exp (x) p = Add (p0, p1) },
else_branch = b () => (q) { q0 = Abs (x) q1 = Sin (x) q = Add (q0, q1) }>"""


def alike(folder: Path, one: str, other: str) -> Verification:
    """Return the verdict in two cases that give both flags the same value."""
    options = VerifyOptions(cases=("random", "uniform"))
    return verdict(folder, f"{FLAGS} {{ {one} }}", f"{FLAGS} {{ {other} }}", options)


@pytest.mark.parametrize("wrong", [TWO.replace("FLAG", "f"), ONE])
def test_ifs_with_flags_equal_in_every_case_are_not_paired(wrong: str, tmp_path: Path) -> None:
    """Ifs on two flags that are equal in every case are not paired.

    Each branch is taken, always together with the other If's.
    """
    found = alike(tmp_path, TWO.replace("FLAG", "g"), wrong)
    assert found.status == "inconclusive", found.message


@pytest.mark.parametrize("wrong", [TWO.replace("FLAG", "f"), ONE])
def test_flags_are_told_apart(wrong: str, tmp_path: Path) -> None:
    status, message = judge(tmp_path, TWO.replace("FLAG", "g"), wrong, FLAGS)
    assert status == "different", message


def test_one_flag_in_place_of_two_is_found(tmp_path: Path) -> None:
    one, other = (f"{c} n = Neg (x) y = Where (c, x, n)" for c in ("c = And (f, g)", "c = Identity (f)"))
    status, message = judge(tmp_path, one, other, FLAGS)
    assert status == "different", message


THREE = FLAGS.replace("bool g", "bool h, bool g")


@pytest.mark.parametrize("head", [FLAGS, THREE], ids=["two", "three"])
def test_flags_at_any_distance_are_told_apart(head: str, tmp_path: Path) -> None:
    one, other = (f"n = Neg (x) m = Where (f, x, n) e = Exp (m) y = Where ({c}, m, e)" for c in ("g", "f"))
    status, message = judge(tmp_path, one, other, head)
    assert status == "different", message


@pytest.mark.parametrize(("count", "cases"), [(1, 0), (2, 2), (3, 6), (4, 4), (5, 6), (8, 6)])
def test_every_two_flags_differ_in_some_case(count: int, cases: int) -> None:
    plan = Plan([InputSpec(str(k), "bool") for k in range(count)])
    turned = [{*found} for r in FLAG_CASES if (found := turned_flags(r, plan))]
    assert len(turned) == cases
    for one, other in itertools.permutations(plan.flags, 2):
        assert any(one in flags and other not in flags for flags in turned)
    if count == 3:
        assert len({frozenset(flags) for flags in turned}) == cases  # with none and all, every combination


def test_one_of_three_flags_alone_is_a_case(tmp_path: Path) -> None:
    """A guard without one of its terms is "different".

    Only a case with this flag unlike the other two shows the fault.
    """
    rest = "n = Neg (x) y = Where (d, x, n)"
    one, other = (f"u = Not (g) c = And (h, u) {last} {rest}" for last in ("d = And (c, f)", "d = Identity (c)"))
    status, message = judge(tmp_path, one, other, THREE)
    assert status == "different", message


def test_two_ifs_of_one_flag_may_be_one(tmp_path: Path) -> None:
    status, message = judge(tmp_path, TWO.replace("FLAG", "f"), ONE, FLAGS)
    assert status in ("equal", "verified in pieces"), message


NAMESAKES = """y = If (f) <then_branch = a () => (p) { THEN p = Abs (k) },
else_branch = b () => (q) { ELSE q = Sin (k) }>"""
CHOICE = "k = If (g) <then_branch = i () => (t) { t = Neg (x) }, else_branch = j () => (u) { u = Exp (x) }>"


def test_branches_of_ifs_with_one_name_are_counted_apart(tmp_path: Path) -> None:
    """A branch is not seen by a run of an If of this name in another body.

    One body takes the then branch of `k`, the other the else branch.
    """
    one = NAMESAKES.replace("THEN", CHOICE).replace("ELSE", CHOICE)
    other = NAMESAKES.replace("THEN", "k = Neg (x)").replace("ELSE", "k = Exp (x)")
    found = alike(tmp_path, one, other)
    assert found.status == "inconclusive", found.message


OVERRIDDEN = """<ir_version: 9, opset_import: ["" : 17]>
g (float[K, 4] x, int64[2] to = {2, 6}, int64[1] at = {1}) => (float[A, B] y) <int64[1] some = {2}, int64[1] four = {4}>
{ MADE y = If (c) <then_branch = a () => (p) { p = Neg (r) }, else_branch = b () => (q) { q = Exp (r) }> }"""


@pytest.mark.parametrize(
    "made",
    [
        "r = Reshape (x, to) s = Shape <start = 0, end = 1> (r) c = Equal (s, some)",
        "r = Identity (x) t = Shape (x) s = Gather (t, at) c = Equal (s, four)",
    ],
)
def test_an_overridable_initializer_excludes_no_branch(made: str, tmp_path: Path) -> None:
    """A branch on an overridable initializer needs evidence: callers may override the value."""
    one = OVERRIDDEN.replace("MADE", made)
    other = re.sub("y = If .*", "y = Neg (r) }", one)
    found = verdict(tmp_path, one, other, VerifyOptions(dims={"K": 3}))
    assert found.status == "inconclusive", found.message


NO_PRODUCT = """<ir_version: 9, opset_import: ["" : 17]>
g (float[K, L] x, int64[2] to = {-1, 3}) => (float[A, B] y)
<float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[1] much = {1000000}>"""


def test_an_overridable_weight_makes_no_branch_impossible(tmp_path: Path) -> None:
    one = """n = ReduceSum <keepdims = 0> (x) c = Greater (n, much) y = If (c) <
      then_branch = a () => (p) { r = Reshape (x, to) p = MatMul (r, w) }, else_branch = b () => (q) { q = Exp (x) }>"""
    status, message = judge(tmp_path, one, "y = Exp (x)", NO_PRODUCT)
    assert status == "inconclusive", message


CHOSEN = f"""<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 1, T] x, int64 rate) => (float[A, B, C] y)
<float[1, 1, 3] short = {{1, 2, 3}}, float[1, 1, 40] long = {{{", ".join(NUMBERS[:40])}}}, int64 fast = {{16000}}>"""
RATES = """c = Equal (rate, fast) y = If (c) <
  then_branch = a () => (p) { k = Conv (x, long) p = WRONG (k) }, else_branch = b () => (q) { q = Conv (x, short) }>"""


@pytest.mark.parametrize(("made", "status"), [("Relu", "equal"), ("Abs", "different")])
def test_accepted_sizes_are_searched_for_with_each_flag(made: str, status: str, tmp_path: Path) -> None:
    """Sizes are searched for with each value of the flag.

    Sizes below 40 are too small for one rate, and large enough for the other.
    """
    one, other = (RATES.replace("WRONG", op) for op in ("Relu", made))
    found = verdict(tmp_path, f"{CHOSEN} {{ {one} }}", f"{CHOSEN} {{ {other} }}")
    assert found.status == status, found.message
