"""A decoder's step becomes an Attention: padding, an empty past, one token, NaN among the values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.graph import read_model, write_model
from onnxopt.passes.levels import pipeline_for
from onnxopt.pipeline import PassContext, execute
from tests.runtime import plain_session
from tests.samples import build_text

HEADS = ", ".join(str(i // 2) for i in range(4))
STEP = """<ir_version: 11, opset_import: ["" : 23]>
step (float[B, 4, S, 8] q, float[B, 2, S, 8] k, float[B, 2, S, 8] v, bool[B, S, T] keep, float[B, 2, P, 8] past_k,
      float[B, 2, P, 8] past_v)
  => (float[B, 4, S, 8] y, float[B, 2, T, 8] present_k, float[B, 2, T, 8] present_v)
<int64[4] heads = {%s}, float[1] zero = {0}, float[1] hidden = {%s}, int64[1] one = {1}>
{
  present_k = Concat <axis = 2> (past_k, k)
  present_v = Concat <axis = 2> (past_v, v)
  kk = Gather <axis = 1> (present_k, heads)
  vv = Gather <axis = 1> (present_v, heads)
  t = Transpose <perm = [0, 1, 3, 2]> (kk)
  s = MatMul (q, t)
  kept = Unsqueeze (keep, one)
  mask = Where (kept, zero, hidden)
  m = Add (s, mask)
  p = Softmax <axis = -1> (m)
  n = IsNaN (p)
  w = Where (n, zero, p)
  y = MatMul (w, vv)
}"""


def optimized(hidden: str, level: int) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    original = build_text(STEP % (HEADS, hidden))
    copy = onnx.ModelProto()
    copy.CopyFrom(original)
    model = read_model(copy)
    execute(pipeline_for(level), model, PassContext(opt_level=level))
    return original, write_model(model)


def padded(batch: int, rows: int, columns: int, left: int = 0, right: int = 0) -> np.ndarray:
    """Each query sees what is up to it, but for the padding of the first sequence: with that on the left, nothing."""
    keep = np.broadcast_to(np.tri(rows, columns, columns - rows, dtype=bool), (batch, rows, columns)).copy()
    keep[0, :, :left] = False
    keep[0, :, columns - right :] = False
    return keep


@pytest.mark.usefixtures("kept_worker")
@pytest.mark.parametrize("hidden", ["-inf", "-3.4028235e38"])
@pytest.mark.parametrize("level", [2, 3])
def test_a_step_gives_what_its_formula_gives(level: int, hidden: str) -> None:
    models = optimized(hidden, level)
    assert ("Attention" in {n.op_type for n in models[1].graph.node}) == (level == 3)
    assert "Gather" not in {n.op_type for n in models[1].graph.node}
    before, after = map(plain_session, models)
    rng = np.random.default_rng(0)
    for rows, past, left, right in (
        (4, 0, 0, 0),
        (4, 0, 3, 0),
        (4, 0, 4, 0),
        (4, 0, 0, 2),
        (3, 5, 2, 0),
        (1, 6, 7, 0),
        (1, 0, 0, 0),
    ):
        sizes = {"q": (2, 4, rows, 8), "k": (2, 2, rows, 8), "v": (2, 2, rows, 8)}
        sizes |= {"past_k": (2, 2, past, 8), "past_v": (2, 2, past, 8)}
        feeds = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
        feeds["keep"] = padded(2, rows, past + rows, left, right)
        for nan in (False, True):
            feeds["v"][1, 0, 0, 0] = np.nan if nan else 1.0
            for x, y in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
                np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-6)
