"""A difference at a batch of one only is found, and agreement at this size proves nothing."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification import Verification, verify

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 1, 8] x) => (y) '
CONSTANTS = "<int64[1] one = {1}, int64[2] pairs = {-1, 16}, int64[1] first = {0}, int64 count = {0}, int64 last = {1}>"


def judge(tmp_path: Path, a: str, b: str) -> Verification:
    for name, body in (("a", a), ("b", b)):
        onnx.save(parser.parse_model(f"{HEAD} {CONSTANTS} {{ {body} }}"), tmp_path / f"{name}.onnx")
    return verify(tmp_path / "a.onnx", tmp_path / "b.onnx")


COUNTED = "s = Shape (x) n = Gather (s, count) e = Equal (n, last) t = Tanh (x) u = Neg (x) y = Where (e, t, u)"
BROADCAST = "m = ReduceMean <axes = [0]> (x) d = Sub (x, m) y = Tanh (d)"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("s = Squeeze (x) y = Tanh (s)", "s = Squeeze (x, one) y = Tanh (s)"),
        (COUNTED, "y = Neg (x)"),
    ],
    ids=["squeezed", "counted"],
)
def test_a_difference_at_a_batch_of_one_only_is_found(a: str, b: str, tmp_path: Path) -> None:
    found = judge(tmp_path, a, b)
    assert (found.status, found.cases[-1].dims) == ("different", {"batch": 1}), found.message


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("s = Squeeze (x) y = Tanh (s)", "k = Identity (x) s = Squeeze (k) y = Tanh (s)"),
        (BROADCAST, BROADCAST),  # zero at a batch of one
        ("r = Reshape (x, pairs) y = Tanh (r)", "k = Identity (x) r = Reshape (k, pairs) y = Tanh (r)"),
    ],
    ids=["right", "says nothing", "takes none"],
)
def test_a_batch_of_one_without_evidence_is_no_case(a: str, b: str, tmp_path: Path) -> None:
    found = judge(tmp_path, a, b)
    assert (found.status, len(found.cases)) == ("equal", 2), found.message
    assert all(case.dims["batch"] > 1 for case in found.cases)
