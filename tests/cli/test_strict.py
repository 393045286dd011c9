"""Verdicts of `onnxopt optimize` (noise, weak evidence, differences), and verdicts refused by --strict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from onnx import parser

from tests.cli.conftest import Run

Rough = Callable[..., tuple[str, ...]]
ROUGH = """
from onnxopt import PassInfo, RewritePass, const, op, register, rewrite, var

@rewrite(op.Mul(var("s"), const("k")))
def off(m, s, k):
    \"\"\"s * k, off by FACTOR.\"\"\"
    m.require(s.producer is not None and s.producer.op == "Sin", "not behind a Sin")
    return m.op.Div(s, m.const(FACTOR / k, like=k))

@register
class Off(RewritePass):
    \"\"\"Off.\"\"\"
    info = PassInfo("off", opt_level=1)
    rules = (off,)
"""


@pytest.fixture
def rough(tmp_path: Path) -> Rough:
    """Save a model; return options that scale its result by a factor.

    A factor of one to ten last bits is neither right nor distinguishable from rounding: x * 300 amplifies the last
    bits of x as much.
    """

    def make(factor: float, k: float = 3) -> tuple[str, ...]:
        (tmp_path / "off.py").write_text(ROUGH.replace("FACTOR", repr(factor)))
        text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)'
        text += f"<float g = {{300}}, float k = {{{k}}}> {{ z = Round (x) a = Mul (x, g) s = Sin (a) y = Mul (s, k) }}"
        onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
        return ("optimize", "m.onnx", "--out-dir", "o", "--plugin", "off.py", "--with", "off")

    return make


NOISE = "within rounding noise: it differs by 1.2e-06 of the range of `y`, 4 cases (N=2; N=64; N=16)"
PLACE = "at `y`: differs by 1.2e-06 of its range, rounding alone by "


def test_rounding_noise_is_reported(run: Run, rough: Rough, tmp_path: Path) -> None:
    summary = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "s.md")}
    done = run(*rough(1 + 1.2e-6), "--junit", "j.xml", **summary)
    assert done.returncode == 0, done.stderr
    line, place, *more = done.stdout.splitlines()
    assert (line.partition(":")[0], line.endswith(f", optimized, {NOISE}")) == ("? o/m.onnx", True)
    assert place.startswith(f"  {PLACE}")
    assert place.endswith("; original: Mul(s, k); result: Div(s, k_1)")
    assert more == [], "no annotation: it was not asked to be strict"
    (case,) = ElementTree.parse(tmp_path / "j.xml").getroot().iter("testcase")
    said = str(case.findtext("system-out")).splitlines()
    assert said[:2] == ["optimized", NOISE]
    assert said[2].startswith(PLACE)
    assert said[3].startswith("pieces: 3 of 4 shared values agree")
    assert f"| optimized | {NOISE}<br>{PLACE}" in (tmp_path / "s.md").read_text()


def test_strict_refuses_rounding_noise(run: Run, rough: Rough, tmp_path: Path) -> None:
    command = rough(1 + 1.2e-6)
    done = run(*command, "--strict", "--junit", "j.xml", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="")
    assert done.returncode == 1
    message = "m.onnx: the result is within rounding noise only, which --strict refuses: "
    assert f"error: {message}it differs by 1.2e-06" in done.stderr
    assert "hint: nothing was written; --rtol says how much" in done.stderr
    assert not list(tmp_path.glob("o/*"))
    annotation = next(line for line in done.stdout.splitlines() if line.startswith("::"))
    assert annotation.startswith(f"::error file=m.onnx,title=onnxopt::{message}it differs by 1.2e-06")
    assert f"%0A{PLACE}" in annotation
    assert "; made by 1 off/off: main: replaced Mul -> y by Div -> y%0Anothing was written; " in annotation
    (failure,) = ElementTree.parse(tmp_path / "j.xml").getroot().iter("failure")
    assert str(failure.get("message")).startswith(message)
    assert str(failure.text).startswith(PLACE)
    alone = run("optimize", "m.onnx", "out.onnx", *command[4:], "--strict", "--report", "r.json")
    assert (alone.returncode, (tmp_path / "out.onnx").exists()) == (1, False)
    assert f"error: {message}" in alone.stderr
    assert json.loads((tmp_path / "r.json").read_text())["verification"]["status"] == "within rounding noise"
    allowed = run("optimize", "m.onnx", "out.onnx", *command[4:], "--strict", "--rtol", "1e-4")
    assert (allowed.returncode, "✓ verified" in allowed.stdout) == (0, True)


@pytest.mark.parametrize(
    ("body", "says", "hint"),
    [
        (
            "<float z = {0}> { i = Abs (x) j = Abs (i) y = Mul (j, z) }",
            "verification is inconclusive, which --strict refuses: ",
            "give real data with --input NAME=FILE.npy",
        ),
        (
            "{ i = Relu (x) y = far.away.Op (x) }",
            "the result is not verified, which --strict and builds refuse: ",
            "the result was not compared with the original",
        ),
    ],
)
def test_strict_accepts_verified_results_only(run: Run, tmp_path: Path, body: str, says: str, hint: str) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17, "far.away" : 1]> g (float[N, 4] x) => (float[N, 4] y)' + body
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    assert run("optimize", "m.onnx", "out.onnx", "-O1").returncode == 0
    (tmp_path / "out.onnx").unlink()
    done = run("optimize", "m.onnx", "out.onnx", "-O1", "--strict")
    assert (done.returncode, (tmp_path / "out.onnx").exists()) == (1, False)
    assert f"error: m.onnx: {says}" in done.stderr
    assert "hint: nothing was written; " in done.stderr
    assert hint in done.stderr
    many = run("optimize", "m.onnx", "--check", "-O1", "--strict")
    assert many.returncode == 1 and f"error: m.onnx: {says}" in many.stderr
    assert (many.stdout + many.stderr).count(says) == 1, "it is told once"
    assert ", failed, " in many.stdout


def test_a_difference_names_its_place(run: Run, rough: Rough, tmp_path: Path) -> None:
    summary = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "s.md")}
    done = run(*rough(1.5), "--strict", "--junit", "j.xml", **summary)
    assert done.returncode == 1
    line = "at `y`: differs by 3.3e-01 of its range, rounding alone by "
    assert any(text.startswith(f"  {line}") for text in done.stdout.splitlines())
    assert f"it goes wrong at `y`%0A{line}" in done.stdout
    (failure,) = ElementTree.parse(tmp_path / "j.xml").getroot().iter("failure")
    assert str(failure.get("message")).startswith(
        "m.onnx: the result differs from the original: output `y` differs by "
    )
    assert "\nnoise: rounding alone changes `y` by " in str(failure.text)
    assert f"it goes wrong at `y`<br>{line}" in (tmp_path / "s.md").read_text()
