"""Values that agree although an operand differs: no usual case came near enough to a breakpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification import Verification, Verifier, VerifyOptions
from onnxopt.verification.two_files import compare_files
from tests.verification.pairs import gaps

HEAD = """<ir_version: 9, opset_import: ["" : 19]> g (float[FIRST, 8] x) => (y)
    <float half = {0.5}, float two = {2}, float off = {2.0005}, float more = {2.05}, float third = {0.333},
     float sixth = {0.1665}, float s = {0.0625}, float twice = {0.125}, int8 z = {0}, int8 one = {1}>"""
STEPS = "q = QuantizeLinear (m, s, z) y = DequantizeLinear (q, s, z)"
ROUNDS = "r = Round (m) y = Mul (r, s)"
FLOOR = "r = Floor (m) i = Cast <to = 7> (r) y = Cast <to = 1> (i)"
CUT = "i = Cast <to = 7> (m) y = Cast <to = 1> (i)"
MASK = "g = Greater (m, half) y = Where (g, two, s)"
STEP = {"quantizer": STEPS, "Round": ROUNDS, "Floor": FLOOR, "Cast": CUT, "Greater": MASK}
USED = pytest.mark.parametrize("used", STEP.values(), ids=STEP)


def files(folder: Path, a: str, b: str, first: str = "n") -> tuple[Path, Path]:
    for name, nodes in (("a", a), ("b", b)):
        onnx.save(parser.parse_model(f"{HEAD.replace('FIRST', first)} {{ {nodes} }}"), folder / f"{name}.onnx")
    return folder / "a.onnx", folder / "b.onnx"


def own(a: Path, b: Path) -> Verification:
    """Return the verdict of the optimizer's own check."""
    with Verifier(a) as verifier:
        verifier.submit(b)
        return verifier.finish()


@USED
def test_more_rows_show_a_small_difference(used: str, tmp_path: Path) -> None:
    """A factor that is off by 1/4000 is found in a case of more rows.

    Two usual cases have few numbers near a breakpoint, or none.
    """
    found = own(*files(tmp_path, f"m = Mul (x, two) {used}", f"m = Mul (x, off) {used}"))
    assert found.status == "different" and found.places[0].value == "m", found.message


@pytest.mark.parametrize(
    ("used", "numbers"),
    [
        (STEPS, np.arange(4, 12) * 0.0625),
        (ROUNDS, np.arange(4, 12)),
        (FLOOR, np.arange(4, 12) + 0.5),
        (CUT, np.arange(4, 12) + 0.5),
        (MASK, [0.45, 0.45, 0.45, 0.45, 1, 2, 3, 4]),
    ],
    ids=["quantizer", "Round", "Floor", "Cast", "Greater"],
)
def test_a_difference_masked_in_every_case_is_inconclusive(used: str, numbers: Any, tmp_path: Path) -> None:
    """A difference masked in every case is inconclusive. All given inputs are far from a breakpoint."""
    a, b = files(tmp_path, f"m = Mul (x, two) {used}", f"m = Mul (x, more) {used}", "1")
    given = tmp_path / "x.npy"
    np.save(given, np.asarray(numbers, np.float32).reshape(1, 8) / 2)
    found = compare_files(a, b, VerifyOptions(inputs={"x": str(given)}))
    assert found.status == "inconclusive", found.message
    assert any(gap.endswith(" is computed from a value that differs") for gap in gaps(found)), found.message


def test_quantizer_levels_of_no_case_are_probed(tmp_path: Path) -> None:
    """A zero point that is off by one is inconclusive. The next, coarser quantizer differs in few of the levels."""
    coarse = "p = QuantizeLinear (d, two, z) y = DequantizeLinear (p, two, z)"
    a, b = (f"q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, {zero}) {coarse}" for zero in ("z", "one"))
    a, b = files(tmp_path, a, b, "1")
    given = tmp_path / "x.npy"
    np.save(given, np.asarray([[-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5]], np.float32))
    found = compare_files(a, b, VerifyOptions(inputs={"x": str(given)}))
    assert (found.status, gaps(found)) == ("inconclusive", ["`p` is computed from a value that differs"]), found.message


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("m = Mul (x, two) q = QuantizeLinear (m, twice, z)", "m = Identity (x) q = QuantizeLinear (m, s, z)"),
        ("k = Mul (x, half) m = Mul (k, third) q = QuantizeLinear (m, s, z)",
         "m = Mul (x, sixth) q = QuantizeLinear (m, s, z)"),
        ("m = Mul (x, half) o = Relu (m) q = QuantizeLinear (o, s, z)",
         "m = Identity (x) o = Relu (m) q = QuantizeLinear (o, twice, z)"),
    ],
    ids=["scale", "product", "through a Relu"],
)  # fmt: skip
def test_a_scale_moved_into_a_quantizer_is_right(a: str, b: str, tmp_path: Path) -> None:
    rest = "y = DequantizeLinear (q, s, z)"
    found = own(*files(tmp_path, f"{a} {rest}", f"{b} {rest}"))
    assert found.status in ("equal", "verified", "verified in pieces"), found.message


def test_values_behind_moves_are_equal(tmp_path: Path) -> None:
    a = f"t = Transpose (x) u = Transpose (t) m = Mul (u, two) {STEPS}"
    found = own(*files(tmp_path, a, f"u = Identity (x) m = Mul (u, two) {STEPS}"))
    assert found.status == "equal", found.message
