"""No command writes a model with an undefined name, whatever a pass does to the graph."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

import onnxopt
from onnxopt.pipeline.registry import load_module
from tests.cli.conftest import Run
from tests.samples import ROOT

BROKEN = str(ROOT / "tests" / "plugins" / "broken.py")
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, bool c) => (float[2] y) {
  a = Tanh (x)
  y = If (c) <
    then_branch = t () => (float[2] t1) { t0 = Mul (a, a) t1 = Neg (t0) },
    else_branch = e () => (float[2] e1) { e1 = Exp (a) }
  >
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("more", [(), ("--no-verify",), ("-O1",), ("--provenance", "--no-verify")])
def test_undefined_names_are_refused(run: Run, source: Path, more: tuple[str, ...]) -> None:
    done = run(
        "optimize", source, "out.onnx", "--plugin", BROKEN, "--with", "breaks-names", "--reproducer", "crash", *more
    )
    assert done.returncode == 4, done.stderr
    assert "pass breaks-names: " in done.stderr
    assert "main / If / then_branch: Neg -> t1 reads `gone`, which nothing before it defines" in done.stderr
    assert sorted(p.name for p in source.parent.iterdir()) == ["crash", "m.onnx"]
    again = run("reproduce", "crash")
    assert again.returncode == 4 and "reads `gone`" in again.stderr


def test_a_pass_that_exits_is_a_failing_pass(run: Run, source: Path) -> None:
    text = "@register\n@model_pass(opt_level=2)\ndef ends(model, ctx):\n    'Ends.'\n    raise SystemExit(0)\n"
    (source.parent / "ends.py").write_text("from onnxopt import model_pass, register\n" + text)
    done = run("optimize", source, "out.onnx", "--plugin", "ends.py", "--with", "ends")
    assert (done.returncode, done.stdout) == (4, "")
    assert "error: pass ends failed on " in done.stderr and "SystemExit: 0" in done.stderr


def test_the_interface(run: Run, source: Path) -> None:
    args = ("optimize", source, "out.onnx", "--plugin", BROKEN, "--with", "breaks-interface", "--no-verify")
    done = run(*args, "--reproducer", "crash")
    assert done.returncode == 4
    assert "pass breaks-interface: " in done.stderr and "the output `y` is not what it was" in done.stderr
    assert sorted(p.name for p in source.parent.iterdir()) == ["crash", "m.onnx"]


def test_dumps_between_passes_are_valid_models(run: Run, source: Path) -> None:
    done = run("optimize", source, "out.onnx", "--plugin", BROKEN, "--with", "breaks-names", "--dump-dir", "dump")
    assert done.returncode == 4 and "reads `gone`" in done.stderr
    for file in (source.parent / "dump").iterdir():
        onnx.checker.check_model(onnx.load(file))


def test_the_api(source: Path) -> None:
    load_module(BROKEN)
    with pytest.raises(onnxopt.OnnxOptError, match="reads `gone`"):
        onnxopt.optimize(source, extra=["breaks-names"], verify=False)
    model = onnxopt.load(source)
    onnxopt.optimize_model(model, onnxopt.OptimizeOptions(pipeline="breaks-names"))
    with pytest.raises(onnxopt.OnnxOptError, match="reads `gone`"):
        onnxopt.save(model, source.with_name("out.onnx"))
    assert not source.with_name("out.onnx").exists()


def test_a_broken_input_is_no_bug_of_a_pass(run: Run, source: Path) -> None:
    proto = onnx.load(source)
    proto.graph.node[1].attribute[0].g.node[1].input[0] = "gone"
    onnx.save(proto, source)
    done = run("optimize", source, "out.onnx", "--no-verify")
    assert done.returncode == 2 and "reads `gone`, which nothing defines" in done.stderr


@pytest.mark.parametrize(("model", "code"), [("m.onnx", 0), ("missing.onnx", 2)])
def test_no_command_waits_for_threads_at_its_end(run: Run, source: Path, model: str, code: int) -> None:
    late = "def say():\n    time.sleep(60)\n    print('late')\nthreading.Thread(target=say).start()\n"
    (source.parent / "late.py").write_text(f"import threading, time\n{late}")
    done = run("optimize", source.parent / model, "out.onnx", "--no-verify", "--plugin", "late.py")
    assert (done.returncode, "late\n" in done.stdout) == (code, False), done.stderr
