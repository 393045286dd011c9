"""Pieces load in onnxruntime only if the ranks of their inputs are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.pieces.noise import noise_of
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.runner import Opened, Runner
from onnxopt.verification.programs.stream import Stream
from onnxopt.verification.run import Failed
from tests.samples import parsed
from tests.verification.pairs import verdict

# onnxruntime takes a list computed from a value without rank for empty: too few sizes for a picture.
TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, 3, 3] x, int64 h) => (float[a, b, c, d] y, int64[e] k)
    <int64[2] one = {{1, 1}}, int64[1] two = {{2}}, int64[1] first = {{0}}, int64[4] sizes = {{1, 1, 3, 3}},
     int64[1] flat = {{-1}}, int64 few = {{1}}, int64 most = {{9}},
     float f = {{3}}, float g = {{0.7}}, float fg = {{{fg}}}> {{
    s = Sin (x) {scaled} m = Reshape (v, sizes)
    w = Clip (h, few, most) u = Unsqueeze (w, first) p = Concat <axis = 0> (one, u, two)
    y = Resize <mode = "linear"> (m, , , p) z = Reshape (y, flat) t, k = TopK (z, two)
}}"""


@pytest.mark.parametrize(("factor", "status"), [("2.1", "verified in pieces"), ("2.2", "different")])
def test_a_piece_with_a_size_as_input(factor: str, status: str, tmp_path: Path) -> None:
    one = TEXT.format(fg=factor, scaled="a = Mul (s, f) v = Mul (a, g)")
    other = TEXT.format(fg=factor, scaled="v = Mul (s, fg)")
    found = verdict(tmp_path, one, other)
    assert found.status == status, found.message


PICKS = """<ir_version: 8, opset_import: ["" : 13]> g (int32[n] x) => (int8[a, b] y, int64[e] k)
    <int64[2] pair = {{0, -2}}, int64[1, 2] both = {{0, 0}}, int64[1] one = {{1}}> {{
    u = GatherElements (x, pair) v = Gather (u, both) w = Cast <to = 3> (v)
    m, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [0, -1],
                 body = f (int8[] s) => (int64 i, int8[] o)
                        <int64[3, 1] places = {{0, 0, 0}}, int64[3] all = {{0, 0, 0}}> {{
                     i = ArgMin <keepdims = 0> (s) o = {picked} }}> (w)
    t, k = TopK (m, one)
}}"""


def test_a_scan_needs_ranks_at_its_run(tmp_path: Path) -> None:
    """A Scan in a piece gets inputs of known rank.

    For an input of unknown rank, onnxruntime does not know the axes of the body's values, and fails at the run.
    """
    one, other = (PICKS.format(picked=p) for p in ("GatherND (s, places)", "Gather (s, all)"))
    assert verdict(tmp_path, one, other).status in ("equal", "verified in pieces")


def runner(folder: Path) -> Runner:
    onnx.save(parsed(TEXT.format(fg="2.1", scaled="v = Mul (s, fg)")), folder / "a.onnx")
    return Runner(Program(Skeleton(folder / "a.onnx")))


def test_a_list_of_sizes_as_input_has_its_length(tmp_path: Path) -> None:
    """A list of sizes that is an input of a piece has a declared length.

    onnxruntime takes a list of unknown length for empty.
    """
    found = runner(tmp_path)
    resize = found.program.maker["y"]
    opened = found.open([resize], {"m": "tensor(float)", "p": "tensor(int64)"}, ["y"])
    made = opened.run({"m": np.ones((1, 1, 3, 3), np.float32), "p": np.array([1, 1, 6, 2])})
    assert made["y"].shape == (1, 1, 6, 2)


class Refusing(Runner):
    """A runner that fails at its first load."""

    def open(self, *args: Any, **how: Any) -> Opened:
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked == 1:
            raise Failed("not now")
        return super().open(*args, **how)


def test_noise_is_measured_if_the_first_sample_does_not_load(tmp_path: Path) -> None:
    """Noise is measured although the first sample does not load: the next has other weights."""
    program = runner(tmp_path).program
    original = Stream(
        Runner(program), [{"x": np.linspace(0.1, 1, 9, dtype=np.float32).reshape(1, 1, 3, 3)}], {"x": "tensor(float)"}
    )
    original.run(original.open([program.maker["s"]], ["s"]))
    original.runner = Refusing(program)
    found = noise_of(original, ["s"], {"x"}, 0)
    assert found["s"][0].largest > 0
