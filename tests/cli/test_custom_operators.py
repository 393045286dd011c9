"""Operators that onnxruntime has not: of a library that is named by hand, or run as a plugin's reference."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from runpy import run_path

import pytest

from tests.cli.conftest import Run, operators
from tests.samples import ROOT

LITE = ROOT / "examples" / "lite"
FUSING = ("--plugin", str(LITE / "lite_fc.py"), "--with", "lite-fc-fuse", "--allow-domain", "lite")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) here that the library could be built with")
    made = tmp_path_factory.mktemp("library") / "fc.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(LITE / "fc.c")], check=True)
    return str(made)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "model.onnx"
    run_path(str(LITE / "mlp.py"))["write"](made)
    return made


def test_a_library_goes_through_every_command(run: Run, library: str, model: Path, tmp_path: Path) -> None:
    given = ("--custom-op-library", library)
    assert "✓ verified: " in run("optimize", str(model), "fused.onnx", *FUSING, *given).stdout
    r = run("verify", str(model), "fused.onnx", "--pieces", "-q", *given)
    assert r.stdout.startswith("✓ verified") and " pieces agree" in r.stdout and r.returncode == 0
    assert "FC " in run("bench", str(model), "fused.onnx", "--runs", "2", *given).stdout
    shutil.copy(model, tmp_path / "second.onnx")
    many = run("optimize", str(model), "second.onnx", "--out-dir", "out", "--jobs", "2", *FUSING, *given)
    assert many.returncode == 0 and many.stdout.count(", optimized, verified") == 2, many.stdout
    r = run("bisect", str(model), "-q", *FUSING, *given)
    assert r.returncode == 2 and "does not differ" in r.stderr, r.stderr
    run("report", str(model), "fused.onnx", "-o", "p.html", *FUSING, *given)
    assert "largest difference" in (tmp_path / "p.html").read_text()


REFERENCE = ", with the reference of lite.FC by lite_fc.py"


def test_a_reference_stands_for_a_kernel(run: Run, model: Path, tmp_path: Path) -> None:
    r = run("optimize", str(model), "fused.onnx", *FUSING, "--strict")
    assert r.returncode == 0 and r.stdout.splitlines()[-1].endswith(REFERENCE), r.stdout
    r = run("verify", str(model), "fused.onnx", "-q")
    assert r.returncode == 1 and "is not a registered" in r.stdout and "declare_reference" in r.stdout, r.stdout
    for pair in ((str(model), "fused.onnx"), ("fused.onnx", str(model)), ("fused.onnx", "fused.onnx")):
        r = run("verify", *pair, "--pieces", "-q", *FUSING[:2])
        assert r.returncode == 0 and r.stdout.rstrip().endswith(REFERENCE), r.stdout
    r = run(
        "optimize", str(model), "fused.onnx", "--out-dir", "out", *FUSING, "--verify-memory", "1K", "--format", "json"
    )
    said = [o["report"] and o["report"]["verification"] for o in json.loads(r.stdout)["models"]]
    assert [bool(v) and v["message"].endswith(REFERENCE) for v in said] == [True, False], r.stdout


def test_a_fusion_that_its_reference_contradicts_is_left_out(run: Run, model: Path, tmp_path: Path) -> None:
    text = (LITE / "lite_fc.py").read_text()
    (tmp_path / "wrong.py").write_text(text.replace("Add (product, b)", "Sub (product, b)"))
    r = run("optimize", str(model), "fused.onnx", "--plugin", "wrong.py", *FUSING[2:])
    assert r.returncode == 3 and "mul_add_as_fc" in r.stdout + r.stderr
    assert "FC" not in operators(tmp_path / "fused.onnx")


BAD = {
    "no function": "a reference is no function: ",
    '<domain: "", opset_import: ["" : 17]> F (x) => (y) { y = Relu (x) }': "is of no domain of its own",
    '<domain: "a", opset_import: ["" : 17]> F (x) => (y) { y = Foo (x) }': "the reference of a.F is not valid: ",
    '<domain: "a", opset_import: ["" : 17]> F (x) => (y) { z = Relu (x) }': "does not make `y`",
}


@pytest.mark.parametrize("text", BAD)
def test_a_reference_that_is_none_is_one_line(text: str, run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(f"from onnxopt import declare_reference\ndeclare_reference({text!r})\n")
    r = run("verify", str(model), str(model), "--plugin", "bad.py")
    said, hint = r.stderr.splitlines()
    assert r.returncode == 2 and BAD[text] in said and "<domain: " in hint, r.stderr


COMMANDS = {
    "verify": ("a.onnx", "a.onnx"),
    "optimize": ("a.onnx", "b.onnx", "--pipeline", "lite-fc-fuse", *FUSING[:2], *FUSING[4:]),
    "bench": ("a.onnx",),
    "bisect": ("a.onnx", *FUSING),
    "report": ("a.onnx", "a.onnx", "-o", "p.html"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_library_that_is_none_is_one_line(command: str, run: Run, model: Path, tmp_path: Path) -> None:
    shutil.copy(model, tmp_path / "a.onnx")
    (tmp_path / "text.so").write_text("no library")
    for file, why in (("missing.so", "is not there"), ("text.so", "cannot be loaded: ")):
        r = run(command, *COMMANDS[command], "--custom-op-library", file)
        assert r.returncode == 2 and r.stdout == "", r.stdout
        said, hint = r.stderr.splitlines()
        assert said.startswith("error: the custom operator library ") and why in said and hint, r.stderr
    assert not (tmp_path / "b.onnx").exists() and not (tmp_path / "p.html").exists()


def test_a_library_is_not_for_what_runs_nothing(run: Run, model: Path) -> None:
    r = run("optimize", str(model), "b.onnx", "--no-verify", "--custom-op-library", "x.so")
    assert r.returncode == 2 and r.stderr.startswith("error: --no-verify contradicts --custom-op-library")
