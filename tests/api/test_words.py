"""Messages on time, on growing files, and on runs whose rewrites were all undone."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

import onnxopt

TILED = """<ir_version: 8, opset_import: ["" : 17]> g (int64[N] i, float[N, 512] x) => (float[N, 64] y, float[N, 64] e)
    <int64[2] times = {16, 1}> { e = Gather (w, i) t = Tile (w, times) y = MatMul (x, t) }"""


def test_a_file_that_grows_says_why_and_what_keeps_it_small(tmp_path: Path) -> None:
    """A weight that is read as it is, and tiled: that is folded."""
    model = onnx.parser.parse_model(TILED)
    weight = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    for verify in (False, True):
        (said,) = onnxopt.optimize(model, pipeline="constant-folding", verify=verify).report.pipeline.warnings
        assert said == (
            "the file is 128.0 KiB larger than the original: constant-folding made constants of 128.0 KiB; "
            "--max-constant-bytes 0 keeps it small"
        )
    small = onnxopt.optimize(model, pipeline="constant-folding", max_constant_bytes=0, verify=False).report
    assert small.bytes_after <= small.bytes_before and not small.pipeline.warnings


def test_where_all_is_left_out_that_is_said_and_all_attempts_count(sines: onnx.ModelProto) -> None:
    del sines.graph.node[0]
    sines.graph.node[0].input[0] = "x"
    began = time.perf_counter()
    report = onnxopt.optimize(sines, plugins=["wrong.py"], extra=["wrong"]).report
    taken = time.perf_counter() - began
    assert (report.changed, [r.rule for r in report.rolled_back]) == (False, ["sine_is_cosine"])
    assert "nothing was changed: what was to be done makes the result wrong, and was left out" in str(report)
    assert "nothing to do" not in str(report)
    assert 0.5 * taken < report.seconds <= taken
    assert report.phases["roll-back"] > report.phases["passes"]
