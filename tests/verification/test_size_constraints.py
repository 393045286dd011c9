"""Sizes that weights impose on distant inputs are found, through operators that keep or change sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import ModelProto

from onnxopt.verification import EQUAL
from onnxopt.verification.inputs.planning import make_plan
from tests.samples import build_text
from tests.verification.pairs import verdict

X, CONV, W = "float[n, c, t] x", "y = Conv (a, w)", "float[8, 12, 3] w"
ONE, TWO, FAR = "int64[1] one = {1}", "int64[1] two = {-1}", "int64[1] far = {900}"
COMPUTED = "s = Shape <start = 2> (x) e = Mul (s, z) f = Add (e, o) front = Constant <value_ints = [0, 0]> () "
COMPUTED += "p = Concat <axis = 0> (front, e, front, f)"
WINDOW = f"{W}, int64[1] z = {{0}}, int64[1] o = {{1}}"
# (inputs, nodes, weights, the only size accepted)
CARRIED = [
    (X, f"a = Pad (x, p) {CONV}", f"{W}, int64[6] p = {{0, 0, 1, 0, 0, 1}}"),
    (X, f"{COMPUTED} a = Pad (x, p) {CONV}", WINDOW),
    (X, f"a = Slice (x, one, far, two) {CONV}", f"{W}, {ONE}, {TWO}, {FAR}"),
    ("float[n, c] x", f"a = Unsqueeze (x, two) {CONV}", f"float[8, 12, 1] w, {TWO}"),
    ("float[n, 1, c, t] x", f"a = Squeeze (x, one) {CONV}", f"{W}, {ONE}"),
    ("float[n, s, c] x", "a = Concat <axis = 1> (x, x) y = MatMul (a, w)", "float[12, 8] w"),
    (X, f"b = Unsqueeze (m, two) a = Mul (x, b) {CONV}", f"{W}, float[1] m = {{2}}, {TWO}"),
    (
        "float[n, c] x",
        "v = Pad (w, p) q = MatMul (x, v) y = MatMul (x, w)",
        "float[12, 8] w, int64[4] p = {0, 0, 0, 1}",
    ),
    (
        "float[n, c] x",
        "v = Pad (w, p) u = Slice (v, o, e, o) q = MatMul (x, u) y = MatMul (x, w)",
        "float[12, 8] w, int64[4] p = {1, 0, 0, 0}, int64[1] o = {0}, int64[1] e = {12}",
    ),
    (X, "a = Relu (x) v = Transpose <perm = [1, 0, 2]> (w) y = Conv (a, v)", "float[12, 8, 3] w"),
]
# Nodes that change the size, or may change it.
NOT_CARRIED = [
    (X, f"a = Pad (x, p) {CONV}", f"{W}, int64[6] p = {{0, 1, 0, 0, 0, 0}}"),
    (X, f"a = Slice (x, one, far, one) {CONV}", f"{W}, {ONE}, {FAR}"),
    (X, f"s = Shape (x) a = Slice (x, one, far, s) {CONV}", f"{W}, {ONE}, {FAR}"),
    (X, f"a = Concat <axis = 1> (x, x) {CONV}", W),
    (X, f"a = Add (x, o) {CONV}", f"{W}, float[12, 1] o"),
    (X, f"a = Squeeze (x) {CONV}", W),
    (X, f"a = Unsqueeze (x, one) {CONV}", f"{W}, int64[2] one = {{1, 1}}"),
    (X, f"s = Size (x) r = Reshape (s, one) a = Unsqueeze (x, r) {CONV}", f"{W}, {ONE}"),
]


def model_of(taken: str, nodes: str, weights: str) -> ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({taken}) => (float y) <{weights}> {{ {nodes} }}'
    drawn = " ".join(re.findall(r"float\[[\d, ]*] (\w)(?! =)", weights))
    model = build_text(f"# weights: normal {drawn}\n{text}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize(("taken", "nodes", "weights"), CARRIED)
def test_sizes_are_carried(taken: str, nodes: str, weights: str, tmp_path: Path) -> None:
    model = model_of(taken, nodes, weights)
    assert make_plan(model).demanded == {"c": 12}
    found = verdict(tmp_path, model, model)
    assert found.status == EQUAL and found.cases[0].dims["c"] == 12, found.message


@pytest.mark.parametrize(("taken", "nodes", "weights"), NOT_CARRIED)
def test_sizes_that_are_not_imposed(taken: str, nodes: str, weights: str) -> None:
    assert make_plan(model_of(taken, nodes, weights)).demanded == {}


def test_a_window_in_a_loop_ends() -> None:
    """Each iteration adds a window to the way from the input: a body is walked once."""
    pool = "{ e = Identity (d) o = MaxPool <kernel_shape = [5]> (v) }"
    body = f"(int64 i, bool d, float[N, 3, S] v) => (bool e, float[N, 3, R] o) {pool}"
    head = "g (float[N, 3, T] x) => (float[N, 3, P] y) <int64 n = {2}, bool c = {1}>"
    plan = make_plan(build_text(f"{head} {{ y = Loop (n, c, x) <body = b {body}> }}"))
    assert plan.symbols == ["N", "T"] and len(plan.windows) == 2
