"""A further case has much longer inputs if outputs are blank at the first sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import parser

from onnxopt.verification import Verifier
from tests.verification.test_constant_decisions import own

HEAD = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, T] x) => (float[N, K] y)
<int64[1] start = {100}, int64[1] other = {101}, int64[1] end = {2147483647},
 int64[1] axis = {1}, int64[1] last = {-1}>"""
MADE = "s = Slice (x, START, end, AXIS)  y = ReduceSum (s, AXIS)"


@pytest.mark.parametrize(("start", "status"), [("start", {"equal", "verified"}), ("other", {"different"})])
def test_a_difference_at_long_inputs_only_is_found(start: str, status: set[str], tmp_path: Path) -> None:
    one, two = (MADE.replace("AXIS", a).replace("START", s) for a, s in (("axis", "start"), ("last", start)))
    found = own(tmp_path, "", one, two, HEAD)
    assert found.status in status, found.message
    assert [c.dims["T"] for c in found.cases if c.name == "longer"] == [128]


def test_no_longer_case_if_outputs_are_not_blank(tmp_path: Path) -> None:
    one, two = (f"s = Exp (x)  y = ReduceMax <axes = [{a}]> (s)" for a in (1, -1))
    assert [c for c in own(tmp_path, "", one, two, HEAD).cases if c.name == "longer"] == []


def test_images_do_not_become_large(tmp_path: Path) -> None:
    head = HEAD.replace("float[N, T] x", "float[N, 3, T, U] x").replace("float[N, K] y", "float[N, 3, T, U] y")
    one, two = (f"s = Sub (x, x)  y = Mul (s, {z})" for z in ("s", "x"))
    found = own(tmp_path, "", one, two, head)
    assert all(c.dims["T"] * c.dims["U"] < 1 << 17 for c in found.cases)


def test_an_original_that_crashes_on_longer_inputs_is_compared_without_them(tmp_path: Path) -> None:
    one, two = (MADE.replace("AXIS", a).replace("START", "start") for a in ("axis", "last"))
    for name, body in (("a", one), ("b", two)):
        (tmp_path / name).write_bytes(parser.parse_model(f"{HEAD} {{ {body} }}").SerializeToString())
    start = (
        "import os, signal\nfrom onnxopt.verification import judge\nmethod = judge.Judge.original\n"
        "def die(self, recipe, data):\n    if recipe.longer: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return method(self, recipe, data)\njudge.Judge.original = die\njudge.main()"
    )
    with Verifier(tmp_path / "a", start=start) as verifier:
        verifier.submit(tmp_path / "b")
        found = verifier.finish()
    assert found.status == "inconclusive", found.message
    assert found.reasons == ["output `y` is all zero"]
