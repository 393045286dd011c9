"""`--target onnxruntime`: choices, messages, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import parser

import onnxopt
from onnxopt.errors import UsageError
from onnxopt.pipeline.measured import LOADS
from tests.cli.conftest import Run, operators

# Attention with a mask, as many keys as queries, and a Gelu behind.
ATTENTION = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 2, 8, 4] q, float[1, 2, 8, 4] k, float[1, 2, 8, 4] v, bool[1, 1, 8, 8] allowed) => (float[1, 2, 8, 4] y)
<float z = {0.5}, float zero = {0}, float hidden = {-1000}>
{
  t = Transpose <perm = [0, 1, 3, 2]> (k)
  m = MatMul (q, t)
  s = Mul (m, z)
  bias = Where (allowed, zero, hidden)
  b = Add (s, bias)
  p = Softmax <axis = -1> (b)
  y = MatMul (p, v)
}
"""
CHOSEN = "target onnxruntime==1.32: opset 17 → 24, -O3, Attention, Attention of rows, RotaryEmbedding, no "


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(ATTENTION), tmp_path / "m.onnx")
    return tmp_path


def opset(path: Path) -> int:
    return int(onnx.load(path).opset_import[0].version)


def test_choices_are_reported(attention: Path, run: Run) -> None:
    done = run("optimize", "m.onnx", "out.onnx", "--target", "onnxruntime==1.32")
    assert (done.returncode, done.stderr) == (0, "")
    assert CHOSEN in done.stdout
    assert "no kernel" not in done.stdout, "why is for those who ask"
    assert "✓ " in done.stdout
    assert operators(attention / "out.onnx") == ["Where", "Attention"]
    assert opset(attention / "out.onnx") == 24
    onnx.checker.check_model(attention / "out.onnx", full_check=True)


def test_reasons_of_choices_are_reported_with_verbose(attention: Path, run: Run) -> None:
    """Reasons of choices, with rows of docs/forms.md, are in the verbose output and in the report."""
    asked = ("optimize", "m.onnx", "out.onnx", "--target", "onnxruntime==1.32.0", "-v", "--report", "r.json")
    done = run(*asked)
    assert "  opset 17 → 24: in newer ones onnxruntime 1.32 has no kernel for Attention\n" in done.stdout
    assert " times as long, attention, attention-mask, " in done.stdout
    report = json.loads((attention / "r.json").read_text())
    assert report["target"] == "onnxruntime==1.32"
    assert report["choices"][0] == {
        "what": "opset 17 → 24",
        "why": "in newer ones onnxruntime 1.32 has no kernel for Attention",
    }
    told = run("optimize", "m.onnx", "--check", "--target", "onnxruntime==1.32", "--format", "json")
    (outcome,) = json.loads(told.stdout)["models"]
    assert [c["what"] for c in outcome["report"]["choices"]] == [c["what"] for c in report["choices"]]


def test_a_second_run_changes_nothing(attention: Path, run: Run) -> None:
    for source, result in (("m.onnx", "out.onnx"), ("out.onnx", "again.onnx")):
        assert run("optimize", source, result, "--target", "onnxruntime==1.32").returncode == 0
    assert (attention / "out.onnx").read_bytes() == (attention / "again.onnx").read_bytes()


@pytest.mark.parametrize("version", LOADS)
def test_each_measured_version_gets_its_newest_opset(version: str, attention: Path, run: Run) -> None:
    done = run("optimize", "m.onnx", "out.onnx", "--target", f"onnxruntime=={version}")
    assert done.returncode == 0, done.stderr
    assert opset(attention / "out.onnx") == min(24, LOADS[version])
    assert "Attention" in operators(attention / "out.onnx")


def test_a_target_without_version_is_the_installed_one(attention: Path, run: Run) -> None:
    installed = ".".join(onnxruntime.__version__.split(".")[:2])
    done = run("optimize", "m.onnx", "out.onnx", "--target", "onnxruntime")
    if installed in LOADS:
        assert f"target onnxruntime=={installed}: opset 17 → " in done.stdout
    else:
        assert done.returncode == 2
        assert f"target onnxruntime {onnxruntime.__version__}, which is installed: nothing of it" in done.stderr


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("onnxruntime==9.9", "target onnxruntime==9.9: nothing of it was measured\nhint: measured are 1.32, "),
        ("onnxruntime==1.5.2", "target onnxruntime==1.5.2: nothing of it was measured\nhint: measured are 1.32, "),
        ("onnxruntime==one", "'==one' is no version\nhint: onnxruntime==VERSION; measured are "),
        ("onnxruntime==", "'==' is no version"),
        ("onnxruntime=1.32", "'=1.32' is no version"),
        ("onnxruntime>=1.30", "'>=1.30' is no version"),
        ("onnxruntime 1.32", "' 1.32' is no version"),
        ("onnxruntime==1.32; echo", "'==1.32; echo' is no version"),
        ("onnxruntime==1.31,onnxruntime==1.32", "target names onnxruntime==1.31 and onnxruntime==1.32\nhint: "),
        ("onnxrunitme", "no target is called 'onnxrunitme'\nhint: did you mean onnxruntime?"),
        ("onnxruntime-gpu==1.32", "no target is called 'onnxruntime-gpu==1.32'"),
    ],
)
def test_invalid_versions_are_one_error_line(target: str, says: str, attention: Path, run: Run) -> None:
    done = run("optimize", "m.onnx", "out.onnx", "--target", target)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert not (attention / "out.onnx").exists()


def test_a_project_file_may_choose_the_target(attention: Path, run: Run) -> None:
    (attention / "pyproject.toml").write_text('[tool.onnxopt]\ntarget = "onnxruntime==1.32"\n')
    assert CHOSEN in run("optimize", "m.onnx", "out.onnx").stdout
    (attention / "pyproject.toml").write_text('[tool.onnxopt]\ntarget = "onnxruntime==0.1"\n')
    assert run("optimize", "m.onnx", "out.onnx").returncode == 2


def test_the_function_chooses_like_the_command(attention: Path) -> None:
    result = onnxopt.optimize(attention / "m.onnx", target="onnxruntime==1.32")
    assert result.report.target == "onnxruntime==1.32"
    assert [c.what for c in result.report.choices][:3] == ["opset 17 → 24", "-O3", "Attention"]
    assert "Attention" in [n.op_type for n in result.model.graph.node]
    with pytest.raises(UsageError, match="nothing of it was measured"):
        onnxopt.optimize(attention / "m.onnx", target="onnxruntime==9.9")
    assert onnxopt.optimize(attention / "m.onnx").report.choices == []


@pytest.mark.parametrize("level", ["-O0", "-O1"])
def test_an_exact_result_stays_exact(level: str, attention: Path, run: Run) -> None:
    done = run("optimize", "m.onnx", "out.onnx", level, "--target", "onnxruntime==1.32", "-v")
    assert f"target onnxruntime==1.32: nothing\n  nothing: {level} changes no number" in done.stdout
    assert opset(attention / "out.onnx") == 17


@pytest.mark.parametrize(
    ("asked", "version", "left"),
    [
        (["--target-opset", "17"], 17, False),
        (["--target-opset", "23"], 23, True),
        (["--disable", "fuse-attention"], 24, False),
        (["--disable", "attention"], 24, False),
        (["--pipeline", "canonicalize,dead-code"], 24, False),
    ],
)
def test_explicit_options_override_the_target(
    asked: list[str], version: int, left: bool, attention: Path, run: Run
) -> None:
    done = run("optimize", "m.onnx", "out.onnx", "--target", "onnxruntime==1.32", *asked)
    assert done.returncode == 0, done.stderr
    assert opset(attention / "out.onnx") == version
    assert ("Attention" in operators(attention / "out.onnx")) == left


def test_an_operator_without_a_kernel_is_not_made(attention: Path, run: Run) -> None:
    """No operator without a kernel is made. In opset 25, Attention is a function, as slow as the formula or slower."""
    onnx.save(parser.parse_model(ATTENTION.replace("17]", "25]")), attention / "m.onnx")
    done = run("optimize", "m.onnx", "out.onnx", "--target", "onnxruntime==1.32", "-v")
    assert "attention declined 1 time: onnxruntime 1.32 has no kernel for Attention of opset 28" in done.stdout
    assert "  opset 25 → 28: the newest that onnxruntime 1.32 loads\n" in done.stdout
    assert "  no Attention: onnxruntime 1.32 has no kernel for Attention of opset 28\n" in done.stdout
    assert "Attention" not in operators(attention / "out.onnx")
    assert "Attention" in operators_of(run, attention, "-O3")


def operators_of(run: Run, folder: Path, *options: str) -> list[str]:
    assert run("optimize", "m.onnx", "other.onnx", *options).returncode == 0
    return operators(folder / "other.onnx")


def test_the_opset_stops_where_the_models_own_operators_have_kernels(tmp_path: Path, run: Run) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2, 4, 4] x) => (float[N, 2, 1, 1] y) '
    onnx.save(parser.parse_model(text + "{ z = Identity (x) y = GlobalLpPool (z) }"), tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "out.onnx", "--target", "onnxruntime==1.32", "-v")
    assert "  opset 17 → 21: in newer ones onnxruntime 1.32 has no kernel for GlobalLpPool\n" in done.stdout
    assert "✓ " in done.stdout


def test_in_a_body_too(tmp_path: Path, run: Run) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]> g (float[N, 2, 4, 4] x, bool c) => (float[N, 2, 1, 1] y) {
      z = Identity (x)
      y = If (c) <then_branch = t () => (float[N, 2, 1, 1] p) { p = GlobalLpPool (z) },
                  else_branch = e () => (float[N, 2, 1, 1] q) { q = GlobalAveragePool (z) }>
    }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "out.onnx", "--target", "onnxruntime==1.32")
    assert "opset 21 stays" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(("version", "newest"), [("1.24", 21), ("1.32", 24)])
def test_the_opset_is_known_to_the_optimizations_of_the_runtime(
    version: str, newest: int, tmp_path: Path, run: Run
) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 1, 4, 4] x) => (float[N, 1, 4, 4] y) '
    text += "<float[1, 1, 1, 1] w = {2}> { c = Conv (x, w) i = Identity (c) y = Relu (i) }"
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "out.onnx", "--target", f"onnxruntime=={version}", "-v")
    assert opset(tmp_path / "out.onnx") == newest
    told = re.search(
        r"  opset 17 → 21: in newer ones Conv takes 1\.\d\d times as long, convolution-opset\n", done.stdout
    )
    assert bool(told) == (newest == 21)


FUNCTION = """
    <ir_version: 8, opset_import: ["" : 17, "DOMAIN" : 1]> g (float[4] x, bool c) => (float[4] y, float[4] z)
    { i = Identity (x) y = DOMAIN.Twice (i) n = Neg (x) one = Constant <value = bool {1}> ()
      z = If (one) <then_branch = t () => (float[4] p) { p = Abs (n) },
                    else_branch = e () => (float[4] q) { q = DOMAIN.Half (n) }> }
    <domain: "DOMAIN", opset_import: ["" : OTHER]> Twice (a) => (b) { b = Add (a, a) }
    <domain: "DOMAIN", opset_import: ["" : 17]> Half (a) => (b) { b = Mul (a, a) }"""


@pytest.mark.parametrize(
    ("domain", "other", "ends"),
    [("f", 17, 24), ("f", 16, 17), ("com.microsoft", 17, 17)],
    ids=["", "versions", "kernels"],
)
def test_functions_are_inlined_for_a_newer_opset(domain: str, other: int, ends: int, tmp_path: Path, run: Run) -> None:
    """Functions are inlined for a newer opset, unless the runtime may have kernels for them.

    Functions that only a branch that goes calls do not keep the opset: a second run would raise the opset.
    """
    text = FUNCTION.replace("DOMAIN", domain).replace("OTHER", str(other))
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    ask = ("--target", "onnxruntime==1.32", "-v")
    done = run("optimize", "m.onnx", "out.onnx", *ask)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("  functions inlined: " in done.stdout, opset(tmp_path / "out.onnx")) == (domain == "f", ends)
    assert ("the model has functions, whose opsets are their own\n" in done.stdout) == (ends == 17)
    run("optimize", "out.onnx", "again.onnx", *ask)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out.onnx").read_bytes()


def test_a_model_that_cannot_be_converted_keeps_its_opset(tmp_path: Path, run: Run) -> None:
    text = '<ir_version: 4, opset_import: ["" : 8]> g (float[4] x, float[4] s) => (float[A] y) { i = Identity (x) '
    onnx.save(parser.parse_model(text + "y = Upsample (i, s) }"), tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "out.onnx", "--target", "onnxruntime==1.32", "-v", "--no-verify")
    assert done.returncode == 0, done.stderr
    assert "  the opset stays: m.onnx cannot be converted to opset 24: " in done.stdout
    assert opset(tmp_path / "out.onnx") == 8


def test_a_fault_of_the_converter_is_not_blamed_on_a_rewrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fault of the converter, the result has the model's own opset, and is verified."""
    from onnxopt.conversion import opset as conversion

    monkeypatch.setattr(conversion, "HIDDEN", {})
    monkeypatch.setattr(conversion, "_ADAPTERS", {})
    text = '<ir_version: 7, opset_import: ["" : 11]> g (float[2, 3, 4] x) => (float[2, 3, 4] y) '
    onnx.save(parser.parse_model(text + "{ h = Neg (x) i = Identity (h) y = Hardmax (i) }"), tmp_path / "m.onnx")
    report = onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "out.onnx", target="onnxruntime==1.32").report
    assert report.verification is not None
    assert report.verification.ok
    assert report.rolled_back == []
    (warning,) = report.pipeline.warnings
    assert warning.startswith("opset 11 stays: ")
    assert "cannot be converted to opset 24: output `y` differs" in warning
    assert opset(tmp_path / "out.onnx") == 11


def test_a_pass_may_be_bound_to_a_target(attention: Path, run: Run) -> None:
    (attention / "plugin.py").write_text('''
from onnxopt import graph_pass, register


@register
@graph_pass(targets=("onnxruntime",))
def for_onnxruntime(graph, ctx):
    """Says what it runs for."""
    ctx.count(f"graphs for {' and '.join(ctx.targets)}")
''')
    plugin = ("--plugin", "plugin.py", "--with", "for-onnxruntime")
    done = run("optimize", "m.onnx", "out.onnx", *plugin, "--target", "npu,onnxruntime==1.32")
    assert "counted 1 graphs for npu and onnxruntime" in done.stdout
    assert (
        "for-onnxruntime is for onnxruntime, the target is cpu"
        in run("optimize", "m.onnx", "out.onnx", *plugin, "--target", "cpu").stderr
    )


def test_the_page_shows_choices_of_the_target(attention: Path, run: Run) -> None:
    """The page shows the choices, from a report and from a repeated run."""
    target = ("--target", "onnxruntime==1.32")
    assert run("optimize", "m.onnx", "out.onnx", *target, "--report", "r.json").returncode == 0
    for given in (("--from", "r.json"), target):
        done = run("report", "m.onnx", "out.onnx", "-o", "page.html", *given)
        assert done.returncode == 0, done.stderr
        assert "For onnxruntime==1.32: opset 17 → 24 (in newer ones" in (attention / "page.html").read_text()
        (attention / "page.html").unlink()
