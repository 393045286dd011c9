"""Operators missing in onnxruntime run by a library named by the user, or by the reference of a plugin."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt import declare_reference
from onnxopt.errors import UsageError
from onnxopt.verification.runtime import UNREGISTERED_HINT
from tests.cli.conftest import FUSING, LITE, Run, operators, run_script


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
    cut = ("partition", "fused.onnx", "--ops", "lite::FC,Relu", "--out-dir", "parts", "--fuse", "calls.onnx")
    assert run(*cut, *given).stdout.count("\nchecked: ") == 2
    assert UNREGISTERED_HINT in run(*cut).stdout
    r = run(*cut[:4], *given)
    assert r.returncode == 2 and "--custom-op-library is for --out-dir and --fuse" in r.stderr


REFERENCE = ", with the reference of lite.FC by lite_fc.py"


def test_a_reference_replaces_a_kernel(run: Run, model: Path, tmp_path: Path) -> None:
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
    cut = ("partition", "fused.onnx", "--ops", "lite::FC", "--out-dir", "parts", *FUSING[:2])
    assert REFERENCE in run(*cut).stdout
    said = [o["report"] and o["report"]["verification"] for o in json.loads(r.stdout)["models"]]
    assert [bool(v) and v["message"].endswith(REFERENCE) for v in said] == [True, False], r.stdout


def test_a_fusion_contradicted_by_its_reference_is_left_out(run: Run, model: Path, tmp_path: Path) -> None:
    text = (LITE / "lite_fc.py").read_text()
    (tmp_path / "wrong.py").write_text(text.replace("Add (product, b)", "Sub (product, b)"))
    r = run("optimize", str(model), "fused.onnx", "--plugin", "wrong.py", *FUSING[2:])
    assert r.returncode == 3 and "mul_add_as_fc" in r.stdout + r.stderr
    assert "FC" not in operators(tmp_path / "fused.onnx")


GATE = """
import numpy as np
from onnxopt import declare_domain, declare_reference

declare_domain("acme", 1, ["Gate", "Halves"])

def gate(x, scale=None, *, alpha=1.0, mode="soft"):
    y = x / (1 + np.exp(-np.float32(alpha) * x)) if mode == "soft" else np.maximum(x, 0)
    return y if scale is None else y * scale

def halves(x):
    return x[:, ::2], x[:, 1::2]

declare_reference(gate, "acme::Gate")
declare_reference(halves, "acme::Halves")
"""
GATED = """
<ir_version: 8, opset_import: ["" : 17, "acme" : 1, "local" : 1, "com.microsoft" : 1]>
g (float[N, 8] x, float[8] s, bool c) => (float[N, 8] y, float[N, 4] z) <float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}>
{
  a = Abs (x)
  hard = acme.Gate <alpha: float = 2.0, mode: string = "hard"> (a, s)
  chosen = If (c) <
    then_branch = t () => (float[N, 8] r) { r = acme.Gate (hard) },
    else_branch = e () => (float[N, 8] r) { r = Neg (hard) }
  >
  called = local.Twice (chosen)
  constant = acme.Gate (w)
  gelu = com.microsoft.FastGelu (called)
  y = Mul (gelu, constant)
  p, q = acme.Halves (y)
  z = Sub (p, q)
}
<domain: "local", opset_import: ["" : 17, "acme" : 1]>
Twice (x) => (y) { h = acme.Gate <alpha: float = 0.5> (x)  i = Identity (h)  y = acme.Gate (i, x) }
"""


def test_a_reference_may_be_python(run: Run, tmp_path: Path) -> None:
    """A reference may be a Python function.

    The nodes have attributes, a missing input and two outputs, and are in bodies, in functions and on constants. The
    command runs in a new process: a forked worker would have the function already.
    """
    (tmp_path / "gate.py").write_text(GATE)
    onnx.save(parser.parse_model(GATED), tmp_path / "gated.onnx")
    r = run_script(tmp_path, ["optimize", "gated.onnx", "made.onnx", "--plugin", "gate.py", "--strict"], os.environ)
    both = ", with the reference of acme.Gate by gate.py, acme.Halves by gate.py"
    assert r.returncode == 0 and r.stdout.splitlines()[-1].endswith(both) and not r.stderr, r.stdout + r.stderr
    onnx.save(parser.parse_model(GATED.replace("alpha: float = 0.5", "alpha: float = 0.6")), tmp_path / "other.onnx")
    r = run("verify", "gated.onnx", "other.onnx", "--plugin", "gate.py", "-q")
    assert r.returncode == 1 and "it goes wrong at `called`, with the reference of acme.Gate" in r.stdout, r.stdout
    renamed = re.sub(r"\b(hard|chosen|called|gelu|constant)\b", r"\1_", GATED)  # a single piece up to y
    onnx.save(parser.parse_model(renamed), tmp_path / "renamed.onnx")
    r = run("verify", "gated.onnx", "renamed.onnx", "--plugin", "gate.py", "-q", "--pieces")
    assert r.returncode == 0 and "verified in pieces: all " in r.stdout, r.stdout


FAILS = "B fails: the reference of lite.FC by wrong.py fails: "
WRONG = {  # body of a Python function: the message
    "x @ w + b[1:]": f"{FAILS}ValueError: operands could not be broadcast",
    "rows": f"{FAILS}NameError: name 'rows' is not defined (wrong.py:4)",
    "x\nPath(__file__).with_name('imported').mkdir()": "of lite.FC by wrong.py cannot be loaded: FileExistsError: ",
}


def test_a_failing_python_reference_is_named(run: Run, model: Path, tmp_path: Path) -> None:
    assert run("optimize", str(model), "fused.onnx", "--no-verify", *FUSING).returncode == 0
    for function, said in WRONG.items():
        lines = (
            "from pathlib import Path",
            "from onnxopt import declare_reference",
            "def fc(x, w, b, in_num_col_dims):",
            f"    return {function}",
            "declare_reference(fc, 'lite::FC')",
        )
        (tmp_path / "wrong.py").write_text("\n".join(lines))
        command = ["verify", str(model), "fused.onnx", "-q", "--plugin", "wrong.py"]
        r = run_script(tmp_path, command, os.environ) if "loaded" in said else run(*command)
        assert said in r.stdout + r.stderr and "Traceback" not in r.stderr, r.stdout + r.stderr
        assert r.returncode == (2 if "loaded" in said else 1)


BAD = {
    "no function": "a reference is no function: ",
    '<domain: "", opset_import: ["" : 17]> F (x) => (y) { y = Relu (x) }': "is of no domain of its own",
    '<domain: "a", opset_import: ["" : 17]> F (x) => (y) { y = Foo (x) }': "the reference of a.F is not valid: ",
    '<domain: "a", opset_import: ["" : 17]> F (x) => (y) { z = Relu (x) }': "does not make `y`",
}


def test_an_invalid_reference_is_one_error_line(run: Run, model: Path, tmp_path: Path) -> None:
    for text, why in BAD.items():
        with pytest.raises(UsageError) as e:
            declare_reference(text)
        assert why in e.value.message and "<domain: " in e.value.hint
    (tmp_path / "bad.py").write_text(f"from onnxopt import declare_reference\ndeclare_reference({text!r})\n")
    r = run("verify", str(model), str(model), "--plugin", "bad.py")
    said, hint = r.stderr.splitlines()
    assert r.returncode == 2 and BAD[text] in said and "<domain: " in hint, r.stderr


def gate(x: object) -> object:
    return x


def test_invalid_python_references_are_refused() -> None:
    for function, op in (
        (gate, "Gate"),
        (gate, "ai.onnx::Relu"),
        (gate, 3),
        (lambda x: x, "acme::Gate"),
        (len, "acme::Gate"),
    ):
        with pytest.raises(UsageError, match=r"for no operator of another domain|imported by another process") as e:
            declare_reference(function, op)
        assert 'declare_reference(gate, "lite::Gate")' in e.value.hint


COMMANDS = {
    "verify": ("a.onnx", "a.onnx"),
    "optimize": ("a.onnx", "b.onnx", "--pipeline", "lite-fc-fuse", *FUSING[:2], *FUSING[4:]),
    "bench": ("a.onnx",),
    "bisect": ("a.onnx", *FUSING),
    "report": ("a.onnx", "a.onnx", "-o", "p.html"),
    "partition": ("a.onnx", "--ops", "Relu", "--out-dir", "parts"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_invalid_library_is_one_error_line(command: str, run: Run, model: Path, tmp_path: Path) -> None:
    shutil.copy(model, tmp_path / "a.onnx")
    (tmp_path / "text.so").write_text("no library")
    for file, why in (("missing.so", "is not there"), ("text.so", "cannot be loaded: ")):
        r = run(command, *COMMANDS[command], "--custom-op-library", file)
        assert r.returncode == 2 and (r.stdout == "" or command == "partition"), r.stdout
        said, hint = r.stderr.splitlines()
        assert said.startswith("error: the custom operator library ") and why in said and hint, r.stderr
    assert not any((tmp_path / name).exists() for name in ("b.onnx", "p.html", "parts"))


def test_a_library_contradicts_no_verify(run: Run, model: Path) -> None:
    r = run("optimize", str(model), "b.onnx", "--no-verify", "--custom-op-library", "x.so")
    assert r.returncode == 2 and r.stderr.startswith("error: --no-verify contradicts --custom-op-library")
