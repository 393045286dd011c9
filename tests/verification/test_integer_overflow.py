"""Floats cast to integers: numbers too large for narrower integers are fed, or the verdict is inconclusive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxopt.verification import AGREES, DIFFERENT, EQUAL, INCONCLUSIVE, VerifyOptions
from onnxopt.verification.inputs.uses import Uses
from tests.verification.pairs import gaps, own_check, verdict, with_constants
from tests.verification.test_one_sided_values import HEAD

WHOLE = "(float[n, 8] x) => (int64[n, 8] y)"
INT8, UINT8, INT16, INT32 = 3, 2, 5, 6
WEIGHT = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def model(body: str, interface: str = WHOLE) -> onnx.ModelProto:
    constants = {"w": WEIGHT, "a": np.float32(1.7), "b": np.float32(0.37), "ab": np.float32(1.7) * np.float32(0.37)}
    constants |= {"zero": np.float32(0), "hundred": np.float32(100), "shape": np.array([-1], np.int64)}
    return with_constants(f"{HEAD}{interface} {{ {body} }}", constants)


@pytest.mark.parametrize("kind", [INT8, UINT8, INT16])
def test_numbers_too_large_for_narrower_integers_are_fed(kind: int, tmp_path: Path) -> None:
    a = model("f = Floor (x) y = Cast <to = 7> (f)")
    b = model(f"f = Floor (x) c = Cast <to = {kind}> (f) y = Cast <to = 7> (c)")
    assert own_check(tmp_path, a, b).status == DIFFERENT
    assert verdict(tmp_path, a, b, VerifyOptions(cases=("all",))).status == DIFFERENT


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("p = Mul (x, a) q = Mul (p, b) y = Cast <to = 7> (q)", "q = Mul (x, ab) y = Cast <to = 7> (q)"),
        ("y = Cast <to = 7> (x)", "c = Cast <to = 6> (x) y = Cast <to = 7> (c)"),  # within the range of int32
        ("c = Clip (x, zero, hundred) y = Cast <to = 7> (c)",
         "c = Clip (x, zero, hundred) d = Cast <to = 3> (c) y = Cast <to = 7> (d)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_rounding_before_large_integers_is_no_difference(body: str, right: str, seed: int, tmp_path: Path) -> None:
    for options in (VerifyOptions(seed=seed), VerifyOptions(seed=seed, cases=("all",))):
        assert verdict(tmp_path, model(body), model(right), options).status in AGREES


@pytest.mark.parametrize("kind", [INT8, UINT8, INT16])
def test_a_narrower_cast_of_a_computed_value_does_not_pass(kind: int, tmp_path: Path) -> None:
    """A narrower Cast of a computed value does not pass.

    Numbers of one case are too large for 8 bits, none for 16 bits.
    """
    a = model("h = MatMul (x, w) y = Cast <to = 7> (h)")
    b = model(f"h = MatMul (x, w) c = Cast <to = {kind}> (h) y = Cast <to = 7> (c)")
    for found in (own_check(tmp_path, a, b), verdict(tmp_path, a, b, VerifyOptions(cases=("random", "uniform")))):
        assert found.status in (DIFFERENT, INCONCLUSIVE)
    assert kind != INT16 or gaps(found) == ["`y` is computed in narrower integers"], found.message


@pytest.mark.parametrize(
    ("body", "right"),
    [
        # Bounded numbers stay bounded. A's own integers are no wider: beyond them there is no right result.
        ("h = MatMul (x, w) c = Clip (h, zero, hundred) y = Cast <to = 7> (c)",
         "h = MatMul (x, w) c = Clip (h, zero, hundred) d = Cast <to = 3> (c) y = Cast <to = 7> (d)"),
        ("h = MatMul (x, w) c = Cast <to = 5> (h) y = Cast <to = 7> (c)",
         "h = MatMul (x, w) c = Cast <to = 5> (h) d = Cast <to = 6> (c) y = Cast <to = 7> (d)"),
        ("h = MatMul (x, w) y = Cast <to = 7> (h)", "h = MatMul (x, w) c = Cast <to = 6> (h) y = Cast <to = 7> (c)"),
    ],
)  # fmt: skip
def test_a_narrower_cast_of_bounded_numbers_is_right(body: str, right: str, tmp_path: Path) -> None:
    assert own_check(tmp_path, model(body), model(right)).status == EQUAL
    assert verdict(tmp_path, model(body), model(right)).status == EQUAL


def test_numbers_that_become_sizes_stay_small(tmp_path: Path) -> None:
    """Numbers that a size is computed from are not drawn: a tensor of this size would not fit into memory."""
    interface = "(float[n, 8] x) => (float[i, m] y)"
    head, tail = "h = MatMul (x, w) s = ReduceMax (h) r = Relu (s) v = Reshape (r, shape)", "y = Expand (s, k)"
    a = model(f"{head} k = Cast <to = 7> (v) {tail}", interface)
    b = model(f"{head} c = Cast <to = {INT16}> (v) t = Cast <to = 7> (c) {tail.replace('k)', 't)')}", interface)
    found = own_check(tmp_path, a, b)
    assert found.status == EQUAL, found.message


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        ("y = Cast <to = 7> (x)", {127, -128, 255, 32767, -32768, 65535}),
        ("t = Mul (x, hundred) y = Cast <to = 5> (t)", {1.27, -1.28, 2.55}),
        ("y = Cast <to = 2> (x)", {127}),
        ("y = Cast <to = 3> (x)", set()),  # no narrower integers exist
        ("y = Cast <to = 9> (x)", set()),
        ("t = Tanh (x) y = Cast <to = 7> (t)", set()),
        ("t = Cast <to = 7> (x) y = Gather (x, t)", set()),  # as index or size out of range
        ("t = Cast <to = 7> (x) s = Neg (t) y = Expand (w, s)", set()),
        ("t = Cast <to = 7> (x) f = Cast <to = 1> (t) k = Cast <to = 7> (f) y = Tile (w, k)", set()),
        ("t = Cast <to = 7> (x) s = Softmax (t) k = Cast <to = 7> (x) y = Add (k, k)", set()),
    ],
)
def test_large_whole_numbers_that_casts_need(body: str, whole: set[float]) -> None:
    found = Uses(model(body).graph).found["x"].whole
    assert {round(n, 4) for n in found} == whole
