"""Sizes in bodies that runtimes refuse are not used: a branch that never runs stays loadable."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxopt
from tests.runtime import plain_session

CONSTANTS = """<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] seven = {7},
    int64[1] four = {4}, int64[1] eight = {8}, int64 last = {2},
    int64[1] less = {-3}, int64 first = {0}, int64 step = {1}, float unit = {1}, int64[2] both = {1, 1},
    int64[3] all = {1, 1, 1},
    float[3] few = {1, 2, 3}, float[2, 1] rows = {1, 2},
    float[2, 2] both_rows = {1, 2, 3, 4}>"""
BY_FLOATS = "s = Shape (x)  f = Cast <to = 1> (s)  o = Mul (f, unit)  t = Cast <to = 7> (o)"
# Each size by itself.
LISTED = """s{i} = Shape ({x})  a{i} = Gather (s{i}, zero)  b{i} = Gather (s{i}, one)  c{i} = Gather (s{i}, two)
    d{i} = Mul (c{i}, one)  t{i} = Concat <axis = 0> (a{i}, b{i}, d{i})  {y} = Reshape ({x}, t{i}) """

# Inputs, what is made before the branch that never runs, and that.
NEVER = {
    "a list of sizes of which one is known": (
        "float[1, S] v, float[N, S, 3] x",
        "",
        "s = Shape (x)  k = Gather (s, two)  w, i = TopK <axis = 0> (v, k)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "sizes that go through floats": (
        "float[3, 4] v, float[3, 4] x",
        f"{BY_FLOATS}  y = Reshape (x, t)",
        "w = MatMul (y, y)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "constants around the branch": (
        "float[2] v, float[N, 6] x",
        "s = Shape (x)  d = Gather (s, zero)  e = Shape <start = 1, end = 2> (x)  t = Concat <axis = 0> (d, e)"
        "y = Reshape (x, t)",
        "r = Shape (y)  k = Slice (r, one, two, zero)  a = Add (k, less)  w = ConstantOfShape (a)  b = Add (y, w)"
        "c = Add (b, few)  p = ReduceSum <keepdims = 0> (c)",
    ),
    "what only we know already": (
        "float[4] v, float[3, 4] x",
        "",
        "s = Shape (x)  g = Gather (s, one)  k = Mul (g, three)  w, i = TopK <axis = 0> (v, k)"
        "r = Shape (w)  n = Gather (r, first)  c = Range (first, n, step)  f = Cast <to = 1> (c)  a = Add (w, f)"
        "b = Add (a, few)  p = ReduceSum <keepdims = 0> (b)",
    ),
    "sizes that are picked of a list that stays": (
        "float[4] v, float[3, 4] x",
        "",
        "s = Shape (x)  g = Gather (s, step)  u = Unsqueeze (g, zero)  k = Mul (u, three)"
        "w, i = TopK <axis = 0> (v, k)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "what takes the place of what is watched": (
        "float[4] v, float[4] x",
        "s = Shape (x)  m = Mul (s, one)  a = Reshape (x, m)  b = Tanh (a)  h = Shape (b)  y = Reshape (a, h)",
        "c = Add (y, rows)  r = Shape (a)  g = Gather (r, first)  k = Unsqueeze (g, zero)  w = Tile (c, k)"
        "p = ReduceSum <keepdims = 0> (w)",
    ),
    "axes that are listed in the branch": (
        "float[3] v, float[2, 3, 4] x",
        "",
        "s = Shape (x)  a = Gather (s, zero)  y = Unsqueeze (x, a)  r = Shape (y)  e = Gather (r, three)"
        "k = Mul (e, two)  t = Concat <axis = 0> (two, one, three, k)  w = Expand (y, t)"
        "p = ReduceSum <keepdims = 0> (w)",
    ),
    "what something is made of is learnt before it": (
        "float[2] v, float[1, S, 6] x",
        "s = Shape (x)  m = Mul (s, all)  a = Reshape (x, m)  y = Transpose <perm = [0, 1, 2]> (a)",
        "w = Squeeze (y, two)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "what a Scan collects": (
        "float[2] v, float[2, 3] x",
        f"{BY_FLOATS}  y = Reshape (x, t)  r = Transpose <perm = [1, 0]> (y)  u = Gather (r, first)"
        "m, n = Scan <num_scan_inputs = 1, scan_output_axes = [-1], body = b (float[2] h, float[2] e) => (float[2] g,"
        "float[2] c) { g = Add (h, e)  c = Tanh (g) }> (v, r)",
        "w = MatMul (n, rows)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "what a Loop collects": (
        "float[2] v, float[2, 3] x",
        f"{BY_FLOATS}  y = Reshape (x, t)  m, n = Loop (last, , v) <body = b (int64 i, bool go, float[2] h) => (bool g,"
        "float[2] k, float[D, E] c) { g = Identity (go)  k = Tanh (h)  c = Neg (y) }>",
        "w = Add (n, both_rows)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "what is made of what only we know": (
        "float[2] v, float[3, 4] x",
        "s = Shape (x)  m = Mul (s, both)  a = Reshape (x, m)  y = Concat <axis = 0> (x, a)",
        "u = Relu (y)  w = Squeeze (u, zero)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "a part of what has less than nothing": (
        "float[2] v, float[1, 4] x",
        "",
        "s = Shape (x)  d = Gather (s, one)  a = Sub (one, d)  t = Concat <axis = 0> (a, seven)"
        "u, w = Split <axis = 0> (x, t)  h, k = Split <axis = 0> (u, both)  p = ReduceSum <keepdims = 0> (k)",
    ),
    "lengths beyond the end": (
        "float[2] v, float[4] x",
        "y = Slice (x, zero, three, zero)",
        "s = Shape (y)  a = Mul (s, three)  t = Concat <axis = 0> (s, a)  u, w = Split <axis = 0> (y, t)"
        "r = Shape (w)  c = ConstantOfShape (r)  k = Add (w, c)  p = ReduceSum <keepdims = 0> (k)",
    ),
    "sizes that go through floats twice": (
        "float[2] v, float[3, 4] x",
        "s = Shape (x)  f = Cast <to = 1> (s)  o = Mul (f, unit)  t = Cast <to = 7> (o)  y = Reshape (x, t)"
        "r = Shape (y)  g = Cast <to = 1> (r)  h = Mul (g, unit)  k = Cast <to = 7> (h)  d = Reshape (y, k)",
        "w = Squeeze (d, one)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "zeros of a shape that only we know": (
        "float[2] v, float[1, S, 6] x",
        "s = Shape (x)  f = Cast <to = 1> (s)  o = Mul (f, unit)  t = Cast <to = 7> (o)"
        "n = ConstantOfShape (t)  e = Cast <to = 1> (n)  y = Add (x, e)",
        "u, w = Split <axis = 0> (y, both)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "two numbers of one axis, of which one is known first": (
        "float[4] v, float[2, 3, 4] x",
        "s = Shape (x)  d = Slice (s, one, two, zero)  t = Concat <axis = 0> (two, d, four)  y = Reshape (x, t)",
        "r = Shape (y)  g = Gather (r, one)  k = Mul (g, two)  u = Slice (v, zero, k, zero)"
        "h = Shape (u)  j = Add (h, one)  l = Add (h, two)  m = Concat <axis = 0> (l, j)  n = ConstantOfShape (m)"
        "a = Add (u, n)  e = Shape (a)  f = Cast <to = 1> (e)  o = Mul (f, unit)  w = Cast <to = 7> (o)"
        "c = ConstantOfShape (w)  b = Add (a, c)  p = ReduceSum <keepdims = 0> (b)",
    ),
    "two numbers of one axis, of which one is learnt late": (
        "float[2] v, float[3, 4] x",
        f"{BY_FLOATS}  y = Reshape (x, t)",
        "e = Flatten <axis = 0> (x)  r = Shape (e)  d = Gather (r, one)  k = Div (d, two)"
        "m = Concat <axis = 0> (k, d)  n = ConstantOfShape (m)  a = Add (y, n)  p = ReduceSum <keepdims = 0> (a)",
    ),
    "sizes that are listed before the branch": (
        "float[2] v, float[4] x",
        "s = Shape (x)  t = Concat <axis = 0> (s)  y = Reshape (x, t)",
        "r = Shape (y)  g = Gather (r, zero)  k = Mul (g, three)  m = Concat <axis = 0> (g, k)"
        "u, w = Split <axis = 0> (y, m)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "a list that is not followed into the branch": (
        "float[2] v, float[3, 4, 5] x",
        f"{BY_FLOATS}  y = Reshape (x, t)",
        "a = Relu (y)  n = ConstantOfShape (s)  b = Add (n, a)  w = Squeeze (b, one)p = ReduceSum <keepdims = 0> (w)",
    ),
    "more of what is outside than may be asked": (
        "float[2] v, float[2, 3, 4] x0",
        "".join(LISTED.format(x=f"x{i}", y=f"x{i + 1}", i=i) for i in range(4)),
        "w = MatMul (x4, x4)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "a Shape that would be read off what is known": (
        "float[2] v, float[4] x",
        "y = Concat <axis = 0> (x, x)",
        "t = Concat <axis = 0> (eight)  a = Reshape (y, t)  b = LeakyRelu (a)  r = Shape (b)"
        "k = Div (r, r)  i = Expand (k, r)  g = GatherElements (y, i)  w = Squeeze (g, zero)"
        "p = ReduceSum <keepdims = 0> (w)",
    ),
    "more than nothing of what is picked": (
        "float[2] v, float[2, 3, 1] x",
        "",
        "s = Shape (x)  d = Gather (s, two)  k = Sub (d, seven)  w, i = TopK <axis = 2> (x, k)"
        "r = Shape (w)  g = Gather (r, step)  n = Range (first, g, step)  f = Cast <to = 1> (n)  a = Add (w, f)"
        "p = ReduceSum <keepdims = 0> (a)",
    ),
    "two numbers of one axis, of which runtimes know one": (
        "float[2] v, float[1, S, 6] x",
        f"{BY_FLOATS}  y = Reshape (x, t)  l = Concat <axis = 0> (two, four)  h, j = Split <axis = 2> (y, l)",
        "r = Shape (j)  g = Gather (r, last)  a = Unsqueeze (g, zero)  m = Concat <axis = 0> (zero, a)"
        "n = ConstantOfShape (m)  b = Add (x, n)  d = Shape (b)  k = Slice (d, two, three, zero)"
        "w = Unsqueeze (b, k)  e = ReduceSum <keepdims = 0> (w)  c = ReduceSum <keepdims = 0> (h)  p = Add (e, c)",
    ),
    "a target that is constant for one reader": (
        "float[2] v, float[3, 4] x",
        "s = Shape (x)",
        "a = Reshape (x, s)  b = Reshape (x, s)  k = Shape (x)  c = Reshape (b, s)  w, i = TopK <axis = -1> (c, k)"
        "p = ReduceSum <keepdims = 0> (w)",
    ),
    "lengths below zero": (
        "float[2] v, float[1, 4] x",
        "",
        "s = Shape (x)  d = Gather (s, one)  a = Sub (one, d)  t = Concat <axis = 0> (a, seven)"
        "u, w = Split <axis = 0> (x, t)  k = Slice (w, zero, one, zero)  p = ReduceSum <keepdims = 0> (k)",
    ),
}

# What the branch does, besides, with a number of 4: it is 3 elements of which it takes so many, which runtimes do not
# see. So it does not become constant; and if y is known, which has 3 rows of which it takes so many, they refuse that.
STAYS = """j = Slice ({number}, zero, one, zero)  b, d = TopK <axis = 0> (few, j)  e = ReduceSum <keepdims = 0> (b)
    w, i = TopK <axis = 0> (y, k)  c = ReduceSum <keepdims = 0> (w)  p = Add (c, e)"""
SEEN = {
    "what is picked": (12, "r = Shape (v)  k = Gather (r, zero) " + STAYS.format(number="k")),
    "what is computed of one": (
        12,
        "r = Shape (v)  a = Gather (r, zero)  h = Shape (rows)  g = Gather (h, one)  k = Mul (a, g) "
        + STAYS.format(number="k"),
    ),
    "what is computed of several": (
        14,
        "r = Shape (v)  h = Sub (r, r)  a = Add (r, h)  k = Gather (a, zero) " + STAYS.format(number="r"),
    ),
    "what is cast": (
        13,
        "r = Shape (v)  a = Cast <to = 6> (r)  g = Cast <to = 7> (a)  k = Gather (g, zero) " + STAYS.format(number="r"),
    ),
    "what is rounded twice": (
        13,
        "r = Shape (v)  a = Cast <to = 11> (r)  h = Cast <to = 10> (a)  g = Cast <to = 7> (h)  k = Gather (g, zero) "
        + STAYS.format(number="r"),
    ),
    "what is of another kind of floats": (
        13,
        "r = Shape (v)  a = Cast <to = 16> (r)  g = Cast <to = 7> (a)  k = Gather (g, zero) "
        + STAYS.format(number="r"),
    ),
    "what is joined": (
        13,
        "r = Shape (v)  a = Concat <axis = 0> (r, r)  k = Gather (a, zero) " + STAYS.format(number="r"),
    ),
}
# Others of an earlier opset.
EARLIER = {
    **{
        name: (opset, "float[4, 5] v, float[3, 4] x", f"{BY_FLOATS}  y = Reshape (x, t)", never)
        for name, (opset, never) in SEEN.items()
    },
    "what is made around the branch, too": (
        12,
        "float[4] v, float[1, 2] x",
        "s = Shape (v)  a = ConstantOfShape (s)  t = Shape (a)",
        "b = ConstantOfShape (s)  h = Shape (x)  c = Reshape (b, h)  w = MatMul (b, c) "
        "p = ReduceSum <keepdims = 0> (w)",
    ),
    "no axes to join": (
        13,
        "float[2] v, float[3] x",
        "s = Shape (x)  e = Slice (s, one, two, zero)  n = ConstantOfShape (e)",
        "r = Reshape (n, e)  w = Concat <axis = 0> (n, r)  p = ReduceSum <keepdims = 0> (w)",
    ),
    "no axes to split": (
        13,
        "float[2] v, float[N] x",
        "s = Shape (x)  e = Slice (s, one, one, zero)",
        "r = Reshape (x, e)  t = Shape (x)  u, w = Split <axis = 0> (r, t)  p = ReduceSum <keepdims = 0> (u)",
    ),
}


# What a Loop carries has the shape with which it starts, as far as we know; runtimes do not.
CARRIED = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N, S, 3] x, bool on) => (z, c) {CONSTANTS} {{
    s = Shape (x)  y = Neg (x)
    z, c = Loop (first, , y) <body = b (int64 i, bool go, float[] a) => (bool going, float[] n, float[] w) {{
        k = Slice (s, two, three, zero)  m = Mul (k, two)  w, j = TopK <axis = 2> (a, m)
        n = Tanh (a)  going = Identity (go) }}> }}"""


def optimized(model: onnx.ModelProto, level: int) -> onnx.ModelProto:
    return onnxopt.optimize(model, level=level, verify=False).model


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize(("inputs", "made", "never"), NEVER.values(), ids=NEVER)
def test_what_is_loaded_is_loaded_afterwards(inputs: str, made: str, never: str, level: int) -> None:
    assert_loaded_and_same(branching(17, inputs, made, never), level)


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize(("opset", "inputs", "made", "never"), EARLIER.values(), ids=EARLIER)
def test_what_was_loaded_of_an_earlier_opset_is(opset: int, inputs: str, made: str, never: str, level: int) -> None:
    assert_loaded_and_same(branching(opset, inputs, made, never), level)


def branching(opset: int, inputs: str, made: str, never: str) -> onnx.ModelProto:
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}, bool on) => (float z) {CONSTANTS} {{ {made}
        z = If (on) <then_branch = t () => (float p) {{ {never} }},
                    else_branch = e () => (float q) {{ q = ReduceSum <keepdims = 0> (v) }}> }}"""
    )


@pytest.mark.parametrize("level", [1, 3])
def test_what_is_carried_is_known_no_better_in_a_second_run(level: int) -> None:
    model = parser.parse_model(CARRIED)
    state = model.graph.node[-1].attribute[0].g.input[2].type.tensor_type
    state.ClearField("shape")
    for output in (*model.graph.output, *model.graph.node[-1].attribute[0].g.output[1:]):
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        output.type.tensor_type.ClearField("shape")
    assert_loaded_and_same(model, level)


def assert_loaded_and_same(model: onnx.ModelProto, level: int) -> None:
    result = optimized(model, level)
    found = []
    for proto in (model, result):
        session = plain_session(proto)
        sizes = {"N": 2, "S": 5}
        shapes = {i.name: [sizes.get(d, d) for d in i.shape] for i in session.get_inputs()}
        feeds = {n: np.zeros((), bool) if n == "on" else np.ones(d, np.float32) for n, d in shapes.items()}
        found.append(session.run(None, feeds)[0])
    assert np.array_equal(*found)
    assert optimized(result, level).SerializeToString() == result.SerializeToString(), "a second run changes something"
