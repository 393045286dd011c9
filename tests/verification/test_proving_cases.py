"""Cases that may accuse but prove nothing: at zero, products agree with any factor."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt.verification import PROVEN, VerifyOptions
from tests.verification.pairs import gaps, own_check, verdict

HEAD = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, 8] x) => (y)
    <float half = {0.5}, float two = {2}, float three = {3}, int64[2] nothing = {0, 8}>"""
AT_ZERO = "s = ReduceSumSquare <keepdims = 0> (x) c = Less (s, half)"
BRANCHES = "If (c) <then_branch = t () => (p) {{ {} }}, else_branch = e () => (q) {{ q = Neg (x) }}>"
# At zero no row is left; with other numbers the branch cannot be run.
ROWS = "r = ReduceSumSquare <axes = [1], keepdims = 0> (x) b = Cast <to = 9> (r) k = Compress <axis = 0> (x, b)"
FITS = "v = {} z = Reshape <allowzero = 1> (k, nothing) p = Concat <axis = 0> (v, z)"
# Numbers near a breakpoint, which get a case of their own.
EDGES = "o = ReduceSumSquare <axes = [1]> (x) m = {} a = Abs (x) l = Add (a, m) d = Greater (l, half)"
ALL = VerifyOptions(cases=("all",))


def plain(scaled: str) -> str:
    return f"{HEAD} {{ {AT_ZERO} y = {BRANCHES.format(f'p = {scaled}')} }}"


def fitting(scaled: str, *, edges: str = "Mul (o, two)") -> str:
    """Return a model whose branch runs at zero only."""
    given = f"{EDGES.format(edges)} w = Where (d, x, two) u = {BRANCHES.format(FITS.format(scaled))}"
    return f"{HEAD} {{ {AT_ZERO} {ROWS} {given} y = Concat <axis = 0> (w, u) }}"


def test_a_wrong_factor_in_a_branch_taken_at_zero_only_is_found(tmp_path: Path) -> None:
    a, b = plain("Mul (x, two)"), plain("Mul (x, three)")
    for found in (own_check(tmp_path, a, b), verdict(tmp_path, a, b, ALL)):
        assert (found.status, [p.value for p in found.places]) == ("different", ["p"]), found.message


def test_an_equivalent_branch_taken_at_zero_only_is_right(tmp_path: Path) -> None:
    a, b = plain("Mul (x, two)"), plain("Add (x, x)")
    for found in (own_check(tmp_path, a, b), verdict(tmp_path, a, b, ALL)):
        assert found.status in PROVEN, found.message


def test_a_branch_run_at_zero_only_is_inconclusive(tmp_path: Path) -> None:
    """A branch run in the further case of zeros only is inconclusive, also if this case is examined alone."""
    a, b = fitting("Mul (x, two)"), fitting("Mul (x, three)")
    for found in (own_check(tmp_path, a, b), verdict(tmp_path, a, b, ALL)):
        assert "zeros" in {c.name for c in found.cases}
        assert found.status == "inconclusive", found.message
        assert gaps(found) == ["the then branch on `c` was never taken"]
    assert own_check(tmp_path, a, a).status in PROVEN


def test_a_decision_changed_in_the_case_of_zeros_only_is_inconclusive(tmp_path: Path) -> None:
    """A decision that differs in the case of zeros only is inconclusive.

    All elements differ there, more than the share that counts as next to nothing.
    """
    a, b = (fitting("Mul (x, two)", edges=text) for text in ("Mul (o, two)", "Mul (o, three)"))
    found = verdict(tmp_path, a, b, ALL)
    assert (found.status, gaps(found)) == ("inconclusive", ["`d` is nearly constant in each case"]), found.message
    assert verdict(tmp_path, a, fitting("Mul (x, two)", edges="Add (o, o)"), ALL).status in PROVEN


@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_a_case_that_proves_nothing_alone_is_inconclusive(name: str, tmp_path: Path) -> None:
    a, b = (f"{HEAD} {{ s = Add (x, half) y = Mul (s, {f}) }}" for f in ("two", "two"))
    options = VerifyOptions(cases=(name,))
    found = verdict(tmp_path, a, b, options)
    why = "all cases have zeros, ones or a batch of one, on which wrong results agree as well"
    assert (found.status, found.reasons) == ("inconclusive", [why])
    assert verdict(tmp_path, a, b.replace("two)", "three)"), options).status == "different"
    assert verdict(tmp_path, a, b, VerifyOptions(cases=("random", name))).status in PROVEN


def test_an_overridable_initializer_as_output_needs_no_proof(tmp_path: Path) -> None:
    """An overridable initializer that is also an output needs no proof.

    A lookup of this output, an input when overridden, was a KeyError.
    """
    signature = "g (float[2] x, float[2] k) => (float[2] y, float[2] k) <float[2] k = {1, 2}>"
    head = f'<ir_version: 8, opset_import: ["" : 17]> {signature}'
    a = f"{head} {{ z = Mul (x, k) w = Identity (z) y = Floor (w) }}"
    assert own_check(tmp_path, a, a.replace("Identity", "Abs")).status == "different"
    assert own_check(tmp_path, a, a.replace("w = Identity (z) y = Floor (w)", "y = Floor (z)")).status == "equal"
