"""Errors in a small term of a sum, and right results beside such terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.verification import DIFFERENT, PROVEN, Verification, VerifyOptions
from tests.verification.pairs import verdict, with_constants

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 32] x) => (float[4, 32] y)'
BRANCH = "m = MatMul (x, w) h = Add (m, bias) e = Erf (h) p = MatMul (e, v) s = Mul (p, scale) y = Add (s, x)"
FOLDED = "m = MatMul (x, w) h = Add (m, bias) e = Erf (h) p = MatMul (e, scaled) y = Add (p, x)"


def judge(tmp_path: Path, a: str, b: str, **others: np.ndarray) -> Verification:
    rng = np.random.default_rng(0)
    numbers = {name: rng.standard_normal((32, 32)).astype(np.float32) / 6 for name in ("w", "v")}
    numbers |= {"bias": rng.standard_normal(32).astype(np.float32), "scale": np.full(32, 3e-7, np.float32)}
    numbers["scaled"] = numbers["v"] * numbers["scale"]
    models = (with_constants(f"{HEAD} {{ {a} }}", numbers), with_constants(f"{HEAD} {{ {b} }}", numbers | others))
    return verdict(tmp_path, *models, options=VerifyOptions(pieces=True))


def test_a_scaled_branch_may_have_the_scale_in_its_weights(tmp_path: Path) -> None:
    found = judge(tmp_path, BRANCH, FOLDED)
    assert found.status in PROVEN, found.message


@pytest.mark.parametrize(
    "others",
    [{"bias": np.zeros(32, np.float32)}, {"scaled": np.zeros((32, 32), np.float32)}],
    ids=["before the moved scale", "in the scaled weights"],
)
def test_an_error_of_a_branch_is_not_hidden_by_the_rounding_of_its_residual(
    others: dict[str, np.ndarray], tmp_path: Path
) -> None:
    found = judge(tmp_path, BRANCH, FOLDED, **others)
    assert found.status == DIFFERENT, found.message
    assert [place.value for place in found.places] == ["y"]
