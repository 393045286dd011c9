"""A bound beyond all cases that differs in B: the verdict is not "equal"."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.verification import Verification, VerifyOptions
from tests.verification.pairs import verdict, with_constants

NUMBERS = {
    "tiny": 1e-12,
    "small": 1e-9,
    "zero": 0,
    "one": 1,
    "two": 2,
    "three": 3,
    "six": 6,
    "thousand": 1000,
    "more": 2000,
    "third": 1 / 6,
    "ninth": 1e-12 / 9,
    "ones": [1, 1, 1, 1],
}
OPTIONS = pytest.mark.parametrize("options", [None, VerifyOptions(cases=("random", "ones"))], ids=["own", "cases"])


def judge(tmp_path: Path, a: str, b: str, options: VerifyOptions | None) -> Verification:
    weights = {"w": np.random.default_rng(0).standard_normal((4, 4)) / 2} | NUMBERS
    weights["w6"] = weights["w"] / 6
    texts = (f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (y) {{ {body} }}' for body in (a, b))
    constants = {name: np.asarray(array, np.float32) for name, array in weights.items()}
    return verdict(tmp_path, *(with_constants(text, constants) for text in texts), options=options)


BRANCH = """h = ReduceSum <keepdims = 0> (x) c = Greater (h, thousand)
    y = If (c) <then_branch = t () => (p) { p = Mul (x, two) }, else_branch = e () => (q) { q = Mul (x, three) }>"""


@OPTIONS
@pytest.mark.parametrize(
    ("a", "b", "value"),
    [
        ("h = MatMul (x, w) y = Clip (h, zero, thousand)", ("thousand", "more"), "y"),
        ("h = MatMul (x, w) y = Min (h, thousand)", ("Min (h, thousand)", "Identity (h)"), "y"),
        ("h = MatMul (x, w) k = Clip (h, zero, thousand) y = MatMul (k, w)", ("thousand", "more"), "k"),
        ("h = MatMul (x, w) k = Greater (h, thousand) y = Where (k, x, h)", ("thousand", "more"), "k"),
        (BRANCH, ("thousand", "more"), "c"),
    ],
    ids=["Clip", "one has none", "inside", "comparison", "branch"],
)
def test_a_changed_bound_beyond_all_cases_is_inconclusive(
    a: str, b: tuple[str, str], value: str, options: VerifyOptions | None, tmp_path: Path
) -> None:
    v = judge(tmp_path, a, a.replace(*b), options)
    assert (v.status, any(r.startswith(f"`{value}` has other bounds") for r in v.reasons)) == ("inconclusive", True)
    assert judge(tmp_path, a, a, options).status in ("equal", "verified in pieces")


NORMED = """m = ReduceMean <axes = [1]> (x) d = Sub (x, m) q = Mul (d, d) v = ReduceMean <axes = [1]> (q)
    e = Add (v, tiny) s = Sqrt (e) y = Div (d, s)"""
LONG = "n = ReduceL2 <axes = [1]> (x) e = Max (n, tiny) y = Div (x, e)"
FUSED = "y = LayerNormalization <epsilon = {}> (x, ones)"


@OPTIONS
@pytest.mark.parametrize(
    ("a", "b", "value"),
    [
        (NORMED, NORMED.replace("tiny", "small"), "e"),
        (NORMED, FUSED.format("1.0e-9"), "y"),
        (FUSED.format("1.0e-12"), FUSED.format("1.0e-9"), "y"),
        (LONG, LONG.replace("tiny", "small"), "e"),
    ],
    ids=["written out", "fused", "attribute", "length"],
)
def test_a_changed_epsilon_without_effect_in_any_case_is_inconclusive(
    a: str, b: str, value: str, options: VerifyOptions | None, tmp_path: Path
) -> None:
    v = judge(tmp_path, a, b, options)
    assert (v.status, any(r.startswith(f"`{value}` has other bounds") for r in v.reasons)) == ("inconclusive", True)


@OPTIONS
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (NORMED, FUSED.format("1.0e-12")),
        (f"z = Mul (x, three) {NORMED.replace('(x', '(z')}", NORMED.replace("tiny", "ninth")),
    ],
    ids=["fused", "scaled"],
)
def test_an_equal_epsilon_in_another_form_is_right(
    a: str, b: str, options: VerifyOptions | None, tmp_path: Path
) -> None:
    v = judge(tmp_path, a, b, options)
    assert v.status in ("equal", "verified", "verified in pieces"), v.message


WHOLE = "z = Constant <value = int8 {0}> () k = MatMul (x, w) r = Round (k) h = Mul (r, third)"


@OPTIONS
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("h = MatMul (x, w) s = Add (h, three) c = Clip (s, zero, six) m = Mul (h, c) y = Div (m, six)",
         "h = MatMul (x, w) y = HardSwish (h)"),
        ("h = MatMul (x, w) p = Clip (h, zero, thousand) y = Clip (p, zero, six)",
         "h = MatMul (x, w) y = Clip (h, zero, six)"),
        ("h = MatMul (x, w) c = Clip (h, zero, six) y = Mul (c, third)",
         "h = MatMul (x, w6) y = Clip (h, zero, one)"),
        ("h = MatMul (x, w) s = Sigmoid (h) c = Clip (s, zero, one) y = MatMul (c, w)",
         "h = MatMul (x, w) s = Sigmoid (h) y = MatMul (s, w)"),
        ("h = Abs (x) c = Clip (h, zero, six) y = MatMul (c, w)", "h = Abs (x) c = Min (h, six) y = MatMul (c, w)"),
        ("h = MatMul (x, w) r = Relu (h) k = Less (r, zero) c = Cast <to = 1> (k) y = Add (c, r)",
         "h = MatMul (x, w) r = Relu (h) z = Sub (r, r) y = Add (z, r)"),
        (f"{WHOLE} t = Transpose (h) q = QuantizeLinear (t, third, z) l = DequantizeLinear (q, third, z)"
         " y = Min (l, thousand)",
         f"{WHOLE} p = QuantizeLinear (h, third, z) d = DequantizeLinear (p, third, z) t = Transpose (d)"
         " q = QuantizeLinear (t, third, z) y = DequantizeLinear (q, third, z)"),
    ],
    ids=["formula", "chain", "scale that moved", "bounds of a Sigmoid", "sign", "sign that is kept", "moved before"],
)  # fmt: skip
def test_equivalent_bounds_are_right(a: str, b: str, options: VerifyOptions | None, tmp_path: Path) -> None:
    v = judge(tmp_path, a, b, options)
    assert v.status in ("equal", "verified", "verified in pieces"), v.message
