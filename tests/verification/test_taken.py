"""Ifs that a rewrite took a branch of: what is inside them is compared as the cases run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt import VerifyOptions
from tests.verification.pairs import verdict

NUMBERS = [str((i * 7 % 11 - 5) / 4) for i in range(100)]
HEAD = f"""<ir_version: 9, opset_import: ["" : 17]>
g (float[S, 4, M] x, float[2, S, 5] h) => (float[A, B, C] y)
<float[1, 20, 4] r = {{{", ".join(NUMBERS[:80])}}}, float[1, 20, 5] g0 = {{{", ".join(NUMBERS)}}},
 int64[1] first = {{0}}, int64[1] single = {{1}}, int64[1] last = {{2}}, int64 two = {{2}}>"""
# As torch scripts a cell: one step is squeezed, and a batch is put in where there is none.
SQUEEZED = """m = Shape <start = 2> (x) c = Equal (m, single)
u = If (c) <then_branch = a () => (s) { s = Squeeze (x, last) }, else_branch = b () => (i) { i = Identity (x) }>"""
CELL = """z = Shape (u) k = Size (z) e = Equal (k, two) n = Not (e)
v = If (n) <then_branch = d () => (p) { p = Unsqueeze (u, first) }, else_branch = f () => (q) { q = Identity (u) }>
w = Unsqueeze (v, first) t, l = LSTM <hidden_size = 5> (w, r, g0)"""
STATE = "o = Shape <end = 1> (h) b0 = Squeeze (o) b1 = Cast <to = 9> (b0)"
NESTED = f"""y = If (b1) <then_branch = j () => (l0) {{ {CELL} l0 = Neg (l) }},
else_branch = j0 () => (l1) {{ {CELL} l1 = Abs (l) }}>"""
PLAIN = "u = Squeeze (x, last) w = Unsqueeze (u, first) t, l = LSTM <hidden_size = 5> (w, r, g0)"


def judge(folder: Path, one: str, other: str, head: str = HEAD) -> tuple[str, str]:
    options = VerifyOptions(dims={"M": 1} if "M]" in head else {})
    v = verdict(folder, *(f"{head} {{ {nodes} }}" for nodes in (one, other)), options=options)
    return v.status, v.message


def test_ifs_in_ifs_may_be_gone(tmp_path: Path) -> None:
    status, message = judge(tmp_path, f"{SQUEEZED} {STATE} {NESTED}", f"{PLAIN} y = Neg (l)")
    assert status == "verified in pieces", message


@pytest.mark.parametrize("wrong", ["y = Abs (l)", "k = Neg (l) y = Neg (k)"])
def test_not_with_the_other_branch(wrong: str, tmp_path: Path) -> None:
    status, message = judge(tmp_path, f"{SQUEEZED} {STATE} {NESTED}", f"{PLAIN} {wrong}")
    assert status == "different", message


OPEN = """<ir_version: 9, opset_import: ["" : 17]>
g (float[S, 4] x) => (float[A, B] y) <float high = {100}, int64[1] first = {0}, float zero = {0}>"""
UNTAKEN = """t = ReduceMax <keepdims = 0> (x) c = Greater (t, high)
y = If (c) <then_branch = a () => (p) { p = Neg (x) }, else_branch = b () => (q) {
  m = ReduceSum <keepdims = 0> (x) d = Greater (m, high)
  n = If (d) <then_branch = e () => (r) { r = Neg (x) }, else_branch = f () => (s) { s = Exp (x) }>
  q = Abs (n) }>"""


def test_what_other_data_may_take_is_said(tmp_path: Path) -> None:
    status, message = judge(tmp_path, UNTAKEN, "n = Exp (x) y = Abs (n)", OPEN)
    assert status == "inconclusive", message
    assert "the then branch on `c` was never taken" in message
    assert "the then branch on `d` was never taken" in message


def test_an_if_that_only_the_result_has_is_said(tmp_path: Path) -> None:
    only = "t = ReduceMax <keepdims = 0> (x) c = Greater (t, high) n = Exp (x) y = If (c) <"
    only += "then_branch = a () => (p) { p = Neg (x) }, else_branch = b () => (q) { q = Abs (n) }>"
    status, message = judge(tmp_path, "n = Exp (x) y = Abs (n)", only, OPEN)
    assert status == "inconclusive", message


CHOSEN = f"""<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 1, T] x, int64 rate) => (float[A, B, C] y)
<float[1, 1, 3] short = {{1, 2, 3}}, float[1, 1, 40] long = {{{", ".join(NUMBERS[:40])}}}, int64 fast = {{16000}}>"""
RATES = """c = Equal (rate, fast) y = If (c) <
  then_branch = a () => (p) { k = Conv (x, long) p = WRONG (k) }, else_branch = b () => (q) { q = Conv (x, short) }>"""


@pytest.mark.parametrize(("made", "status"), [("Relu", "equal"), ("Abs", "different")])
def test_sizes_are_looked_for_with_what_decides(made: str, status: str, tmp_path: Path) -> None:
    """Fewer than 40 are too few for one of the rates, and many for the other."""
    one, other = (RATES.replace("WRONG", op) for op in ("Relu", made))
    found = verdict(tmp_path, f"{CHOSEN} {{ {one} }}", f"{CHOSEN} {{ {other} }}")
    assert found.status == status, found.message
