"""Changes behind values that are zero or NaN everywhere are found, however active the rest of the network is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.verification import Verification
from tests.verification.pairs import verdict, with_constants

NET = "".join(f"a{i} = MatMul ({f'r{i - 1}' if i else 'x'}, w) r{i} = Tanh (a{i}) " for i in range(12))
DETECTED = "h = Constant <value = float {5}> () c = Greater (r11, h) n = NonZero (c) d = Cast <to = 1> (n) "
CUT_OFF = "t = Constant <value = float {5}> () s = Sub (r11, t) u = Relu (s) "
ENDLESS = "v = Sub (r11, r11) u = Reciprocal (v) e = Abs (u) "
NONE = "v = Sub (r11, r11) u = Log (v) i = Sub (u, u) "
BEFORE = pytest.mark.parametrize(
    ("before", "read"),
    [(DETECTED, "d"), (CUT_OFF, "u"), (ENDLESS, "e"), (NONE, "i")],
    ids=["empty", "zero", "infinite", "nan"],
)


def judge(tmp_path: Path, a: str, b: str) -> Verification:
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    constants = {"w": weights, "two": np.float32(2), "seven": np.float32(7)}
    texts = (f'<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (y) {{ {NET} {end} }}' for end in (a, b))
    return verdict(tmp_path, *(with_constants(text, constants) for text in texts))


@BEFORE
def test_a_change_behind_a_blank_value_is_inconclusive(before: str, read: str, tmp_path: Path) -> None:
    v = judge(tmp_path, before + f"y = Mul ({read}, two)", before + f"y = Mul ({read}, seven)")
    assert v.pieces is not None
    assert (v.status, v.pieces.dead) == ("inconclusive", ["y"]), v.message


@BEFORE
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("y = Mul (READ, two)", "y = Add (READ, READ)"),
        ("p = Neg (READ) y = Mul (p, two)", "q = Add (READ, READ) y = Neg (q)"),
        ("k = Constant <value = float {2}> () y = Mul (READ, k)", "y = Mul (READ, two)"),
        ("j = Identity (READ) p = Mul (j, two) y = Abs (p)", "q = Mul (READ, two) y = Abs (q)"),
    ],
    ids=["otherwise", "in two steps", "constant", "names"],
)
def test_an_equivalent_form_behind_a_blank_value_is_verified(
    before: str, read: str, one: str, other: str, tmp_path: Path
) -> None:
    """An equivalent form behind a blank value is compared on drawn numbers, if the nodes differ."""
    v = judge(tmp_path, before + one.replace("READ", read), before + other.replace("READ", read))
    assert v.status == "verified in pieces", v.message


def test_a_difference_on_drawn_numbers_is_no_accusation(tmp_path: Path) -> None:
    """A difference on drawn numbers is inconclusive, not "different".

    The removed node may be redundant for all reachable values.
    """
    v = judge(tmp_path, CUT_OFF + "p = Abs (u) y = Neg (p)", CUT_OFF + "y = Neg (u)")
    assert v.status == "inconclusive"


def test_a_piece_with_a_blank_inside_is_run_on_larger_numbers(tmp_path: Path) -> None:
    a = "t = Constant <value = float {5}> () s = Sub (r11, t) u = Relu (s) y = Mul (u, two)"
    b = "n = Mul (r11, two) t = Constant <value = float {TEN}> () s = Sub (n, t) y = Relu (s)"
    assert judge(tmp_path, a, b.replace("TEN", "10")).status == "verified in pieces"
    assert judge(tmp_path, a, b.replace("TEN", "12")).status == "inconclusive"
