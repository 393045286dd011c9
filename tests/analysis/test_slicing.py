"""Sizes of Slice equal onnxruntime's, for bounds and steps of every kind."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx import parser

from onnxopt.analysis.shapes.sizes import cuts, indices
from tests.runtime import plain_session

LARGEST = (1 << 63) - 1
ENDS = {LARGEST, (1 << 31) - 1}
BOUNDS = (-LARGEST - 1, -LARGEST, -(1 << 31), -4, -3, -2, -1, 0, 1, 2, 3, 4, 1 << 31, LARGEST - 1, *ENDS)
STEPS = (-LARGEST - 1, -4, -2, -1, 1, 2, 4, LARGEST)
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[n] x, int64[1] start, int64[1] end, int64[1] axis, int64[1] step) => (int64[k] y)
{ y = Slice (x, start, end, axis, step) }"""


def test_what_is_taken() -> None:
    session = plain_session(parser.parse_model(TEXT))
    for size, start, end, step in product((0, 1, 3), BOUNDS, BOUNDS, STEPS):
        x = np.arange(size)
        feeds = {"x": x, "axis": np.array([0])} | {
            name: np.array([i]) for name, i in (("start", start), ("end", end), ("step", step))
        }
        taken = indices(start, end, step, size)
        assert (taken is None) == (step < 0 and end in ENDS), "only there the standard and onnxruntime differ"
        if taken is not None:
            (expected,) = session.run(None, feeds)
            assert x[taken].tolist() == list(range(size)[taken]) == expected.tolist(), (size, start, end, step)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps", "found"),
    [
        ([1, 2], [3, 4], None, None, [(0, 1, 3, 1), (1, 2, 4, 1)]),
        ([1], [3], [-1], [-2], [(1, 1, 3, -2)]),
        ([], [], None, None, []),
        ([1], [3, 4], None, None, None),
        ([1], [3], [0, 1], None, None),
        ([1], [3], [0], [1, 1], None),
        ([1], [3], [2], None, None),
        ([1, 2], [3, 4], [1, -1], None, None),
        ([1], [3], None, [0], None),
        ([1, 2, 3], [1, 2, 3], None, None, None),
    ],
)
def test_along_which_axes(
    starts: list[int],
    ends: list[int],
    axes: list[int] | None,
    steps: list[int] | None,
    found: list[tuple[int, int, int, int]] | None,
) -> None:
    assert cuts(starts, ends, axes, steps, 2) == found
