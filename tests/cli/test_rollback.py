"""A result that differs: the rewrite that makes it so is found, left out, and named."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import parser

from tests.cli.conftest import Run
from tests.samples import ROOT

BROKEN = ("--plugin", str(ROOT / "tests" / "plugins" / "broken.py"))


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    source = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)'
        "<float[2] a = {1, 2}, float[2] b = {-1, 2}>"
        "{ i = Identity (x) c = Mul (i, a) d = Sin (c) e = Mul (d, b) t = Tanh (e) y = Exp (t) }"
    )
    onnx.save(parser.parse_model(source), tmp_path / "m.onnx")
    return tmp_path


def operators(path: Path) -> list[str]:
    return [n.op_type for n in onnx.load(path).graph.node]


def test_the_rest_is_written_verified(run: Run, wrong: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", *BROKEN, "--with", "wrong-rule", "--report", "r.json")
    assert r.returncode == 3, r.stderr
    assert "✓ equal" in r.stdout
    assert "warning: rule wrong_for_negative_factors of pass wrong-rule was left out" in r.stderr
    assert "  main: e: float[N,2] = Mul(d, b: float[2] = {-1,2})" in r.stderr
    assert operators(wrong / "out.onnx") == ["Mul", "Sin", "Mul", "Tanh", "Exp"], "the Identity is gone"
    (entry,) = json.loads((wrong / "r.json").read_text())["rolled_back"]
    assert entry["rule"] == "wrong_for_negative_factors"
    journal = json.loads((wrong / "r.json").read_text())["journal"]
    assert {e["rule"] for e in journal} == {"identity"}, "of the run whose result was written"
    r = run("report", "m.onnx", "out.onnx", "--from", "r.json", "-o", "p.html")
    assert (r.returncode, r.stderr) == (0, "")
    assert "Left out, it made the result wrong: wrong_for_negative_factors" in (wrong / "p.html").read_text()


def test_several_are_left_out_one_by_one(run: Run, wrong: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", *BROKEN, "--with", "wrong-rule,wrong-pass")
    assert r.returncode == 3, r.stderr
    assert "rule wrong_for_negative_factors of pass wrong-rule" in r.stderr
    assert "warning: pass wrong-pass was left out" in r.stderr
    assert operators(wrong / "out.onnx") == ["Mul", "Sin", "Mul", "Tanh", "Exp"]


def test_strict_writes_nothing(run: Run, wrong: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", *BROKEN, "--with", "wrong-rule", "--strict")
    assert r.returncode == 1
    assert "the result differs from the original" in r.stderr
    assert not (wrong / "out.onnx").exists()


def test_the_reproducer_shows_it(run: Run, wrong: Path) -> None:
    run("optimize", "m.onnx", "out.onnx", *BROKEN, "--with", "wrong-rule", "--reproducer", "crash")
    assert operators(wrong / "crash" / "model.onnx") == ["Mul"]
    r = run("reproduce", "crash")
    assert r.returncode == 1
    assert "the result differs from the original" in r.stderr


def test_a_single_rule_can_be_disabled(run: Run, wrong: Path) -> None:
    args = (*BROKEN, "--with", "wrong-rule", "--disable", "wrong_for_negative_factors")
    r = run("optimize", "m.onnx", "out.onnx", *args)
    assert r.returncode == 0, r.stderr
    assert "Mul" in operators(wrong / "out.onnx")
