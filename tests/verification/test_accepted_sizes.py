"""Sizes accepted by a model are found although its dims do not declare them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxopt.verification import DIFFERENT, EQUAL, VerifyOptions, verify
from onnxopt.verification.compare import is_dull
from onnxopt.verification.inputs.cases import OWN, Recipe
from onnxopt.verification.inputs.feeding import Data, feed
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.values import InputMaker, says_lengths
from tests.runtime import plain_session
from tests.samples import build_text, parsed

# The mask covers the past and the new tokens; no dim of an input declares the sum.
PAST = """
g (float[s0, s27] new, float[s1, s64] mask, float[s0, s10] past) => (float[s0, total] present)
{ both = Concat <axis = 1> (past, new) present = Mul (both, mask) }
"""
# The same with an integer mask, without a declaration in an output; tokens index a table.
UNTOLD = """
g (int64[b, t] words, int64[b, all] mask, float[b, p, 4] past) => (float[b, n, 4] y)
<float[3, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int64[1] last = {2}>
{
  new = Gather (table, words)
  both = Concat <axis = 1> (past, new)
  m = Cast <to = 1> (mask)
  wide = Unsqueeze (m, last)
  y = Mul (both, wide)
}
"""
# A layer with a window keeps a window of its past, and the past has another dim name.
WINDOW = """
g (float[s0, s27] new, float[s1, s64] mask, float[s0, s10] past, float[s0, s15] older)
    => (float[s0, total] present, float[s0, kept] window)
<int64[1] most = {-8}, int64[1] end = {9223372036854775807}, int64[1] axis = {1}>
{
  both = Concat <axis = 1> (past, new)
  present = Mul (both, mask)
  all = Concat <axis = 1> (older, new)
  masked = Mul (all, mask)
  window = Slice (masked, most, end, axis)
}
"""
# A trace with seven tokens in its constants.
BAKED = """
g (float[b, t, 4] x) => (float[p, q, r] y)
<int64[1] seven = {7}, int64[1] two = {2}, int64 one = {1}, int64[1] zero = {0}, int64 first = {0}>
{
  tokens = Transpose <perm = [1, 0, 2]> (x)
  shape = Shape (x)
  batch = Gather (shape, first)
  twice = Add (batch, batch)
  rows = Unsqueeze (twice, zero)
  target = Concat <axis = 0> (seven, rows, two)
  y = Reshape (tokens, target)
}
"""
# Two of them, each beside a computed size. The sizes of the target come from a Slice with a computed end.
BAKED_TWICE = """
g (float[b, s, 4] x, float[b, t, 4] u) => (float[p, q, r] y, float[m, n, o] z)
<int64[1] five = {5}, int64[1] seven = {7}, int64[1] four = {4}, int64[1] two = {2}, int64[1] one = {1},
  int64[1] zero = {0}>
{
  shape = Shape (x)
  rank = Shape (shape)
  end = Sub (rank, one)
  leading = Slice (shape, zero, end, zero)
  same = Concat <axis = 0> (leading, four)
  tokens = Reshape (x, same)
  batch = Slice (shape, zero, one, zero)
  twice = Mul (batch, two)
  k = Transpose <perm = [1, 0, 2]> (tokens)
  fives = Concat <axis = 0> (five, twice, two)
  y = Reshape (k, fives)
  l = Transpose <perm = [1, 0, 2]> (u)
  sevens = Concat <axis = 0> (seven, twice, two)
  z = Reshape (l, sevens)
}
"""
# The steps of a loop that the trace has unrolled.
_STEPS = range(7)
UNROLLED = f"""
g (float[t, 4] x) => (float[t, 4] y) <int64[1] first = {{0}}, {", ".join(f"int64 at{i} = {{{i}}}" for i in _STEPS)}>
{{
  {" ".join(f"s{i} = Gather (x, at{i}) r{i} = Unsqueeze (s{i}, first)" for i in _STEPS)}
  all = Concat <axis = 0> ({", ".join(f"r{i}" for i in _STEPS)})
  y = Add (x, all)
}}
"""
# A trace of one text, by an exporter that numbers dims.
ONE = """
g (float[d0, d1] x) => (float[4] y, int64[4] i)
<int64[1] first = {0}, int64[1] four = {4}>
{
  z = Relu (x)
  c = Squeeze (z, first)
  y, i = TopK <axis = 0> (c, four)
}
"""
# A window over raw audio that is longer than the side of a picture.
LONG = """
g (float[b, 1, t] x, float[1, 1, 400] w) => (float[b, 1, n] y)
{ y = Conv <strides = [160]> (x, w) }
"""


def save(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        (PAST, [{"s0": 2, "s1": 2, "s27": 2, "s10": 2, "s64": 4}, {"s0": 3, "s1": 3, "s27": 3, "s10": 3, "s64": 6}]),
        (
            WINDOW,
            [
                {"s0": 2, "s1": 2, "s27": 2, "s10": 2, "s15": 2, "s64": 4},
                {"s0": 3, "s1": 3, "s27": 3, "s10": 3, "s15": 3, "s64": 6},
            ],
        ),
        (UNTOLD, [{"b": 2, "t": 2, "p": 2, "all": 4}, {"b": 4, "t": 3, "p": 3, "all": 6}]),
        (BAKED, [{"b": 3, "t": 7}]),
        (BAKED_TWICE, [{"b": 3, "s": 5, "t": 7}, {"b": 4, "s": 5, "t": 7}]),
        (UNROLLED, [{"t": 7}]),
        (ONE, [{"d0": 1, "d1": 4}, {"d0": 1, "d1": 4}]),
        (LONG, [{"b": 2, "t": 960}, {"b": 1, "t": 1200}]),
    ],
    ids=["past", "window", "untold", "baked", "baked-twice", "unrolled", "one", "long"],
)
def test_the_sizes_are_found(text: str, dims: list[dict[str, int]], tmp_path: Path) -> None:
    model = build_text(text)
    if text is WINDOW:
        kept = model.graph.output[1].type.tensor_type.shape.dim[1]
        kept.dim_param = "s15 + Max(0, -Min(8, s10) + Min(8, (s10 + s27)))"
    if text in (PAST, WINDOW):
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "s10 + s27"
    path = save(model, tmp_path)
    verdict = verify(path, path)
    assert verdict.status == EQUAL, verdict.message
    assert [c.dims for c in verdict.cases][: len(dims)] == dims


# The trace had the maximum length in one constant axis, the other axis varies.
@pytest.mark.parametrize(("shape", "fed"), [("2, 6, 4", [6, 4]), ("2, 4, 6", [6, 4])], ids=["behind the batch", "last"])
def test_lengths_are_found(shape: str, fed: list[int], tmp_path: Path) -> None:
    text = f"""
    g (float[{shape}] x, int64[2] lengths) => (float[{shape}] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] last = {{1}}, int64[3] target = {{{shape.replace("4", "1")}}}>
    {{
      longest = ReduceMax <keepdims = 0> (lengths)
      time = Range (zero, longest, one)
      each = Unsqueeze (lengths, last)
      inside = Less (time, each)
      numbers = Cast <to = 1> (inside)
      mask = Reshape (numbers, target)
      y = Mul (x, mask)
    }}
    """
    plan = make_plan(build_text(text))
    session = plain_session(build_text(text))
    case, _ = feed(lambda feeds: session.run(None, feeds), plan, Recipe("random"), Data({}), [{}])
    assert case.feeds["lengths"].tolist() == fed
    path = save(build_text(text), tmp_path)
    assert verify(path, path).status == EQUAL


def test_only_vectors_of_free_integers_are_lengths() -> None:
    """Bytes, indices, compared numbers and matrices are not fed as lengths."""
    text = """
    g (uint8[2] pixels, int64[2] words, int64[2] flags, int64[2, 2] pairs, int64[2] lengths) => (bool[2] y)
    <float[3, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int64 seven = {7}>
    { t = Gather (table, words) y = Equal (flags, seven) }
    """
    plan = make_plan(build_text(text))
    assert [i.name for i in plan.inputs if says_lengths(i)] == ["lengths"]


# (inputs, nodes, weights, the only size of a dim that the weights accept)
DEMANDED = [
    ("float[c, c, h, w] x", "y = Conv (x, w)", "float[8, 12, 3, 3] w", {"c": 12}),
    (
        "float[n, c, h, w] x",
        "a = Relu (x) b = Cast <to = 1> (a) y = Conv <group = 3> (b, w)",
        "float[6, 4, 1, 1] w",
        {"c": 12},
    ),
    (
        "float[c, h, w, c] x",
        "a = Transpose <perm = [0, 3, 1, 2]> (x) y = Conv (a, w)",
        "float[8, 12, 1, 1] w",
        {"c": 12},
    ),
    ("float[n, c, h] x", "y = ConvTranspose (x, w)", "float[12, 8, 1] w", {"c": 12}),
    ("float[n, c] x", "y = Gemm <transB = 1> (x, w)", "float[8, 12] w", {"c": 12}),
    ("float[c, n] x", "y = Gemm <transA = 1> (x, w)", "float[12, 8] w", {"c": 12}),
    ("float[c, t, c] x", "y = MatMul (x, w)", "float[12, 8] w", {"c": 12}),
    ("float[t, n, c] x", "y, h = LSTM <hidden_size = 2> (x, w, r)", "float[1, 8, 12] w, float[1, 8, 2] r", {"c": 12}),
    # a vector of one element would broadcast: no size is demanded
    ("float[n, c] x", "a = Add (x, w) y = MatMul (a, v)", "float[12] w, float[12, 8] v", {}),
    ("float[n, c] x", "y = MatMul (x, w)", "float[12] w", {}),
    # only the name of the operator is the standard's
    ("float[n, c] x", "y = lab.MatMul (x, w)", "float[12, 8] w", {}),
]


@pytest.mark.parametrize(("taken", "nodes", "weights", "sizes"), DEMANDED)
def test_weights_leave_no_choice(taken: str, nodes: str, weights: str, sizes: dict[str, int], tmp_path: Path) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17, "lab" : 1]> g ({taken}) => (float y) <{weights}> {{ {nodes} }}'
    names = " ".join(re.findall(r"] (\w)", weights))
    model = build_text(f"# weights: normal {names}\n{text}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    plan = make_plan(model)
    assert plan.demanded == sizes
    assert all(choice.items() >= sizes.items() for choice in plan.size_choices())
    if sizes:
        path = save(model, tmp_path)
        verdict = verify(path, path)
        assert verdict.status == EQUAL and verdict.seconds < 5, verdict.message
        assert len(verdict.cases) > 1 or len(plan.symbols) == 1
        moving = [s for s in plan.symbols if s not in sizes]
        assert all(verdict.cases[0].dims[s] != verdict.cases[1].dims[s] for s in moving)


def test_far_larger_sizes_are_not_tried_for_another_case(tmp_path: Path) -> None:
    """A model traced with seven tokens is verified in under 5 s: a second case of larger sizes is not searched for."""
    path = save(build_text(BAKED), tmp_path)
    assert verify(path, path).seconds < 5


# A detector: attention from one query over a feature map, which has an eighth of the picture's size in each direction.
DETECTOR = """
g (float[b, 3, h, w] x, float[16, 3, 8, 8] w1, float[16, 16] wk, float[16, 16] wv, float[1, 1, 16] query)
  => (float[b, 1, 16] y)
<int64[3] rows = {0, 16, -1}, float scale = {SCALE}>
{
  c = Conv <strides = [4, 4], pads = [2, 2, 2, 2]> (x, w1)
  r = Relu (c)
  s = MaxPool <kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 1, 1]> (r)
  flat = Reshape (s, rows)
  tokens = Transpose <perm = [0, 2, 1]> (flat)
  k_proj = MatMul (tokens, wk)
  k = Mul (k_proj, scale)
  v = MatMul (tokens, wv)
  kt = Transpose <perm = [0, 2, 1]> (k)
  scores = MatMul (query, kt)
  weights = Softmax <axis = -1> (scores)
  y = MatMul (weights, v)
}
"""


def test_attention_runs_over_several_tokens(tmp_path: Path) -> None:
    """A changed scale of scores is found, in cases of several tokens.

    Over a single token, attention returns the value whatever the keys are.
    """
    for name, scale in (("a", "1.0"), ("b", "8.0")):
        onnx.save(_weighted(DETECTOR.replace("SCALE", scale)), tmp_path / name)
    verdict = verify(tmp_path / "a", tmp_path / "b")
    assert verdict.status == DIFFERENT, verdict.message
    first, second = (c.dims for c in verdict.cases[:2])
    assert first == {"b": 2, "h": 16, "w": 24}
    assert second == {"b": 1, "h": 23, "w": 13}, "other sizes, no multiples of strides, another batch, and no square"


def _weighted(text: str) -> onnx.ModelProto:
    """Return the model with inputs of fixed shape turned into weights."""
    model = parsed(text)
    rng = np.random.default_rng(0)
    for info in list(model.graph.input):
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if all(shape):
            value = rng.standard_normal(shape).astype(np.float32) / 4
            model.graph.initializer.append(numpy_helper.from_array(value, info.name))
            model.graph.input.remove(info)
    return model


def test_other_inputs_fit_the_sizes_of_given_ones(tmp_path: Path) -> None:
    model = build_text(PAST)
    path = save(model, tmp_path)
    np.save(tmp_path / "new.npy", np.ones((1, 5), np.float32))
    np.save(tmp_path / "past.npy", np.ones((1, 3), np.float32))
    inputs = {name: str(tmp_path / f"{name}.npy") for name in ("new", "past")}
    verdict = verify(path, path, VerifyOptions(inputs=inputs))
    assert verdict.status == EQUAL, verdict.message
    assert [c.dims for c in verdict.cases] == [{"s0": 1, "s27": 5, "s10": 3, "s1": 1, "s64": 8}] * 2, (
        "past and new together"
    )


def test_given_inputs_make_one_case(tmp_path: Path) -> None:
    text = "g (float[n, k] x, float[m] f) => (float[n, k] y) { y = Relu (x) }"
    path = save(parsed(text), tmp_path)
    np.save(tmp_path / "x.npy", np.ones((1, 5), np.float32))
    np.save(tmp_path / "f.npy", np.ones(1, np.float32))
    inputs = {name: str(tmp_path / f"{name}.npy") for name in "xf"}
    verdict = verify(path, path, VerifyOptions(inputs=inputs))
    assert (verdict.status, verdict.exact) == (EQUAL, True)
    assert [c.dims for c in verdict.cases] == [{"n": 1, "k": 5, "m": 1}]


RATE = """
g (int64 sr, float[4] x) => (float[4] y)
<int64 rate = {16000}>
{
  fast = Equal (sr, rate)
  y = If (fast) <
    then_branch = t () => (float[4] a) { a = Relu (x) },
    else_branch = e () => (float[4] b) { b = Neg (x) }
  >
}
"""


def test_numbers_on_both_sides_of_a_comparison_are_fed(tmp_path: Path) -> None:
    a = save(parsed(RATE), tmp_path)
    assert verify(a, a).status == EQUAL, "both branches were taken, no piece had to be looked at"
    for name in ("Relu", "Neg"):
        other = tmp_path / name
        onnx.save(parsed(RATE.replace(name, "Exp")), other)
        assert verify(a, other).status == DIFFERENT


def test_compared_tokens_are_fed_with_random_ones() -> None:
    text = """
    g (int64[n, t] ids) => (bool[n, t] y, bool[n, t] z)
    <int64 pad = {50256}, float far = {9.0}>
    { y = Equal (pad, ids) f = Cast <to = 1> (ids) z = Less (far, f) }
    """
    plan = make_plan(parsed(text))
    assert plan.inputs[0].compared == (50256, 9, 10, 50255, 8)
    case = InputMaker(plan, {}, 0).fill(OWN[0], {"n": 16, "t": 16})
    assert {0, 1, 50256, 9, 10} <= {*case.feeds["ids"].flat}


# Detections, of logits above the threshold only: usually none.
SCORES = """
g (float[1, 1, 6] x) => (float[k, 1] y)
<float[1, 6, 4] boxes = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11},
 int64 most = {9}, float overlap = {0.5}, float threshold = {0.999}, int64[1] last = {2}, int64[1] flat = {-1}>
{
  scores = Sigmoid (x)
  found = NonMaxSuppression (boxes, scores, most, overlap, threshold)
  index = Gather <axis = 1> (found, last)
  row = Reshape (x, flat)
  y = Gather (row, index)
}
"""
CUT = """
g (float[5] x) => (float[5] y, float[5] z) <float low = {-20.0}> { s = Add (x, low) y = Relu (s) z = Sigmoid (x) }
"""


@pytest.mark.parametrize(
    ("text", "wrong"),
    [(SCORES, ("(row,", "(flipped,")), (CUT, ("y = Relu (s)", "t = Add (s, s) y = Relu (t)"))],
    ids=["nothing found", "all zero"],
)
def test_inputs_at_another_scale_show_differences(text: str, wrong: tuple[str, str], tmp_path: Path) -> None:
    a = save(parsed(text), tmp_path)
    assert verify(a, a).status == EQUAL
    text = text.replace(*wrong).replace("  y = Gather (fl", "  flipped = Neg (row)\n  y = Gather (fl")
    onnx.save(parsed(text), tmp_path / "b.onnx")
    assert verify(a, tmp_path / "b.onnx").status == DIFFERENT


@pytest.mark.parametrize(
    ("values", "dull"),
    [
        ([0.0], True), ([1.0], False), ([1.0, 1.0], True), ([0.0, 1.0], False), ([0.0, 6.0] * 40, True), ([], True),
        ([np.nan, np.nan], True), ([np.nan, 0.0], False), ([0.0] * 99 + [1.0, 2.0], False),
    ],
)  # fmt: skip
def test_constant_and_empty_outputs_are_dull(values: list[float], dull: bool) -> None:
    assert is_dull(np.array(values, np.float32)) == dull
    assert is_dull(np.ones(len(values), np.int64)) == (not values)


def test_outputs_that_are_always_empty_are_no_evidence(tmp_path: Path) -> None:
    a = save(parsed(SCORES.replace("0.999", "2.0")), tmp_path)
    onnx.save(
        parsed(SCORES.replace("0.999", "3.0").replace("(row,", "(x2,").replace("  y =", "  x2 = Abs (row)\n  y =")),
        tmp_path / "b.onnx",
    )
    verdict = verify(a, tmp_path / "b.onnx")
    assert verdict.status in (DIFFERENT, "inconclusive", "verified in pieces")
    assert verdict.status != EQUAL, verdict.message
