"""A Loop without iterations in any case: its body is compared on its own, and so is the number of iterations."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt.verification import PROVEN, Verification
from tests.verification.pairs import gaps, own_check

HEAD = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, 8] x) => (v, w)
    <float high = {2000}, float two = {2}, float three = {3}, bool yes = {1}, int64 none = {0}, int64 some = {3}>"""
# Ten values that are not zero, beside the scan output.
OTHERS = " ".join(f"a{k + 1} = Cos (a{k})" for k in range(10)).replace("a0", "x", 1)
TURNS = "s = ReduceSum <keepdims = 0> (x) p = Greater (s, high) t = Where (p, some, none)"
LOOP = """y, z = Loop (t, yes, x) <body = l (int64 i, bool go, float[n, 8] before) => (on, after, k)
    { on = Identity (go) after = Neg (before) k = Mul (before, two) }>"""
A = f"{TURNS} {LOOP} {OTHERS} v = Add (a10, y) w = Neg (z)"


def own(folder: Path, b: str) -> Verification:
    """Return the verdict of the optimizer's own check."""
    return own_check(folder, *(f"{HEAD} {{ {text} }}" for text in (A, b)))


def test_the_body_of_a_loop_without_iterations_is_compared(tmp_path: Path) -> None:
    found = own(tmp_path, A.replace("Mul (before, two)", "Add (before, before)"))
    assert found.status in PROVEN, found.message
    wrong = own(tmp_path, A.replace("Mul (before, two)", "Mul (before, three)"))
    assert (wrong.status, [p.value for p in wrong.places]) == ("different", ["k"]), wrong.message


@pytest.mark.parametrize("later", ["Add (two, i_)", "Mul (two, i_)"], ids=["with the turn", "at the first turn alone"])
def test_a_fault_in_later_iterations_does_not_pass(later: str, tmp_path: Path) -> None:
    body = f"i_ = Cast <to = 1> (i) by = {later} k = Mul (before, by)"
    found = own(tmp_path, A.replace("k = Mul (before, two)", body))
    assert found.status in ("inconclusive", "different"), found.message


def test_a_changed_iteration_count_is_inconclusive(tmp_path: Path) -> None:
    """A changed iteration count behind a constant condition is inconclusive.

    The condition selects the count, and no number shows the count.
    """
    found = own(tmp_path, A.replace("t = Where (p, some, none)", "r = Where (p, some, none) t = Add (r, r)"))
    assert found.status == "inconclusive", found.message
    assert "`t` is nearly constant in each case" in gaps(found), found.message
    right = own(tmp_path, A.replace("t = Where (p, some, none)", "r = Where (p, some, none) t = Add (r, none)"))
    assert right.status in PROVEN, right.message
    followed = A.replace(
        "t = Where (p, some, none)", "q = Not (p) u = Not (q) c = And (p, u) t = Where (c, some, none)"
    )
    assert own(tmp_path, followed).status in PROVEN


NEVER = """<ir_version: 8, opset_import: ["" : 19]> g (float[8, 4] x) => (float[a, b, c] v)
    <int64 two = {2}, bool no = {0}> {
    u, v = Loop (two, no, x) <body = l (int64 i, bool go, float[8, 4] before) => (on, after, k)
        { on = Identity (go) after = Identity (before) STACKED }>
}"""


@pytest.mark.parametrize(
    ("stacked", "proven"),
    [("k = Abs (x)", True), ("m = Abs (x) k = Transpose (m)", False)],
    ids=["what a piece knows no shape of", "another shape"],
)
def test_empty_scan_outputs_may_differ_in_shape(stacked: str, proven: bool, tmp_path: Path) -> None:
    """An empty scan output may differ in shape between whole model and piece.

    A has inferred dims of the body and gives [0, 8, 4]; a piece of B gives [0].
    """
    texts = "j = Cast <to = 1> (before) k = Abs (j)", stacked
    found = own_check(tmp_path, *(NEVER.replace("STACKED", text) for text in texts))
    assert (found.status != "different") is proven, found.message


@pytest.mark.parametrize(
    ("stacked", "proven"),
    [("k = Abs (x)", True), ("m = Abs (x) k = Unsqueeze (m, axis)", False)],
    ids=["dims that the original does not know", "another rank"],
)
def test_a_result_may_know_dims_of_an_empty_scan_output(stacked: str, proven: bool, tmp_path: Path) -> None:
    """A state without known dims gives [0, 0, 0] in A. In B, the body reads the initial value and gives [0, 8, 4]."""
    model = NEVER.replace("float[8, 4] before", "float[p, q] before").replace(
        "no = {0}", "no = {0}, int64[1] axis = {0}"
    )
    found = own_check(tmp_path, *(model.replace("STACKED", text) for text in ("k = Abs (before)", stacked)))
    assert (found.status != "different") is proven, found.message


def test_a_function_may_stack_an_empty_output(tmp_path: Path) -> None:
    """A Loop without iterations in a function has dims that only the result knows."""
    body = """{ two = Constant <value = int64 {2}> () no = Constant <value = bool {0}> ()
        u, v = Loop (two, no, x) <body = l (int64 i, bool go, float[p, q] before) => (on, after, k)
            { on = Identity (go) after = Identity (before) k = Abs (STACKED) }> }"""
    model = f"""<ir_version: 9, opset_import: ["" : 19, "own" : 1]> g (float[8, 4] x) => (float[a, b, c] v) {{
        v = own.never (x) }} <domain: "own", opset_import: ["" : 19]> never (x) => (v) {body}"""
    found = own_check(tmp_path, *(model.replace("STACKED", name) for name in ("before", "x")))
    assert found.status != "different", found.message
