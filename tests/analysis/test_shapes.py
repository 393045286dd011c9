"""Shapes, and integers computed from shapes, equal onnxruntime's at every size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sweep import ShapeData
from onnxopt.analysis.shapes.symbolic import Expr, Size
from onnxopt.graph import Model, Value, read_model
from onnxopt.verification.inputs.cases import Recipe
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.values import InputMaker
from tests.runtime import plain_session
from tests.samples import ROOT, build_text, sample

ZOO = ROOT.parent / "shared" / "zoo"
DYNAMIC = [ZOO / p for p in ("ts/gpt2_past_dyn.onnx", "ts/lstm_tagger_dyn.onnx", "dynamo/t5_encoder_dyn.onnx")]

OPERATORS = """
# weights: normal w
g (float[N, S, 8] x, float[N, S, 8] z, int64[N, S] k) => (y)
<
  int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4},
  int64[1] eight = {8}, int64[1] last = {-1}, int64[1] end = {9223372036854775807}, int64 start = {0}, int64 step = {1},
  int64[2] swap = {1, 0}, int64[3] keep = {0, 0, -1}, int64[2] pair = {-1, -1}, int64[2] ones = {1, 1}, float[8, 3] w,
  int64[4] halves = {0, 0, 2, 4}
>
{
  s = Shape (x)
  n1 = Gather (s, zero)
  s1 = Slice (s, one, two)
  size = Size (x)
  both = Mul (n1, s1)
  sum = Add (both, one)
  less = Sub (sum, one)
  scalar = Squeeze (less)
  range = Range (start, scalar, step)
  swapped = Gather (s, swap)
  target = Concat <axis = 0> (swapped, two, four)
  r = Reshape (x, target)
  flat = Reshape (x, keep)
  rows = Concat <axis = 0> (both, eight)
  m = Reshape (x, rows)
  p = MatMul (x, w)
  g1 = Gemm (m, w)
  t = Transpose <perm = [1, 2, 0]> (p)
  u = Unsqueeze (t, zero)
  c = Concat <axis = 1> (x, z)
  d = Shape (c)
  e = Gather (d, one)
  f = Slice (c, zero, s1, one)
  h = Slice (c, s1, end, one)
  i = Add (x, z)
  y = Softmax (i)
  j = ReduceMean <axes = [1], keepdims = 0> (i)
  j1 = ReduceL1 <axes = [-1]> (i)
  j2 = ReduceL2 <axes = [1], keepdims = 0> (r)
  j3 = ReduceLogSum <axes = [-2]> (y)
  j4 = ReduceLogSumExp <axes = [0]> (t)
  j5 = ReduceSumSquare <axes = [2], keepdims = 0> (p)
  largest = ArgMax <axis = 1> (i)
  least = ArgMin <axis = -1, keepdims = 0> (i)
  folded = Reshape (x, halves)
  deep = SpaceToDepth <blocksize = 2> (folded)
  flatter = DepthToSpace <blocksize = 2> (deep)
  odd = IsInf (i)
  total = Sum (i, x, z)
  wide = Concat <axis = 0> (three, n1, eight)
  l = Expand (j, wide)
  minus = Equal (swapped, pair)
  guarded = Where (minus, ones, swapped)
  fill = ConstantOfShape (guarded)
  o = ReduceProd <keepdims = 0> (s)
  q = Div (both, one)
  narrow = Cast <to = 6> (both)
  ku = Unsqueeze (k, last)
  kz = Mul (ku, zero)
  nd = GatherND (x, kz)
  zi = Cast <to = 7> (z)
  zz = Mul (zi, zero)
  ge = GatherElements <axis = 1> (x, zz)
  oh = OneHot <axis = 1> (k, four, pair)
}
"""


# As `math.ceil(n / 2)` and `int(n / 2)` are traced.
ROUNDED = """
g (float[N, S, 8] x) => (y)
<
  int64 first = {0}, int64 second = {1}, int64[2] both = {0, 1}, int64 five = {5}, float one = {1.0}, float two = {2.0},
  float three = {3.0}, float half = {0.5}, float[2] each = {2.0, 2.0}
>
{
  s = Shape (x)
  n = Gather (s, first)
  m = Gather (s, second)
  f = Cast <to = 1> (n)
  f2 = Div (f, two)
  up = Ceil (f2)
  a = Cast <to = 7> (up)
  down = Floor (f2)
  b = Cast <to = 7> (down)
  c = Cast <to = 6> (f2)
  twice = Mul (two, up)
  d = Cast <to = 7> (twice)
  less = Sub (n, five)
  g1 = Cast <to = 11> (less)
  g2 = Cast <to = 1> (g1)
  h = Cast <to = 1> (less)
  h3 = Div (h, three)
  h4 = Add (one, h3)
  h5 = Ceil (h4)
  h6 = Sub (h5, one)
  e = Cast <to = 7> (h6)
  cut = Cast <to = 7> (h3)
  v = Gather (s, both)
  w = Cast <to = 1> (v)
  w3 = Div (w, three)
  w4 = Ceil (w3)
  i = Cast <to = 7> (w4)
  j0 = Mul (f, half)
  j = Cast <to = 7> (j0)
  k0 = Div (w, each)
  k = Cast <to = 7> (k0)
  y = Relu (x)
}
"""

WINDOWS = """
# weights: normal w v u b r g gw gr
<ir_version: 9, opset_import: ["" : 19]>
g (float[N, 4, H, W] x, float[S, N, 4] t, float[N, H, W, 2] grid) => (y)
<
  float[6, 4, 3, 3] w, float[4, 2, 2, 2] v, float[6, 1, 3, 2] u, int64[1] k = {2}, int64[4] times = {1, 2, 1, 3},
  int64[8] pads = {0, 0, 1, 2, 0, 0, 0, 3}, float[4] scales = {1, 1, 2, 2}, int64[2] halves = {1, 3},
  float[1, 20, 4] r, float[1, 20, 5] g,
  float[1, 15, 4] gw, float[1, 15, 5] gr, float[4] b, float[4] quarter = {1, 1, 0.25, 0.5},
  int64[2] from = {1, 2}, int64[2] on = {9223372036854775807, 9223372036854775807}, int64[2] axes = {2, 3},
  int64[2] steps = {2, 3}, int64[2] less = {-1, -1}, int64[2] over = {2, 4}, int64[2] seven = {7, 3}
>
{
  same = Conv <pads = [1, 1, 1, 1]> (x, w)
  valid = Conv <auto_pad = "VALID"> (x, w)
  strided = Conv <strides = [2, 3], pads = [1, 0, 2, 1]> (x, w)
  again = Conv <strides = [2, 2], dilations = [1, 2], pads = [1, 2, 1, 2], group = 6> (strided, u)
  upper = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)
  back = ConvTranspose <strides = [2, 2], pads = [1, 0, 0, 1], output_padding = [1, 0], group = 2> (x, v)
  odd = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (back, w)
  pool = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)
  both, places = MaxPool <kernel_shape = [2, 2]> (x)
  average = AveragePool <kernel_shape = [2, 2], auto_pad = "SAME_LOWER", strides = [2, 2]> (x)
  rounded = AveragePool <kernel_shape = [2, 2], ceil_mode = 1, strides = [2, 2]> (x)
  more = MaxPool <kernel_shape = [3, 2], ceil_mode = 1, strides = [2, 1], pads = [0, 0, 1, 0]> (x)
  all = GlobalAveragePool (x)
  large = Resize <mode = "nearest"> (x, , scales)
  s = Shape (back)
  to = Resize <mode = "nearest"> (x, , , s)
  padded = Pad (x, pads)
  repeated = Tile (x, times)
  front, rest = Split <axis = 1> (x, halves)
  left, right = Split <axis = 3, num_outputs = 2> (large)
  values, indices = TopK <axis = 2> (x, k)
  sampled = GridSample (x, grid)
  product = Einsum <equation = "nchw,nchv->nwv"> (x, x)
  dotted = Einsum <equation = "...hw,...hv->v...w"> (x, x)
  spread = Einsum <equation = "nc..., nc... -> ...cn"> (all, x)
  lstm, lh, lc = LSTM <hidden_size = 5> (t, r, g)
  gru, gh = GRU <hidden_size = 5> (t, gw, gr)
  flat = Flatten <axis = 2> (x)
  normal = InstanceNormalization (x, b, b)
  every = Slice (x, from, on, axes, steps)
  small = Resize <mode = "nearest"> (x, , quarter)
  hw = Shape <start = 2> (x)
  before = Add (hw, less)
  halves_of = Div (before, over)
  odd_ones = Mod (hw, seven)
  missing = Sub (odd_ones, seven)
  fill = Mod (missing, over)
  y = Relu (same)
}
"""

# The ends of axes of unknown size.
SLICED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, M] x, bool[1, 1, S, S] p) => (y)
<
  int64[2] from = {0, 0}, int64[2] on = {2147483647, 2147483647}, int64[2] steps = {1, 2},
  int32[2] begin = {0, 0}, int32[2] far = {1000000000, 1000000000}, int32[2] at = {2, 3}
>
{
  all = Slice (x, from, on)
  half = Slice (x, from, on, , steps)
  square = Slice (p, begin, far, at)
  y = Relu (all)
}
"""

# The If squeezes, or does not: nothing is known of what it gives but what its readers say.
OF_ANY_RANK = """
# weights: normal w v r g
g (float[N, 4, W, 1] x, float[S, N, 4, 1] t) => (y)
<
  float[6, 4, 3] w, float[4, 3, 3] v, float[2, 20, 4] r, float[2, 20, 5] g, int64[1] axis = {3}, int64[1] one = {1},
  int64[1] three = {3}
>
{
  m = Shape <start = 3> (x)
  c = Equal (m, one)
  u, q = If (c) <
    then_branch = a () => (o, p) { o = Squeeze (x, axis)  p = Squeeze (t, axis) },
    else_branch = b () => (i, j) { i = Identity (x)  j = Identity (t) }
  >
  conv = Conv (u, w)
  back = ConvTranspose (u, v)
  seen = Shape (conv)
  wide = Slice (seen, one, three)
  some = Gather (wide, one)
  more = Add (some, one)
  lstm, lh, lc = LSTM <hidden_size = 5, direction = "bidirectional"> (q, r, g)
  ls = Shape (lh)
  both = Mul (ls, one)
  last = Squeeze (lh)
  y = Relu (conv)
}
"""


def value_of(size: Size, of: dict[str, int]) -> int | None:
    """The number, None if a symbol is not one of the inputs' own."""
    if isinstance(size, int):
        return size
    written = str(size).replace("{", "(").replace("}", ")")
    try:
        return int(eval(written, {}, dict(of)))  # sums, products and quotients of symbols
    except (NameError, SyntaxError):
        return None


def everything(model: Model) -> list[Value]:
    return [v for n in model.graph for v in n.outputs if v is not None]


def check(proto: onnx.ModelProto, at_least: int) -> None:
    plan = make_plan(proto)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    model = read_model(proto)
    types.infer(model)
    data = ShapeData()
    list(data.sweep(model.graph))
    values = everything(model)
    listed = {o.name for o in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=v.name) for v in values if v.name not in listed)
    session = plain_session(copy)
    names = [o.name for o in session.get_outputs()]
    sizes = 0
    proven: set[str] = set()
    for dims in plan.size_choices():
        try:
            results = dict(zip(names, session.run(None, InputMaker(plan, {}, 0).fill(Recipe("case"), dims).feeds)))
        except Exception:
            continue  # sizes that the model does not take
        sizes += 1
        for v in values:
            actual = results[v.name]
            if not isinstance(actual, np.ndarray):
                continue
            for expected, d in zip(data.dims.get(v, ()), actual.shape):
                number = value_of(expected, dims)
                assert number is None or number == d, f"{v.name}: {data.dims[v]} is {actual.shape}"
                if isinstance(expected, Expr) and number is not None:
                    proven.add(v.name)
            content = data.contents.get(v)
            if content is not None:
                assert content.shape == actual.shape, v.name
                for expected, element in zip(content.reshape(-1).tolist(), actual.reshape(-1).tolist()):
                    number = None if expected is None else value_of(expected, dims)
                    assert number is None or number == element, f"{v.name}: {content} is {actual}"
                    if isinstance(expected, Expr) and number is not None:
                        proven.add(v.name)
        if sizes == 2:
            break
    assert sizes
    assert len(proven) >= at_least, f"only {len(proven)} values with symbols"


@pytest.mark.parametrize(
    ("text", "at_least"), [(OPERATORS, 43), (WINDOWS, 38), (OF_ANY_RANK, 0), (ROUNDED, 12), (SLICED, 4)]
)
def test_every_operator_that_is_followed(text: str, at_least: int) -> None:
    check(build_text(text.strip()), at_least)


def test_weights_say_the_axes_of_what_a_conv_or_an_lstm_makes() -> None:
    model = read_model(build_text(OF_ANY_RANK.strip()))
    types.infer(model)
    data = ShapeData()
    list(data.sweep(model.graph))
    found = {v.name: [d if isinstance(d, int) else None for d in data.dims[v]] for v in data.dims}
    assert found["conv"] == [None, 6, None]
    assert found["back"] == [None, 3, None]
    assert found["lstm"] == [None, 2, None, 5]
    assert found["lh"] == [2, None, 5]
    assert "u" not in found


def test_a_slice_by_bounds_that_nobody_knows_has_its_rank_and_what_lies_along_other_axes() -> None:
    # What a state is like the standard's inference does not say.
    text = """
g (float[N, 5, 3] x, int64 trips, int64[1] n, int64[1] a) => (float[N, 5, 3] w)
<int64[1] zero = {0}, int64[1] axis = {-2}>
{
  w = Loop (trips, , x) <body = b (int64 i, bool c, float[A, B, C] h) => (bool d, float[A, B, C] k) {
    y = Slice (h, zero, n, axis)
    z = Slice (h, zero, n, a)
    k = Neg (h)
    d = Identity (c)
  }>
}"""
    model = read_model(build_text(text.strip()))
    data = ShapeData()
    (loop,) = data.sweep(model.graph)
    y, z, k, _ = (data.dims.get(node.output) for node in data.sweep(loop.bodies["body"]))
    assert [str(d) for d in k or ()] == ["N", "5", "3"]
    first, cut, last = map(str, y or ())
    assert (first, cut[0], last) == ("N", "?", "3")
    assert [str(d)[0] for d in z or ()] == ["?", "?", "?"]


@pytest.mark.parametrize("name", ["transformer_block", "residual_block", "depthwise_separable"])
def test_samples(name: str) -> None:
    check(sample(name), 4)


@pytest.mark.parametrize("path", DYNAMIC, ids=lambda p: p.stem)
def test_real_models(path: Path) -> None:
    if not path.is_file():
        pytest.skip("the zoo is not here")
    check(onnx.load(path), 10)
