"""Channels that a Relu sets to zero in all rows of the usual cases: other numbers show a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, parser

from onnxopt.verification.inputs.windows import has_few_rows, muted
from tests.verification.pairs import own_check, with_constants

W = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
V = np.random.default_rng(2).standard_normal((8, 3)).astype(np.float32)
LOW = np.array([0] * 7 + [-2.5], np.float32)  # the last channel is negative in all rows of both cases only
OTHER = np.array([0] * 7 + [-2.25], np.float32)
HEAD = '<ir_version: 10, opset_import: ["" : 20]> g (float[ROWS, 8] x) => (float[ROWS, N] y)'
MUTED = "h = MatMul (x, w) b = Add (h, low) r = Relu (b) y = MatMul (r, v)"
RARE = """m = ReduceMax <keepdims = 0> (x) CONDITION y = If (c)
    <then_branch = t () => (q) { h = MatMul (x, w) b = Add (h, low) q = Relu (b) },
     else_branch = e () => (n) { n = Neg (x) }>"""
LOOP = """three = Constant <value_int = 3> () yes = Constant <value = bool {1}> ()
    l, o = Loop (three, yes, x) <body = t (int64 i, bool go, float[ROWS, 8] s) => (on, z, q)
    { on = Identity (go) h = MatMul (s, w) b = Add (h, low) q = Relu (b) z = Tanh (q) }> y = MatMul (l, v)"""
CAST = "d = Constant <value = double {30000}> () k = Cast <to = 1> (d) c = Greater (m, k)"
FOLDED = "c = Greater (m, high)"
AGREE = ("equal", "verified", "verified in pieces")


def model(text: str, low: Any = LOW, rows: str = "1") -> ModelProto:
    text = f"{HEAD} {{ {text} }}".replace("ROWS", rows).replace("N]", "8]" if "If" in text else "3]")
    constants = {"w": W, "v": V, "low": low, "high": np.float32(30000), "half": np.float32(0.5)}
    return with_constants(text, {name: c for name, c in constants.items() if name in text})


def test_a_change_of_a_dead_channel_does_not_pass(tmp_path: Path) -> None:
    found = own_check(tmp_path, model(MUTED), model(MUTED, OTHER))
    assert found.status in ("inconclusive", "different"), found.message
    assert found.pieces is not None
    assert own_check(tmp_path, model(MUTED), model(MUTED)).status == "equal"


def test_a_change_of_a_dead_channel_in_a_body_does_not_pass(tmp_path: Path) -> None:
    found = own_check(tmp_path, model(LOOP), model(LOOP, OTHER))
    assert found.status in ("inconclusive", "different"), found.message
    assert own_check(tmp_path, model(LOOP), model(LOOP.replace("Add (h, low)", "Add (low, h)"))).status in AGREE


def test_a_change_of_a_dead_channel_in_an_untaken_branch_does_not_pass(tmp_path: Path) -> None:
    text = RARE.replace("CONDITION", FOLDED)
    found = own_check(tmp_path, model(text), model(text, OTHER))
    assert found.status in ("inconclusive", "different"), found.message
    assert own_check(tmp_path, model(text), model(text)).status in AGREE


def test_a_condition_on_a_folded_constant_asks_the_same(tmp_path: Path) -> None:
    a, folded = (RARE.replace("CONDITION", c) for c in (CAST, FOLDED))
    found = own_check(tmp_path, model(a), model(folded, LOW + 1))
    assert (found.status, [p.value for p in found.places]) == ("different", ["b"]), found.message
    assert own_check(tmp_path, model(a), model(folded)).status in AGREE


def test_a_condition_on_another_constant_is_another(tmp_path: Path) -> None:
    a, other = RARE.replace("CONDITION", CAST), RARE.replace("CONDITION", FOLDED)
    b = model(other, LOW + 1)
    high = next(t for t in b.graph.initializer if t.name == "high")
    high.CopyFrom(onnx.numpy_helper.from_array(np.float32(20000), "high"))
    assert own_check(tmp_path, model(a), b).status == "inconclusive"


def test_a_factor_moved_through_a_relu_is_right(tmp_path: Path) -> None:
    before = "h = MatMul (x, w) b = Add (h, low) s = Mul (b, half) r = Relu (s) y = MatMul (r, v)"
    after = "h = MatMul (x, w) s = Add (h, low) k = Relu (s) r = Mul (k, half) y = MatMul (r, v)"
    assert own_check(tmp_path, model(before), model(after)).status in AGREE


def test_many_rows_need_no_search_for_dead_channels(tmp_path: Path) -> None:
    fused = MUTED.replace("h = MatMul (x, w) b = Add (h, low)", "b = Gemm (x, w, low)")
    for rows, looked in (("1", True), ("n", False), ("64", False)):
        found = own_check(tmp_path, model(MUTED, rows=rows), model(fused, rows=rows))
        assert found.status in AGREE, found.message
        assert (found.pieces is not None) is looked, rows


SQUEEZED = """<ir_version: 10, opset_import: ["" : 20]> g (float[1, 8, 4, 4] x) => (y)
    { p = POOL (x) c = Conv (p, k) y = Relu (c) }"""


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (f"{HEAD} {{ {MUTED} }}", ["r", "b", "h"]),
        (f"{HEAD} {{ b = Add (x, low) y = Relu (b) }}", []),
        (f"{HEAD} {{ h = MatMul (x, w) t = Tanh (h) y = Relu (t) }}", []),
        (SQUEEZED.replace("POOL", "GlobalAveragePool"), ["y", "c"]),
        (SQUEEZED.replace("POOL", "Sigmoid"), []),
        (f"{HEAD} {{ {LOOP} }}", ["l", "o"]),
    ],
    ids=["matrix", "no matrix", "something else between", "squeeze and excitation", "picture", "body"],
)
def test_values_with_possibly_dead_channels(text: str, values: list[str]) -> None:
    text = text.replace("ROWS", "2").replace("N]", "3]")
    assert muted(parser.parse_model(text).graph) == values


@pytest.mark.parametrize(
    ("rows", "sizes", "few"),
    [(2, [{}] * 2, True), (6, [{}] * 2, False), ("n", [{"n": 2}, {"n": 3}], True), ("n", [{"n": 16}], False)],
)
def test_few_rows_are_fewer_than_twelve_in_all_cases(rows: int | str, sizes: list[dict[str, int]], few: bool) -> None:
    assert has_few_rows((rows, 3), sizes) is few
