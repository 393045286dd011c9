"""A result that rounds to float16 inside, unlike the original: perturbed constants do not excuse the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.verification import PROVEN
from tests.verification.pairs import verdict, with_constants

HEAD = '<ir_version: 10, opset_import: ["" : 20]> g (float[256, 16] x) => (float[256, 8] y)'
TWO = "g1 = MatMul (x, w) h = Mul (g1, s) r = Relu (h) y = Softmax (r)"  # B merges the scale
ONE = "{} r = Relu (h) y = Softmax (r)"
MERGED = "h = MatMul (x, ws)"
NARROW = "f = MatMul (x, ws) i = Cast <to = 10> (f) h = Cast <to = 1> (i)"


def constants() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    w, s = rng.standard_normal((16, 8)).astype(np.float32), (1 + rng.random(8)).astype(np.float32)
    return {"w": w, "s": s, "ws": w * s}


@pytest.mark.parametrize(("made", "agrees"), [(MERGED, True), (NARROW, False)], ids=["merged", "narrowed"])
def test_merged_factors_may_round_but_not_to_float16(made: str, agrees: bool, tmp_path: Path) -> None:
    known = constants()
    a = with_constants(f"{HEAD} {{ {TWO} }}", {"w": known["w"], "s": known["s"]})
    b = with_constants(f"{HEAD} {{ {ONE.format(made)} }}", {"ws": known["ws"]})
    found = verdict(tmp_path, a, b)
    assert (found.status in PROVEN) is agrees, found.message
    assert agrees or found.status == "different"


def test_factors_rounded_to_float16_in_both_may_be_merged(tmp_path: Path) -> None:
    known = constants()
    a = TWO.replace("h = Mul (g1, s)", "m = Mul (g1, s) i = Cast <to = 10> (m) h = Cast <to = 1> (i)")
    x = with_constants(f"{HEAD} {{ {a} }}", {"w": known["w"], "s": known["s"]})
    y = with_constants(f"{HEAD} {{ {ONE.format(NARROW)} }}", {"ws": known["ws"]})
    found = verdict(tmp_path, x, y)
    assert found.agrees, found.message
