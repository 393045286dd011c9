"""Ifs of one model only: equal branches leave nothing to decide."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification import Verification, Verifier, VerifyOptions
from onnxopt.verification.two_files import compare_files

HEAD = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, 4] x, bool b) => (y)
    <float h = {0.5}, float two = {2}, float far = {50}, int64 fifty = {50}>"""
NEVER = "s = ReduceSum <keepdims = 0> (x) c = Less (s, far)"
AGREE = ("equal", "verified in pieces")


def asking(then: str, other: str, c: str = "c", y: str = "y") -> str:
    return f"""{y} = If ({c}) <then_branch = t{y} () => (p{y}) {{ p{y} = {then} }},
        else_branch = e{y} () => (q{y}) {{ q{y} = {other} }}>"""


def both_ways(folder: Path, one: str, other: str) -> list[Verification]:
    """Return the verdicts of the own check and of `onnxopt verify`, in both directions."""
    paths = [folder / "a.onnx", folder / "b.onnx"]
    for path, text in zip(paths, (one, other)):
        onnx.save(parser.parse_model(f"{HEAD} {{ {text} }}"), path)
    found = []
    for a, b in (paths, paths[::-1]):
        with Verifier(a) as verifier:
            verifier.submit(b)
            found.append(verifier.finish())
        found.append(compare_files(a, b, VerifyOptions(cases=("all",))))
    return found


@pytest.mark.parametrize("condition", [NEVER, "c = Not (b)"], ids=["never", "asked for"])
@pytest.mark.parametrize("other", ["Add (x, h)", "Add (h, x)"], ids=["the same", "in another order"])
def test_an_if_of_equal_branches_equals_its_branch(other: str, condition: str, tmp_path: Path) -> None:
    one = f"{condition} m = Add (x, h) y = Mul (m, two)"
    asked = f"{condition} {asking('Add (x, h)', other, y='m')} y = Mul (two, m)"
    found = both_ways(tmp_path, one, asked)
    assert [v.status for v in found if v.status not in AGREE] == [], [v.message for v in found]


@pytest.mark.parametrize("other", ["Sub (x, h)", "Clip (x, h, far)"])
def test_an_untaken_branch_of_one_model_does_not_pass(other: str, tmp_path: Path) -> None:
    found = both_ways(tmp_path, "y = Add (x, h)", f"{NEVER} {asking('Add (x, h)', other)}")
    assert all(v.status in ("different", "inconclusive") for v in found[1:]), [v.message for v in found]


@pytest.mark.parametrize(
    ("one", "other"),
    [("Sub (x, h)", "Sub (h, x)"), ("Greater (x, h)", "Greater (h, x)"), ("Less (x, h)", "Greater (x, h)")],
)
def test_a_swapped_operand_order_in_an_untaken_branch_is_found(one: str, other: str, tmp_path: Path) -> None:
    """A swapped operand order in an untaken branch is "different": the nodes alone show the fault."""
    texts = (
        f"{NEVER} {asking('Relu (x)', 'Cast <to = 1> (k)')}".replace("{ qy", f"{{ k = {k} qy") for k in (one, other)
    )
    found = both_ways(tmp_path, *texts)
    assert {v.status for v in found} == {"different"}, [v.message for v in found]


def test_a_comparison_with_swapped_operands_is_the_same(tmp_path: Path) -> None:
    texts = (f"s = ReduceSum <keepdims = 0> (x) k = {c} {asking('Relu (x)', 'Neg (x)', 'k')}" for c in
             ("Less (s, far)", "Greater (far, s)"))  # fmt: skip
    found = both_ways(tmp_path, *texts)
    assert [v.status for v in found if v.status not in AGREE] == [], [v.message for v in found]


def test_a_condition_may_be_computed_inside_or_outside_the_branch(tmp_path: Path) -> None:
    """A condition captured by a body in one model, and computed inside the body in the other, is paired by name."""
    size = "r = ReduceSum <keepdims = 0> (x) s = Cast <to = 7> (r)"
    inner = asking("Add (x, h)", "Neg (x)", "d", "a")
    outer = "y = If (b) <then_branch = t () => (a) {{ {} }}, else_branch = e () => (z) {{ z = Abs (x) }}>"
    inside = outer.format(f"c = Less (s, fifty) d = Not (c) {inner}")
    found = both_ways(tmp_path, f"{size} {inside}", f"{size} d = GreaterOrEqual (s, fifty) {outer.format(inner)}")
    assert [v.status for v in found if v.status not in AGREE] == [], [v.message for v in found]
