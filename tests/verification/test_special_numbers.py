"""Differences at ties, at infinities and NaN, and at numbers that overflow in B alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.verification import DIFFERENT, INCONCLUSIVE, PROVEN
from tests.verification.pairs import verdict, with_constants

HEAD = '<ir_version: 9, opset_import: ["" : 20]> g (float[n, 8] x) => (y)'
WEIGHTS = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
CHOSEN = "y = If (c) <then_branch = t () => (p) { p = Neg (x) }, else_branch = e () => (q) { q = Exp (x) }>"
GUARD = "m = MatMul (x, w) n = {} (m) y = Where (n, zero, m)"


def status(tmp_path: Path, a: str, b: str, head: str = HEAD, kind: type = np.float32) -> str:
    numbers = {"zero": 0, "one": 1, "two": 2, "size": 4096, "axis": [1], "w": WEIGHTS}
    constants = {n: np.asarray(v, np.int64 if n == "axis" else kind) for n, v in numbers.items()}
    return verdict(tmp_path, *(with_constants(f"{head} {{ {body} }}", constants) for body in (a, b))).status


@pytest.mark.parametrize("before", ["r = Identity (x)", "r = Softmax (x)", "r = MatMul (x, w)"])
def test_the_last_of_several_largest_is_not_the_first(before: str, tmp_path: Path) -> None:
    a, b = (f"{before} y = ArgMax <axis = 1{last}> (r)" for last in ("", ", select_last_index = 1"))
    assert status(tmp_path, a, b) == DIFFERENT


@pytest.mark.parametrize("before", ["r = Identity (x)", "r = MatMul (x, w)"])
def test_the_smallest_of_negated_numbers_is_the_largest(before: str, tmp_path: Path) -> None:
    a, b = f"{before} y = ArgMax <axis = 1> (r)", f"{before} k = Neg (r) y = ArgMin <axis = 1> (k)"
    assert status(tmp_path, a, b) in PROVEN


def test_a_number_at_its_bound_takes_the_branch_of_the_original(tmp_path: Path) -> None:
    a, b = (f"s = ReduceMax <keepdims = 0> (x) c = {op} (s, one) {CHOSEN}" for op in ("Greater", "GreaterOrEqual"))
    assert status(tmp_path, a, b) == DIFFERENT


def test_infinities_are_no_nan_even_if_no_case_overflows(tmp_path: Path) -> None:
    assert status(tmp_path, GUARD.format("IsInf"), GUARD.format("IsNaN")) == INCONCLUSIVE


@pytest.mark.parametrize("test", ["IsInf", "IsNaN"])
def test_a_guard_of_equal_numbers_is_proven(test: str, tmp_path: Path) -> None:
    a = GUARD.format(test)
    assert status(tmp_path, a, a.replace("(x, w)", "(k, w)").replace("m =", "k = Identity (x) m =", 1)) in PROVEN


@pytest.mark.parametrize(
    ("stable", "naive"),
    [
        ("y = Softplus (x)", "e = Exp (x) a = Add (e, one) y = Log (a)"),
        ("y = LogSoftmax (x)", "s = Softmax (x) y = Log (s)"),
        ("y = ReduceLogSumExp (x, axis)", "e = Exp (x) s = ReduceSum (e, axis) y = Log (s)"),
    ],
    ids=["softplus", "logarithm of softmax", "logarithm of a sum"],
)
def test_a_formula_that_overflows_earlier_is_not_proven(stable: str, naive: str, tmp_path: Path) -> None:
    assert status(tmp_path, stable, naive) == INCONCLUSIVE
    assert status(tmp_path, naive, stable) in PROVEN


def test_a_sum_that_overflows_in_float16_is_not_proven(tmp_path: Path) -> None:
    head = HEAD.replace("float[n, 8]", "float16[n, 4096]")
    mean = "q = Mul (x, x) m = ReduceMean (q, axis) y = Sqrt (m)"
    summed = "q = Mul (x, x) s = ReduceSum (q, axis) m = Div (s, size) y = Sqrt (m)"
    assert status(tmp_path, mean, summed, head, np.float16) == INCONCLUSIVE
    assert status(tmp_path, summed, mean, head, np.float16) in PROVEN
