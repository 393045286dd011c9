"""Decisions equal in all cases: comparisons that are never true, classes that are never the best."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt.verification import Verification
from tests.verification.pairs import own_check

HEAD = """<ir_version: 9, opset_import: ["" : 17, "ai.onnx.ml" : 3]> g (float[n, 4] x) => (y)
<float one = {1}, float two = {2}, float high = {9e9}, float[4] highs = {0.5, 9e9, 0.5, -9e9},
 float[4] odd = {0, 5, 0, 0}, float[4] few = {0, 0, 0, -9}, int64[4] classes = {3, 5, 7, 9},
 int64[4] others = {3, 5, 7, 8}, int64[1] rows = {-1}, int64[1] first = {0},
 float[4, 2] table = {0, 1, 2, 3, 4, 5, 6, 7}, float[4, 2] tables = {0, 1, 2, 3, 4, 5, 6, 8}> """
LESS = "s = Sigmoid (x)  c = Less (s, highs)  f = Cast <to = 1> (c)"
MORE = "s = Sigmoid (x)  c = Greater (s, high)"
BEST = "s = Add (x, few)  b = ArgMax <axis = 1, keepdims = 0> (s)"
# name: (the decision, nodes that read the decision, these nodes with a fault)
WRONG = {
    "a comparison that is never true": (
        LESS,
        "n = Neg (f)  y = Add (n, one)",
        "y = Max (f, one)",
    ),
    "a column of it": (
        "s = Sigmoid (x)  c = Greater (s, highs)  f = Cast <to = 1> (c)",
        "n = Neg (f)  y = Add (n, one)",
        "m = Mul (f, odd)  t = Sub (m, f)  y = Add (t, one)",
    ),
    "what chooses": (MORE, "n = Not (c)  y = Where (n, x, two)", "y = Where (c, one, x)"),
    "a class that is never the best": (BEST, "y = Gather (classes, b)", "y = Gather (others, b)"),
    "one that only one of the two decides": (
        "s = Add (x, few)",
        "b = ArgMax <axis = 1> (s)  r = Gather (classes, b)  y = Reshape (r, rows)",
        "q = ArgMax <axis = 1, keepdims = 0> (s)  y = Gather (others, q)",
    ),
    "rows of a table": (f"{BEST}  h = Unsqueeze (b, first)", "y = Gather (table, h)", "y = Gather (tables, h)"),
    "as pipelines pick": (
        BEST,
        "y = ai.onnx.ml.ArrayFeatureExtractor (classes, b)",
        "y = ai.onnx.ml.ArrayFeatureExtractor (others, b)",
    ),
}
# name: (the decision, nodes that read the decision, an equivalent form)
RIGHT = {
    "a comparison": (LESS, "n = Neg (f)  y = Add (n, one)", "y = Sub (one, f)"),
    "what chooses": (MORE, "n = Not (c)  y = Where (n, x, two)", "y = Where (c, two, x)"),
    "no columns": (
        "m = ReduceMax <keepdims = 0> (x)  c = Greater (m, high)",
        "n = Not (c)  y = Where (n, x, two)",
        "y = Where (c, two, x)",
    ),
    "what is clear of what is read besides": (
        "s = Sigmoid (x)  c = Greater (s, high)  f = Cast <to = 1> (c)  d = Not (c)",
        "e = And (c, d)  g = Cast <to = 1> (e)  y = Add (g, x)",
        "y = Identity (x)",
    ),
    "classes": (
        "s = Add (x, few)",
        "b = ArgMax <axis = 1> (s)  r = Gather (classes, b)  y = Reshape (r, rows)",
        "q = ArgMax <axis = 1, keepdims = 0> (s)  y = Gather (classes, q)",
    ),
    "a table of those that can be": (BEST, "y = Gather (classes, b)", "k = Gather (classes, b)  y = Abs (k)"),
}


def own(tmp_path: Path, decided: str, a: str, b: str, head: str = HEAD) -> Verification:
    """Return the verdict of the optimizer's own check."""
    return own_check(tmp_path, *(f"{head} {{ {decided}  {text} }}" for text in (a, b)))


@pytest.mark.parametrize(("decided", "a", "b"), WRONG.values(), ids=WRONG)
def test_a_fault_behind_a_constant_decision_does_not_pass(decided: str, a: str, b: str, tmp_path: Path) -> None:
    found = own(tmp_path, decided, a, b)
    assert found.status in ("different", "inconclusive"), found.message


@pytest.mark.parametrize(("decided", "a", "b"), RIGHT.values(), ids=RIGHT)
def test_an_equivalent_form_behind_a_constant_decision_is_right(decided: str, a: str, b: str, tmp_path: Path) -> None:
    found = own(tmp_path, decided, a, b)
    assert found.status in ("equal", "verified", "verified in pieces"), found.message
