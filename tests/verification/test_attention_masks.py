"""Differences of scores count beside a large masking number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.verification import Verification
from onnxopt.verification.rounding import Difference, Draws, difference, last_bit, noisier
from tests.verification.pairs import verdict, with_constants


@pytest.mark.parametrize("mask", [np.finfo(np.float32).min, -1e9, -10000.0, -np.inf])
def test_a_mask_does_not_set_the_range(mask: float) -> None:
    a = np.array([[0.5, mask, mask], [1.0, -2.0, mask]], np.float32)
    b = a.copy()
    b[1, 1] = -1.9
    assert difference(a, b).relative == pytest.approx(0.05)
    assert difference(a, a).relative == 0


@pytest.mark.parametrize("mask", [np.finfo(np.float32).min, -1e9])
def test_a_single_masked_element_does_not_set_the_range(mask: float) -> None:
    """A single masked element does not count as range.

    Two tokens under a causal mask: a wrong score was 3e-41 of the range, and passed.
    """
    a = np.array([[0.5, mask], [1.0, -2.0]], np.float32)
    b = a.copy()
    b[0, 0] = 0.6
    assert difference(a, b).relative == pytest.approx(0.05)


@pytest.mark.parametrize("huge", [[3e4, 2e4], [3e4, 3e4 + 1], [3e4]], ids=["two", "near", "one"])
def test_an_ordinary_outlier_sets_the_range(huge: list[float]) -> None:
    a = np.array([0.5, 1.0, *huge], np.float32)
    b = a.copy()
    b[0] += 0.1
    assert difference(a, b).span == 3e4 + (1 if len(huge) == 2 and huge[1] > huge[0] else 0)


def test_a_moved_mask_sets_the_range() -> None:
    a = np.array([0.5, 1.0, -1e9, -1e9], np.float32)
    b = np.array([0.5, 1.0, -1e9, 1.0], np.float32)
    assert difference(a, b).relative > 0.9


def judge(tmp_path: Path, mask: float, *bodies: str) -> Verification:
    """Return the verdict on two models that add a mask to `d`, computed by `bodies`."""
    numbers = {"mask": mask, "zero": 0, "i": 0.1, "j": 0.2, "k": 0.3}
    constants = {name: np.float32(number) for name, number in numbers.items()}
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 16] x, bool[N, 16] m) => (float[N, 16] y)'
    texts = (f"{head} {{ z = Where (m, zero, mask) {body} y = Add (d, z) }}" for body in bodies)
    return verdict(tmp_path, *(with_constants(text, constants) for text in texts))


@pytest.mark.parametrize("mask", [np.finfo(np.float32).min, -1e9])
def test_the_last_bits_of_a_mask_explain_no_difference_of_scores(mask: float, tmp_path: Path) -> None:
    v = judge(tmp_path, mask, "d = Neg (x)", "c = Neg (x) d = Neg (c)")
    assert v.status == "different", v.message


def test_noise_is_known_beside_infinities(tmp_path: Path) -> None:
    """Cancelled sums beside a mask of -inf are verified in pieces. Cancellation differs by the whole range."""
    terms = "u = Mul (x, i) v = Mul (x, j) w = Mul (x, k) "
    v = judge(
        tmp_path,
        -np.inf,
        terms + "s = Add (u, v) e = Sub (s, w) d = Neg (e)",
        terms + "t = Sub (u, w) f = Add (t, v) d = Neg (f)",
    )
    assert v.status == "verified in pieces", v.message


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        ([0.5, -1.0, -1e9, -1e9], [False, False, True, True]),
        ([0.0, 1.0, 1.0], [True, True, True]),
        ([0.5, 0.7, 0.7], [False, False, False]),
        ([0.5, -1.0, -1e9], [False, False, False]),
        ([1e-6, 100.0, 100.0], [False, False, False]),
        ([0.5, -1e9, 1e9], [False, False, False]),
        ([3.3, 3.3], [False, False]),
        ([0.7, -np.inf], [False, True]),
    ],
    ids=["mask", "ones", "numbers", "one", "wide", "signs", "all", "infinity"],
)
def test_numbers_kept_by_a_change_of_last_bits(numbers: list[float], kept: list[bool]) -> None:
    value = np.array(numbers, np.float32)
    assert (last_bit(value, Draws(0)) == value).tolist() == kept


MASKED = np.where(np.arange(200) % 3 == 0, -3.4e38, np.linspace(-1, 1, 200)).astype(np.float32)


@pytest.mark.parametrize(
    ("values", "span"),
    [
        ([-3.0, 2.0], 3.0),
        ([], 0.0),
        ([3 + 4j, 1.0], 5.0),
        (MASKED, 1.0),  # beside a mask as range no score would count
        ([-3.4e38, 1.0, 0.5], 1.0),  # a single masked element, too
        ([-1e7, 1.0, 0.5], 1e7),  # a single outlier is no mask if float32 has digits left beside it
        ([-3.4e38, -3.0e38, 1.0], 3.4e38),
        ([-3.4e38, -3.4e38, 1e36], 3.4e38),  # numbers between mask and scores count
        ([1e-45, -1e-45], 1e-45),
    ],
)
def test_the_range_of_values(values: list[complex], span: float) -> None:
    held = np.asarray(values, np.complex64 if any(isinstance(v, complex) for v in values) else np.float32)
    other = held.copy()
    other[np.abs(held) < 1e35] *= np.float32(1.5)
    found = difference(held, other)
    assert found.span == pytest.approx(span, rel=1e-6, abs=1e-45)
    assert not found.note


def test_nan_does_not_count_as_range() -> None:
    assert difference(np.float32([np.nan, 2, -3]), np.float32([np.nan, 2, -3])).span == 3.0
    assert difference(np.float32([np.nan, 2]), np.float32([1, 2])).note


def test_narrowed_scores_beside_a_single_masked_element(tmp_path: Path) -> None:
    head = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y) <float low = {-3.4028235e+38}>'
    )
    mask = "m = Constant <value = bool[2, 2] {1, 0, 1, 1}> ()"
    rest = "s = MatMul (x, t) k = Where (m, s, low) p = Softmax <axis = -1> (k) y = MatMul (p, x)"
    narrowed = "i = Transpose (x) h = Cast <to = 10> (i) t = Cast <to = 1> (h)"
    a, b = (f"{head} {{ {mask} {made} {rest} }}" for made in ("t = Transpose (x)", narrowed))
    assert verdict(tmp_path, a, b).status == "different"


def causal(tmp_path: Path, low: float, *scores: str) -> Verification:
    """Return the verdict on two attentions with a causal mask of `low`, whose ArgMax is part of the output."""
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    third, off = np.float32(1 / 3), np.float32(1.3 / 3)
    constants = {"low": np.float32(low), "hidden": 1 - np.tril(np.ones((4, 4), np.float32)), "third": third, "off": off}
    constants |= {"wk": k, "wq": q, "wqs": (q * third).astype(np.float32)}
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4, 8] x) => (float[N, 4, 8] y)'
    keys = "i = MatMul (x, wk) k = Transpose <perm = [0, 2, 1]> (i)"
    rest = "p = Softmax (f) a = ArgMax <axis = 2> (p) c = Cast <to = 1> (a) d = MatMul (p, x) y = Add (d, c)"
    texts = (f"{head} {{ {keys} b = Mul (hidden, low) {score} {rest} }}" for score in scores)
    return verdict(tmp_path, *(with_constants(text, constants) for text in texts))


SCORES = "q = MatMul (x, wq) s = MatMul (q, k) t = Mul (s, third) f = Add (t, b)"
MERGED = "q2 = MatMul (x, wqs) s2 = MatMul (q2, k) f = Add (s2, b)"
WRONG = "q2 = MatMul (x, wq) s2 = MatMul (q2, k) t2 = Mul (s2, off) f = Add (t2, b)"


@pytest.mark.parametrize("low", [-1e9, -1e12, -12345.678])
def test_rounding_of_a_computed_mask_does_not_excuse_scores(low: float, tmp_path: Path) -> None:
    """Rounding of a computed mask does not excuse wrong scores beside the mask.

    The mask's factor has a cutpoint of its own, so its last bits are changed: by 64 at -1e9.
    """
    v = causal(tmp_path, low, SCORES, WRONG)
    assert v.status == "different", v.message
    assert v.places[0].value == "f"


@pytest.mark.parametrize("low", [-1e9, -12345.678])
def test_scores_that_are_scaled_earlier_are_right_beside_a_mask(low: float, tmp_path: Path) -> None:
    v = causal(tmp_path, low, SCORES, MERGED)
    assert v.agrees, v.message
    assert v.status != "inconclusive", v.message


def test_noise_is_measured_beside_a_mask_and_for_all_elements() -> None:
    a = np.array([0.5, 1.0, -1e9, -1e9], np.float32)
    moved, other = a + np.float32([1e-7, 0, 64, -64]), a + np.float32([0.1, 0, 0, 0])
    noise, found = difference(a, moved), difference(a, other)
    assert (noise.largest, noise.beside) == (64.0, pytest.approx(1e-7, rel=0.5))
    assert (found.largest, found.beside) == (found.beside, pytest.approx(0.1, rel=1e-6))
    assert not found.explained(noise)
    assert difference(a, a - np.float32([0, 0, 0, 64])).explained(noise)
    assert noisier(noise, Difference(1.0, 1.0)).beside == noise.beside
