"""Rows that are made of earlier rows, and scattered one by one, are joined parts at each level."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser

import onnxopt
from tests.runtime import plain_session

# Row `i` up to the diagonal: the row, plus the product with the rows above it. Exporters scatter columns of the
# transposed row, then the row. The first part of each row is cut off, which is one node more than the scatters.
ROW = """
    a{i} = Gather <axis = 1> ({x}, i{i}) b{i} = Slice (a{i}, zero, to{i}, one) s{i} = Slice ({x}, zeros, both{i}, axes)
    u{i} = Unsqueeze (b{i}, two) p{i} = Mul (u{i}, s{i}) q{i} = ReduceSum <keepdims = 0> (p{i}, one)
    d{i} = Add (b{i}, q{i}) t{i} = Transpose <perm = [1, 0]> (a{i}) v{i} = Transpose <perm = [1, 0]> (d{i})
    k{i} = ScatterND (t{i}, n{i}, v{i}) w{i} = Transpose <perm = [1, 0]> (k{i}) e{i} = Unsqueeze (w{i}, one)
    f{i} = Shape (e{i}) g{i} = Expand (i{i}, f{i}) h{i} = ScatterElements <axis = 1> ({x}, g{i}, e{i})"""
FIXED = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[2] zeros = {0, 0}, int64[2] axes = {1, 2}"
BOUNDS = (
    "int64 i{i} = {{{i}}}, int64[1] to{i} = {{{i}}}, int64[2] both{i} = {{{i}, {i}}}, int64[{i}, 1] n{i} = {{{rows}}}"
)


def model(n: int) -> ModelProto:
    bounds = [BOUNDS.format(i=i, rows=", ".join(map(str, range(i)))) for i in range(1, n)]
    rows = [ROW.format(i=i, x=f"h{i - 1}" if i > 1 else "x") for i in range(1, n)]
    head = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2, {n}, {n}] x) => (float[2, {n}, {n}] y)'
    return parser.parse_model(f"{head} <{', '.join([FIXED, *bounds])}> {{ {' '.join(rows)} y = Neg (h{n - 1}) }}")


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("n", [4, 8])
def test_no_scatter_of_a_row_is_left(n: int, level: int) -> None:
    source = model(n)
    result = onnxopt.optimize(source, level=level, verify=False).model
    assert not [node.op_type for node in result.graph.node if node.op_type.startswith("Scatter")]
    x = np.random.default_rng(0).standard_normal((2, n, n)).astype(np.float32)
    a, b = (plain_session(m).run(None, {"x": x})[0] for m in (source, result))
    assert np.array_equal(a, b)
