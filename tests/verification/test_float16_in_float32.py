"""Losses in float16 that a runtime hides by computing in float32: equal in this runtime, different in another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.verification import Verification, VerifyOptions
from tests.verification.pairs import verdict, with_constants

SAYS = "differs where float16 is rounded, which this runtime computes in float32"
WIDE = VerifyOptions(cases=("random", "extremes"))


def judge(a: str, b: str, kind: str, tmp_path: Path, options: VerifyOptions | None = WIDE) -> Verification:
    w = np.random.default_rng(0).standard_normal((64, 64)) / 8
    kept = np.float16 if kind == "float16" else np.float32
    weights = {"w": w.astype(kept), "s": np.ones(64, kept), "b": np.zeros(64, kept), "k": np.float32(0.001)}
    head = f'<ir_version: 8, opset_import: ["" : 17]> g ({kind}[n, 64] x) => ({kind}[n, m] y)'
    return verdict(tmp_path, *(with_constants(f"{head} {{ {body} }}", weights) for body in (a, b)), options=options)


@pytest.mark.parametrize("options", [None, WIDE], ids=["own", "cases"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("y = MatMul (x, w)", "h = Cast <to = 10> (x) v = Cast <to = 10> (w) z = MatMul (h, v) y = Cast <to = 1> (z)"),
        ("y = Softmax <axis = -1> (x)", "h = Cast <to = 10> (x) z = Softmax <axis = -1> (h) y = Cast <to = 1> (z)"),
    ],
    ids=["product", "Softmax"],
)
def test_a_result_rounded_to_float16_is_inconclusive(
    a: str, b: str, options: VerifyOptions | None, tmp_path: Path
) -> None:
    v = judge(a, b, "float", tmp_path, options)
    assert (v.status, SAYS in v.message) == ("inconclusive", True), v.message


SUM = "f = Cast <to = 1> (x) q = Mul (f, f) t = ReduceSumSquare <axes = [1]> (q) r = Mul (t, k) l = Log (r)"


def test_an_overflow_without_the_float32_part_is_inconclusive(tmp_path: Path) -> None:
    a = f"{SUM} y = Cast <to = 10> (l)"
    b = a.replace("f = Cast <to = 1> (x) q = Mul (f, f)", "p = Mul (x, x)").replace("(q)", "(p)")
    b = b.replace("r = Mul (t, k)", "u = Cast <to = 1> (t) r = Mul (u, k)")
    v = judge(a, b, "float16", tmp_path)
    assert (v.status, SAYS in v.message) == ("inconclusive", True), v.message
    assert judge(a, a, "float16", tmp_path).status == "equal"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("h = MatMul (x, w) m = Mul (h, s) y = Add (m, b)", "y = MatMul (x, w)"),
        ("f = Cast <to = 1> (x) t = Transpose (f) u = Transpose (t) y = Cast <to = 10> (u)", "y = Identity (x)"),
        ("h = MatMul (x, w) f = Cast <to = 1> (h) r = Relu (f) y = Cast <to = 10> (r)",
         "h = MatMul (x, w) y = Relu (h)"),
    ],
    ids=["factor of one", "moves", "Relu"],
)  # fmt: skip
def test_equal_roundings_are_right(a: str, b: str, tmp_path: Path) -> None:
    v = judge(a, b, "float16", tmp_path)
    assert v.status in ("equal", "verified", "verified in pieces"), v.message
