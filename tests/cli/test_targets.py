"""A warning is given for a named pass that is for other targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

PLUGIN = '''
from onnxopt import graph_pass, register


@register
@graph_pass(targets=("arm", "npu"))
def for_arm(graph, ctx):
    """Counts."""
    ctx.count("graphs")
'''
NOT_FOR = "for-arm is for arm or npu, the target is {}"


@pytest.fixture
def options(small: Path) -> tuple[str, ...]:
    (small / "plugin.py").write_text(PLUGIN)
    return ("optimize", "m.onnx", "out.onnx", "--plugin", "plugin.py")


@pytest.mark.parametrize(
    ("asked", "target"),
    [
        (["--pipeline", "for-arm"], "any"),
        (["--pipeline", "fixpoint(for-arm)", "--target", "cuda"], "cuda"),
        (["--pipeline", "for-arm,dead-code", "--disable", "dead-code"], "any"),
        (["-O0", "--with", "for_arm"], "any"),
    ],
)
def test_a_pipeline_without_a_running_pass_is_an_error(
    run: Run, small: Path, options: tuple[str, ...], asked: list[str], target: str
) -> None:
    r = run(*options, *asked)
    assert r.returncode == 2
    assert r.stderr == (
        f"error: no pass runs: {NOT_FOR.format(target)}\nhint: --target arm, if that is what the result is for\n"
    )
    assert not (small / "out.onnx").exists()


@pytest.mark.parametrize(
    "asked", [["--pipeline", "for-arm,elim-identity"], ["--with", "for-arm"], ["--with", "for-arm", "-q"]]
)
def test_a_pass_for_other_targets_gives_a_warning(
    run: Run, small: Path, options: tuple[str, ...], asked: list[str]
) -> None:
    r = run(*options, *asked)
    assert (r.returncode, r.stderr) == (0, f"warning: a pass does not run: {NOT_FOR.format('any')}\n")
    assert (small / "out.onnx").exists()
    assert "for-arm" not in r.stdout


def test_the_warning_is_given_once_for_many_models(run: Run, small: Path, options: tuple[str, ...]) -> None:
    (small / "n.onnx").write_bytes((small / "m.onnx").read_bytes())
    plugin = options[-2:]
    r = run("optimize", "m.onnx", "n.onnx", "--out-dir", "out", *plugin, "--with", "for-arm")
    assert (r.returncode, r.stderr.count("does not run")) == (0, 1)
    assert run("optimize", "m.onnx", "n.onnx", "--out-dir", "no", *plugin, "--pipeline", "for-arm").returncode == 2
    assert not (small / "no").exists()


@pytest.mark.parametrize(
    "target", [["--target", "arm"], ["--target", "cuda,npu"], ["--target", "cuda", "--target", "arm"]]
)
def test_a_pass_runs_for_one_of_its_targets(run: Run, options: tuple[str, ...], target: list[str]) -> None:
    r = run(*options, "--pipeline", "for-arm", *target)
    assert (r.returncode, r.stderr) == (0, "")
    assert "counted 1 graphs" in r.stdout


def test_an_unknown_target(run: Run, small: Path, options: tuple[str, ...]) -> None:
    for asked in (["--target", "amr"], ["--target", "cpu,amr", "--pipeline", "for-arm"]):
        r = run(*options, *asked)
        assert (r.returncode, r.stderr) == (2, "error: no target is called 'amr'\nhint: did you mean arm?\n")
    (small / "onnxopt.toml").write_text('target = ["cpu", "arm"]\n')
    assert "counted 1 graphs" in run(*options, "--with", "for-arm").stdout
