"""Settings of operators that matter for rare numbers alone: saturated, repeated, infinite, of no class; zeros."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.verification import DIFFERENT, EQUAL, INCONCLUSIVE, PROVEN
from tests.verification.pairs import own_check, with_constants

HEAD = '<ir_version: 10, opset_import: ["" : 20]> g '
RNG = np.random.default_rng(0)
FLOATS = {"conv": RNG.standard_normal((8, 3, 4, 4)) / 10, "w": RNG.standard_normal((4, 4)), "step": 0.1}
FLOATS |= {"gain": np.ones(8), "empty": np.zeros((5000, 4)), "ends": [0, 1], "many": 1000, "half": 0.5, "zero": 0}
INTEGERS = {"depth": 7, "last": 6, "rows": 5000, "begin": [0], "end": [600], "far": [5000], "axes": [1]}
CONSTANTS = {name: np.asarray(v, np.float32) for name, v in FLOATS.items()}
CONSTANTS |= {name: np.asarray(v, np.int64) for name, v in INTEGERS.items()}
CONSTANTS |= {"u": np.uint8(128), "v": np.uint8(129), "i": np.int8(0)}
QUANTIZED = """(float[n, 3, 16, 16] x) => (float[n, 4, 4, 8] y) { c = Conv <strides = [4, 4]> (x, conv)
    q = QuantizeLinear (c, step, u) d = DequantizeLinear (q, step, u) t = Transpose <perm = [0, 2, 3, 1]> (d)
    y = LayerNormalization (t, gain) }"""
ADDED = '(int64[3, 4] k, float[3, 4] x) => (float[5000, 4] y) { y = ScatterElements <reduction = "add"> (empty, k, x) }'
ADDED_INSIDE = """(float[2, 4] x) => (float[5000, 4] y) { s = ReduceSum (x, axes) m = Mul (s, many)
    a = Cast <to = 7> (m) k = Mod (a, rows) y = ScatterND <reduction = "add"> (empty, k, x) }"""
ADD = ' <reduction = "add">'
SHORT = "(float[n, 4] x) => (float[m, 4] y) { h = Mul (x, half) y = Slice (h, begin, end) }"
GUARDED = "(float[n, 4] x) => (float[n, 4] y) { m = MatMul (x, w) c = IsInf (m) y = Where (c, zero, m) }"
CLASS = "(int64[n] k) => (float[n, 7] y) { y = OneHot (k, depth, ends) }"


def check(folder: Path, a: str, b: str) -> tuple[str, str]:
    found = own_check(folder, *(with_constants(HEAD + text, CONSTANTS) for text in (a, b)))
    return found.status, found.message


@pytest.mark.parametrize(
    ("right", "wrong", "status"),
    [
        (QUANTIZED, ("u)", "v)"), DIFFERENT),
        (ADDED, (ADD, ""), DIFFERENT),
        (ADDED_INSIDE, (ADD, ""), DIFFERENT),
        (SHORT, ("Slice (h, begin, end)", "Identity (h)"), DIFFERENT),
        (GUARDED, ("IsInf", "IsInf <detect_negative = 0>"), INCONCLUSIVE),
        (CLASS, ("y = OneHot (k,", "c = Min (k, last) y = OneHot (c,"), DIFFERENT),
    ],
    ids=["zero point", "repeated index", "computed index", "end of a Slice", "negative infinity", "no class"],
)
def test_a_setting_for_rare_numbers_is_probed(right: str, wrong: tuple[str, str], status: str, tmp_path: Path) -> None:
    assert check(tmp_path, right, right.replace(*wrong))[0] == status
    assert check(tmp_path, right, right)[0] == EQUAL


@pytest.mark.parametrize(
    ("a", "change"),
    [
        (QUANTIZED, ("u)", "i)")),
        (GUARDED, ("IsInf (m)", "IsInf <detect_negative = 0> (a)")),
        (ADDED_INSIDE, ("(empty, k, x)", "(e, k, x)")),
    ],
    ids=["other integers", "magnitude", "copied data"],
)
def test_an_equal_setting_in_another_form_is_right(a: str, change: tuple[str, str], tmp_path: Path) -> None:
    b = a.replace(*change).replace("{", "{ e = Identity (empty) ", 1).replace("(x, w)", "(x, w) a = Abs (m)")
    assert check(tmp_path, a, b)[0] in PROVEN


def test_a_size_beyond_every_case_is_named(tmp_path: Path) -> None:
    far = SHORT.replace("end)", "far)")
    status, message = check(tmp_path, far, far.replace("Slice (h, begin, far)", "Identity (h)"))
    assert status == EQUAL and "only one of the two has 5000 as a size, which no case exceeds" in message


def test_signs_of_zeros_are_no_difference(tmp_path: Path) -> None:
    """Infinities of the other sign are right if all pieces are equal but for signs of zeros."""
    bodies = "f = Cast <to = 1> (x) z = Neg (f)", "k = Neg (x) z = Cast <to = 1> (k)"
    a, b = (f"(int32[n, 4] x) => (float[n, 4] y) {{ {body} y = Reciprocal (z) }}" for body in bodies)
    status, message = check(tmp_path, a, b)
    assert status in PROVEN and "infinities of the other sign, as zeros have" in message
    assert check(tmp_path, a, a.replace("Neg (f)", "Sub (f, half)"))[0] == DIFFERENT
