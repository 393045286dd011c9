"""The rewrite responsible for a wrong result is found, left out, and named."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import onnx
import pytest
from onnx import parser

from tests.cli.conftest import Run, operators
from tests.samples import ROOT

BROKEN = ("--plugin", str(ROOT / "tests" / "plugins" / "broken.py"))
LEFT_OUT = "warning: rule wrong_for_negative_factors at value `e` was left out, it made the result wrong: "


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    source = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)'
        "<float[2] a = {1, 2}, float[2] b = {-1, 2}>"
        "{ i = Identity (x) c = Mul (i, a) d = Sin (c) e = Mul (d, b) t = Tanh (e) y = Exp (t) }"
    )
    onnx.save(parser.parse_model(source), tmp_path / "m.onnx")
    return tmp_path


def test_the_result_without_the_wrong_rewrite_is_verified(run: Run, wrong: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", *BROKEN, "--with", "wrong-rule", "--report", "r.json", "-v")
    assert r.returncode == 3, r.stderr
    assert "✓ " in r.stdout
    assert "declined 1 time: left out: it made the result wrong, for example Mul -> e" in r.stdout
    assert LEFT_OUT + "`e` differs by" in r.stderr
    assert "  main: e: float[N,2] = Mul(d, b: float[2] = {-1,2})" in r.stderr
    assert f"hint: correct it in {BROKEN[1]}; --disable wrong_for_negative_factors@e leaves it out at once" in r.stderr
    assert operators(wrong / "out.onnx") == ["Div", "Sin", "Mul", "Tanh", "Exp"], "the Identity is gone, c is done"
    report = json.loads((wrong / "r.json").read_text())
    (entry,) = report["rolled_back"]
    assert (entry["rule"], entry["value"]) == ("wrong_for_negative_factors", "e")
    assert [(e["rule"], e["value"]) for e in report["journal"] if e["fuel"]] == [
        ("identity", "i"),
        ("wrong_for_negative_factors", "c"),
    ], "of the run whose result was written"
    r = run("report", "m.onnx", "out.onnx", "--from", "r.json", "-o", "p.html")
    assert (r.returncode, r.stderr) == (0, "")
    assert "Left out, it made the result wrong: wrong_for_negative_factors at e (" in (wrong / "p.html").read_text()


def test_an_unloadable_result_is_not_called_wrong(run: Run, tmp_path: Path) -> None:
    source = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (y)'
    body = "{ i = Identity (x) s = Softsign (i) y = Exp (s) }"
    onnx.save(parser.parse_model(source + body), tmp_path / "m.onnx")
    r = run("optimize", "m.onnx", "out.onnx", *BROKEN, "--with", "unloadable-rule", "--report", "r.json", "-v")
    kept = "it kept the result from being loaded"
    assert r.returncode == 3, r.stderr
    assert f"rule unloadable_softsign at value `s` was left out, {kept}: the result cannot be loaded: " in r.stderr
    assert f"declined 1 time: left out: {kept}, for example Softsign -> s" in r.stdout
    assert "made the result wrong" not in r.stderr + r.stdout
    assert operators(tmp_path / "out.onnx") == ["Softsign", "Exp"]
    r = run("report", "m.onnx", "out.onnx", "--from", "r.json", "-o", "p.html")
    assert (r.returncode, r.stderr) == (0, "")
    assert f"Left out, {kept}: unloadable_softsign at s (" in (tmp_path / "p.html").read_text()


def test_several_are_left_out_one_by_one(run: Run, wrong: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", *BROKEN, "--with", "wrong-rule,wrong-pass")
    assert r.returncode == 3, r.stderr
    assert LEFT_OUT in r.stderr
    assert "warning: pass wrong-pass was left out" in r.stderr
    assert operators(wrong / "out.onnx") == ["Div", "Sin", "Mul", "Tanh", "Exp"]


def test_faults_inside_and_outside_of_a_body(run: Run, tmp_path: Path) -> None:
    """Faults inside and outside a body are found, and --disable of the hint removes them in the next run."""
    source = (
        '<ir_version: 10, opset_import: ["" : 17]> g (bool p, float[N, 2] x) => (float[N, 2] y)'
        "<float[2] a = {1, 2}, float[2] b = {-1, 2}> { c = Mul (x, b) d = Exp (c) e = Mul (d, a) f = Tanh (e)"
        " [branch] y = If <then_branch = t () => (float[N, 2] q) { s = Sin (f) q = Mul (s, b) }, "
        "else_branch = u () => (float[N, 2] r) { r = Mul (f, a) }> (p) }"
    )
    onnx.save(parser.parse_model(source), tmp_path / "m.onnx")
    given = ("m.onnx", "out.onnx", *BROKEN, "--with", "wrong-rule")
    r = run("optimize", *given)
    assert r.returncode == 3, r.stderr
    (hint,) = [line for line in r.stderr.splitlines() if line.startswith("hint: ")]
    words = shlex.split(hint.replace("`", "'"))
    without = words[words.index("--disable") + 1]
    assert without == ('wrong_for_negative_factors@c,wrong_for_negative_factors@main / If "branch" / then_branch / q')
    r = run("optimize", *given, "--disable", without)
    assert (r.returncode, r.stderr) == (0, "")
    model = onnx.load(tmp_path / "out.onnx")
    assert [n.op_type for n in model.graph.node] == ["Mul", "Exp", "Div", "Tanh", "If"]
    bodies = {a.name: [n.op_type for n in a.g.node] for a in model.graph.node[-1].attribute}
    assert bodies == {"then_branch": ["Sin", "Mul"], "else_branch": ["Div"]}


def test_build_systems_are_told(run: Run, wrong: Path) -> None:
    given = ("m.onnx", *BROKEN, "--with", "wrong-rule", "--junit", "j.xml")
    said = LEFT_OUT.removeprefix("warning: ")
    r = run("optimize", *given, "--out-dir", "o", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(wrong / "s.md"))
    assert r.returncode == 3, r.stderr
    assert f"optimized, equal, {said}" in r.stdout
    assert f"::warning file=m.onnx,title=onnxopt::{said}" in r.stdout
    assert said in (wrong / "j.xml").read_text()
    assert said in (wrong / "s.md").read_text()
    r = run("optimize", "m.onnx", "out.onnx", *given[1:], "-q", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="")
    assert f"::warning file=m.onnx,title=onnxopt::{said}" in r.stdout


def test_strict_writes_nothing(run: Run, wrong: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", *BROKEN, "--with", "wrong-rule", "--strict")
    assert r.returncode == 1
    assert "the result differs from the original" in r.stderr
    assert not (wrong / "out.onnx").exists()


def test_the_reproducer_reproduces_the_difference(run: Run, wrong: Path) -> None:
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


@pytest.mark.parametrize("name", ["wrong_for_negative_factors@e", "wrong-rule@e", "wrong-rule@main / e"])
def test_a_single_match_can_be_disabled(run: Run, wrong: Path, name: str) -> None:
    args = (*BROKEN, "--with", "wrong-rule", "--disable", name)
    r = run("optimize", "m.onnx", "out.onnx", *args, "-v")
    assert (r.returncode, r.stderr) == (0, "")
    assert "wrong_for_negative_factors declined 1 time: left out: disabled here, for example Mul -> e" in r.stdout
    assert operators(wrong / "out.onnx") == ["Div", "Sin", "Mul", "Tanh", "Exp"]
    r = run("bisect", "m.onnx", *args)
    assert (r.returncode, "the result does not differ" in r.stderr) == (2, True)
    r = run("report", "m.onnx", "out.onnx", *args, "-o", "p.html")
    assert (r.returncode, r.stderr) == (0, "")
    assert "left out: disabled here" in (wrong / "p.html").read_text()


def test_a_disabled_match_that_does_not_exist_gives_a_warning(run: Run, wrong: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", "--disable", "identity@nothing,elim_identity@i")
    assert (r.returncode, r.stderr) == (0, "warning: --disable identity@nothing: there was nothing to leave out\n")
    r = run("optimize", "m.onnx", "out.onnx", "--disable", "identit@i")
    assert (r.returncode, "no pass or rule is called 'identit'" in r.stderr) == (2, True)
