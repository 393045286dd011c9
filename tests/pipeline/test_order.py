"""Whatever the order of the passes of a round, where none declares that it runs before or after another, as many nodes
are left, and the same.

Each text below is what an order once spoilt. `ONNXOPT_ORDERS=20 pytest tests/pipeline/test_order.py` tries as many
orders, on every model of the test cases.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import onnx
import pytest

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.graph import read_model
from onnxopt.passes.levels import LEVELS
from onnxopt.pipeline import Fixpoint, PassContext, Sequential, execute, parse_pipeline
from onnxopt.pipeline.manager import in_order
from tests.cases.test_cases import CASES
from tests.samples import build_text

ORDERS = int(os.environ.get("ONNXOPT_ORDERS", "0"))
HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
MODELS = {
    "weights shared by layers": """
# weights: normal w b
g (float[2, 5, 8] x) => (float[2, 4, 5, 2] y)
<float[8, 8] w, float[8] b, int64[4] heads = {0, 5, 4, 2}, int64[3] rows = {0, 5, 8}, float z = {0.7}>
{
  w1 = Transpose (w) w2 = Transpose (w)
  a = MatMul (x, w1) c = Add (a, b) d = Reshape (c, heads) e = Transpose <perm = [0, 2, 1, 3]> (d) f = Mul (e, z)
  s = Softmax (f) r = Reshape (s, rows)
  h = MatMul (r, w2) i = Add (h, b) j = Reshape (i, heads) k = Transpose <perm = [0, 2, 1, 3]> (j) l = Mul (k, z)
  y = Softmax (l)
}""",
    "a zero state, cut out of one": """
# weights: normal w r b
g (float[S, N, 3] x) => (y, z)
<float[1, 8, 3] w, float[1, 8, 2] r, float[1, 16] b, int64 i = {1}, int64[1] zero = {0}, int64[1] one = {1},
 int64[1] two = {2}>
{
  s = Shape (x) n = Gather (s, i) m = Unsqueeze (n, zero)
  dims = Concat <axis = 0> (two, m, two) zeros = ConstantOfShape (dims)
  a = Slice (zeros, zero, one, zero) c = Slice (zeros, one, two, zero)
  y = LSTM <hidden_size = 2> (x, w, r, b, , a, a) z = LSTM <hidden_size = 2> (x, w, r, b, , c, c)
}""",
    "positions, unsqueezed again and again": """
g (float[N, S] x) => (a, b, c)
<int64 zero = {0}, int64 one = {1}, int64[1] at0 = {0}, int64[1] at1 = {1}, int64[1] at2 = {2}, int64[1] at3 = {3}>
{
  s = Shape (x) n = Gather (s, one) r = Range (zero, n, one)
  u = Unsqueeze (r, at0) v = Unsqueeze (u, at1) a = Unsqueeze (v, at3)
  p = Unsqueeze (r, at0) q = Unsqueeze (p, at1) b = Unsqueeze (q, at2)
  d = Unsqueeze (r, at0) e = Unsqueeze (r, at1) c = Sub (d, e)
}""",
    "the batch of tokens, of a mask, of a cache": """
g (float[N, 4] x, float[N, S, 8] mask, float[N, P] cache) => (a, b, c, d)
<int64 zero = {0}, int64 one = {1}, int64[1] at0 = {0}, int64[1] single = {1}>
{
  r = Relu (x) s = Shape (r) n = Gather (s, zero) p = Unsqueeze (n, at0)
  t = Shape (mask) m = Gather (t, zero) k = Gather (t, one)
  u = Shape (cache) o = Gather (u, zero) q = Gather (u, one) q1 = Unsqueeze (q, at0)
  a = Range (zero, m, one) b = Range (zero, o, one) dims = Concat <axis = 0> (p, single, q1)
  c = Expand (single, dims) d = Range (zero, k, one)
}""",
    "axes put there and taken back": """
g (float[2, 3] x) => (float[2, 1, 1, 3] y, float[2, 1, 3, 1] z)
<int64[1] one = {1}, int64[1] two = {2}, int64[1] back = {-2}, int64[1] last = {-1}>
{
  u = Unsqueeze (x, one) v = Unsqueeze (u, two) y = Relu (v) s = Squeeze (v, back) z = Unsqueeze (s, last)
}""",
    "Casts inside a normalization": """
# weights: normal g w
g (float[N, 3, 8] x) => (float[N, 3, 4] y)
<float[8] g, float[8, 4] w, float eps = {0.001}, float one = {1}>
{
  a = Cast <to = 1> (x) b = Mul (a, a) c = ReduceMean <axes = [-1]> (b) d = Add (c, eps) e = Sqrt (d)
  f = Div (one, e) h = Mul (a, f) i = Cast <to = 1> (h) j = Mul (i, g) y = MatMul (j, w)
}""",
    "a shape, cut in pieces": """
g (float[2, N, S, 8] x, float[N, S] z) => (y, w)
<int64[1] i0 = {0}, int64[1] i2 = {2}, int64[1] i3 = {3}, int64[1] i4 = {4}, int64[1] rest = {-1}>
{
  s = Shape (x) a = Slice (s, i0, i2) b = Slice (s, i2, i3) c = Slice (s, i3, i4)
  t = Concat <axis = 0> (rest, b, c) y = Reshape (x, t) u = Concat <axis = 0> (a, c, b)
  v = Transpose <perm = [0, 1, 3, 2]> (x) k = Reshape (v, u) w = Softmax (k) o = Add (z, z)
}""",
    "columns of numbers, twice": """
g (int64 n) => (a, b, c)
<int64 zero = {0}, int64 one = {1}, int64[2] column = {-1, 1}, int64[1] last = {-1}>
{
  r = Range (zero, n, one) p = Reshape (r, column) q = Unsqueeze (p, last) a = Concat <axis = 2> (q, q)
  s = Reshape (r, column) t = Unsqueeze (s, last) b = Concat <axis = 2> (t, t, t) c = Add (s, one)
}""",
}
SPOILT = (
    *("A part that is cut out twice", "A shared weight is copied, never changed", "All of it in order is the tensor"),
    *("An average over zeros that count", "Biases, from which is taken", "Chains of constants, each kind"),
    *("Gelu by erf, in three orders", "Overlapping ranges, disjoint ranges", "Relu before and after"),
    *("Squeeze along the joined axis", "Transposes around an Unsqueeze: one remains"),
)


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    for name, text in MODELS.items():
        comment, _, graph = text.strip().rpartition("\ng (")
        yield name, build_text(f"{comment}\n{HEADER}\ng ({graph}" if comment else f"{HEADER}\n{text.strip()}")
    for case in CASES:
        if ORDERS or any(name in case.name for name in SPOILT):
            yield case.name, case.build()


def left(proto: onnx.ModelProto, pipeline: Sequential) -> Counter[str]:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    model = read_model(copy)
    execute(pipeline, model, PassContext(opt_level=3))
    return Counter(node.op for node in model.nodes())


def shuffled(level: int, seed: int) -> Sequential:
    mixed = random.Random(seed)
    points: Iterable[Fixpoint] = parse_pipeline(LEVELS[level]).passes  # type: ignore[assignment]
    return Sequential(tuple(Fixpoint(tuple(in_order(mixed.sample(p.children, len(p.children))))) for p in points))


@pytest.mark.parametrize("level", [2, 3])
def test_any_order_leaves_the_same_nodes(level: int) -> None:
    usual = parse_pipeline(LEVELS[level])
    orders = [shuffled(level, seed) for seed in range(ORDERS or 4)]
    for name, proto in models():
        expected = left(proto, usual)
        for seed, order in enumerate(orders):
            assert left(proto, order) == expected, f"{name}, order {seed}: {order}"


def test_the_levels_are_in_the_order_that_passes_declare() -> None:
    for text in LEVELS[1:]:
        for point in parse_pipeline(text).passes:
            assert [p.name for p in in_order(point.children)] == [p.name for p in point.children]
