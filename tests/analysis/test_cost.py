"""Work of operators, against figures computed by hand."""

from __future__ import annotations

import onnx.parser
import pytest

from onnxopt.analysis.cost import model_costs, peak_memory
from onnxopt.analysis.stats import model_work
from onnxopt.graph import Model, read_model


def model(body: str, signature: str, weights: str = "", opset: int = 17) -> Model:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {weights} {{ {body} }}'
    return read_model(onnx.parser.parse_model(text))


@pytest.mark.parametrize(
    ("body", "signature", "macs", "flops"),
    [
        # 2*4*6*6 results, each the sum of 3*3*3 products; a bias
        (
            "y = Conv <pads = [1, 1, 1, 1]> (x, w, b)",
            "(float[2, 3, 6, 6] x, float[4, 3, 3, 3] w, float[4] b) => (float[2, 4, 6, 6] y)",
            288 * 27,
            288 * 27 * 2 + 288,
        ),
        # depthwise: one channel for each result; stride 2 halves both axes
        (
            "y = Conv <group = 4, strides = [2, 2], kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)",
            "(float[1, 4, 8, 8] x, float[4, 1, 3, 3] w) => (float[1, 4, 4, 4] y)",
            4 * 16 * 9,
            4 * 16 * 9 * 2,
        ),
        # each of the 2*5*5 inputs goes into 3*2*2 sums
        (
            "y = ConvTranspose <strides = [2, 2]> (x, w)",
            "(float[1, 2, 5, 5] x, float[2, 3, 2, 2] w) => (float[1, 3, 10, 10] y)",
            50 * 12,
            50 * 12 * 2,
        ),
        ("y = Gemm <transA = 1> (x, w, b)", "(float[8, 3] x, float[8, 5] w, float[5] b) => (y)", 120, 240 + 15),
        (
            "y = MatMul (x, w)",
            "(float[2, 1, 3, 4] x, float[7, 4, 5] w) => (y)",
            2 * 7 * 3 * 5 * 4,
            2 * 7 * 3 * 5 * 4 * 2,
        ),
        ("y = MatMul (x, w)", "(float[4] x, float[4, 5] w) => (y)", 20, 40),
        ('y = Einsum <equation = "bij,bkj->bik"> (x, w)', "(float[2, 3, 4] x, float[2, 5, 4] w) => (y)", 120, 240),
        # 7 steps, 2 sequences, 4 gates of 5, from 3 inputs and 5 hidden
        (
            "y = LSTM <hidden_size = 5> (x, w, r)",
            "(float[7, 2, 3] x, float[1, 20, 3] w, float[1, 20, 5] r) => (y)",
            7 * 2 * 20 * 8,
            7 * 2 * 20 * 8 * 2,
        ),
        ("y = Add (x, w)", "(float[3, 1] x, float[4] w) => (y)", 0, 12),
        ("y = Softmax (x)", "(float[3, 4] x) => (y)", 0, 60),
        ("y = Sum (x, x, x)", "(float[3, 4] x) => (y)", 0, 24),
        ("y = ReduceMean <axes = [1]> (x)", "(float[3, 4] x) => (y)", 0, 12),
        ("y = MaxPool <kernel_shape = [2, 2]> (x)", "(float[1, 1, 4, 4] x) => (y)", 0, 9 * 4),
        ("a = Transpose (x) y = Relu (a)", "(float[3, 4] x) => (y)", 0, 12),
    ],
)
def test_operators(body: str, signature: str, macs: int, flops: int) -> None:
    work = model_work(model(body, signature))
    assert (work.macs, work.flops, work.inexact) == (macs, flops, 0)


def test_attention_counts_as_its_formula_does() -> None:
    signature = "(float[2, 3, 5, 4] q, float[2, 3, 7, 4] k, float[2, 3, 7, 6] v) => (y)"
    fused = model_work(model("y = Attention (q, k, v)", signature, opset=23))
    apart = model("t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, t) y = MatMul (s, v)", signature)
    assert fused.macs == model_work(apart).macs == 2 * 3 * 5 * 7 * (4 + 6)


def test_a_loop_counts_its_trips_and_an_if_its_larger_branch() -> None:
    loop = model(
        'y = Loop (five, "", x) '
        "<body = b (int64 i, bool c, float[8] p) => (bool d, float[8] q) { d = Identity (c) q = Neg (x) }>",
        "(float[8] x) => (float[8] y)",
        "<int64 five = {5}>",
    )
    assert model_work(loop).flops == 40
    assert [c.times for c in model_costs(loop)] == [5]
    choice = model(
        "y = If (c) <then_branch = t () => (float[8] a) { a = Neg (x) }, "
        "else_branch = e () => (float[8] b) { d = Neg (x) b = Sigmoid (d) }>",
        "(float[8] x, bool c) => (float[8] y)",
    )
    assert model_work(choice).flops == 8 + 4 * 8


def test_unknown_sizes_make_a_lower_bound() -> None:
    work = model_work(model("a = Neg (x) y = MatMul (a, w)", "(float[N, 4] x, float[4, 5] w) => (y)"))
    assert (work.macs, work.flops, work.inexact) == (20, 44, 2)
    assert not work.peak_exact


def test_ranks_that_the_operator_does_not_take_or_that_are_unknown_count_for_something() -> None:
    deep = model(
        "y = RNN <hidden_size = 4> (x, w, r)", "(float[3, 1, 2] x, float[1, 1, 4, 2] w, float[1, 4, 4] r) => (y)"
    )
    assert model_work(deep).macs > 0
    signature = "(float[2, 3, 4, 5] q, float[2, 3, 6, 5] k, float[] v) => (y)"
    vague = model("y = Attention (q, k, v)", signature, opset=23)
    assert model_work(vague).macs >= 2 * 3 * 4 * 6 * 5


def test_the_nodes_that_compute_most_come_first() -> None:
    work = model_work(model("[n] a = Neg (x) [s] b = Softmax (a) [r] y = Relu (b)", "(float[3, 4] x) => (y)"), top=2)
    assert [(n.name, n.flops) for n in work.nodes] == [("s", 60), ("n", 12)]


def test_memory_is_freed_after_the_last_reader() -> None:
    # x 400; a 400; b 100 while a, x live; then a goes, c 100
    peak = peak_memory(
        model(
            "[a] a = Neg (x) [b] b = ReduceSum (a, one) [c] y = Neg (b)",
            "(float[10, 10] x) => (y)",
            "<int64[1] one = {1}>",
        )
    )
    assert (peak.bytes, peak.exact) == (400 + 400 + 40, True)
    assert peak.node is not None
    assert peak.node.name == "b"
    chain = "".join(f"v{i + 1} = Neg (v{i}) " for i in range(50))
    assert peak_memory(model(f"v0 = Neg (x) {chain} y = Neg (v50)", "(float[100] x) => (y)")).bytes == 1200


def test_a_body_adds_to_its_owner() -> None:
    choice = model(
        "[if] y = If (c) <then_branch = t () => (float[25] a) { b = Neg (x) d = Neg (b) a = Neg (d) }, "
        "else_branch = e () => (float[25] f) { f = Neg (x) }>",
        "(float[25] x, bool c) => (float[25] y)",
    )
    assert peak_memory(choice).bytes == 100 + 1 + 100 + 200
