"""A result without a comparison is no success: an error for programs, a warning for people."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import onnx
import psutil
import pytest
from onnx import parser

from tests.cli.conftest import SCRIPT, Run

# Inputs of this type cannot be made, so the model cannot be run.
UNKNOWN = """<ir_version: 8, opset_import: ["" : 17]> g (complex64[2] x) => (complex64[2] y)
{ i = Identity (x)  z = Concat <axis = 0> (i)  y = Transpose (z) }"""
BUILDS = [("--format", "json"), ("--junit", "j.xml")]


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(UNKNOWN), tmp_path / "m.onnx")
    return tmp_path


def test_people_are_warned(run: Run, unknown: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", GITHUB_ACTIONS="", GITHUB_STEP_SUMMARY="")
    assert r.returncode == 0
    assert "! not verified: " in r.stdout
    assert (unknown / "out.onnx").exists()


BREAKS = """from onnxopt import graph_pass, register

@register
@graph_pass(name="breaks", opt_level=2)
def breaks(graph, ctx):
    '''An axis that there is not.'''
    for node in list(graph.by_op.get("Softmax", ())):
        if node.attr("axis") != 9 and ctx.spend("breaks", at=node.output):
            node.set_attr("axis", 9)
"""


def test_a_result_that_cannot_be_compared_is_loaded(run: Run, tmp_path: Path) -> None:
    """A rewrite that makes an incomparable result unloadable is left out, and found by bisect."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (string[2] x, float[2,3] z) => (float[2] y, float[2,3] w)
    { i = Identity (x)  y = Cast <to = 1> (i)  w = Softmax <axis = 1> (z) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    (tmp_path / "plugin.py").write_text(BREAKS)
    plugin = ("--plugin", "plugin.py", "--with", "breaks")
    done = run("optimize", "m.onnx", "out.onnx", *plugin)
    assert done.returncode == 3, done.stderr
    assert "pass breaks at value `w` was left out, it kept the result from being loaded" in done.stderr
    assert "! not verified: " in done.stdout
    softmax = onnx.load(tmp_path / "out.onnx").graph.node[-1]
    assert softmax.attribute[0].i == 1
    strict = run("optimize", "m.onnx", "strict.onnx", *plugin, "--strict")
    assert (strict.returncode, (tmp_path / "strict.onnx").exists()) == (1, False)
    found = run("bisect", "m.onnx", *plugin).stdout
    assert [line.rpartition(": ")[2] for line in found.splitlines() if line.startswith("the guilty pass")] == ["breaks"]


@pytest.mark.parametrize("where", [("m.onnx", "out.onnx"), ("m.onnx", "--out-dir", "o")], ids=" ".join)
@pytest.mark.parametrize("form", BUILDS, ids=" ".join)
def test_builds_fail(where: tuple[str, ...], form: tuple[str, ...], run: Run, unknown: Path) -> None:
    r = run("optimize", *where, *form)
    assert r.returncode == 1
    assert not (unknown / "out.onnx").exists() and not (unknown / "o" / "m.onnx").exists()
    if "json" in form:
        model = json.loads(r.stdout)["models"][0]
        assert (model["status"], model["code"]) == ("failed", 1)
        assert "not verified" in model["message"] and "--allow-unverified" in model["hint"]
    else:
        assert "not verified" in r.stderr and "--allow-unverified" in r.stderr
        assert ElementTree.parse(unknown / "j.xml").getroot().get("failures") == "1"
    allowed = run("optimize", *where, *form, "--allow-unverified")
    assert allowed.returncode == 0, allowed.stderr
    assert (unknown / "out.onnx").exists() or (unknown / "o" / "m.onnx").exists()


def test_github_fails(run: Run, unknown: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(unknown / "summary.md"))
    assert r.returncode == 1
    assert any(line.startswith("::error file=m.onnx,") and "not verified" in line for line in r.stdout.splitlines())
    assert "not verified" in (unknown / "summary.md").read_text()


@pytest.mark.parametrize("form", [(), *BUILDS], ids=" ".join)
def test_strict_fails(form: tuple[str, ...], run: Run, unknown: Path) -> None:
    assert run("optimize", "m.onnx", "out.onnx", "--strict", *form).returncode == 1
    assert not (unknown / "out.onnx").exists()
    r = run("optimize", "m.onnx", "out.onnx", "--strict", "--allow-unverified")
    assert (r.returncode, r.stderr.splitlines()[0]) == (2, "error: --strict contradicts --allow-unverified")


def test_a_budget_may_require_verification(run: Run, unknown: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", "--fail-if", "not verified", GITHUB_ACTIONS="", GITHUB_STEP_SUMMARY="")
    assert r.returncode == 1 and "over budget: not verified (verified = 0)" in r.stderr


@pytest.mark.skipif(os.name == "nt", reason="stops the worker by a signal")
@pytest.mark.parametrize("form", [(), ("--format", "json")], ids=" ".join)
def test_a_worker_killed_on_the_original_is_reported(form: tuple[str, ...], tmp_path: Path) -> None:
    """A worker killed during a long loop of the original is reported as not verified."""
    onnx.save(parser.parse_model(LONG), tmp_path / "m.onnx")
    command = [SCRIPT, "optimize", "m.onnx", "out.onnx", *form]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        worker, end = None, time.monotonic() + 60
        while time.monotonic() < end and (worker is None or worker.cpu_times().user < 1.5):
            worker = next(iter(psutil.Process(process.pid).children()), None)
            time.sleep(0.1)
        assert worker is not None
        os.kill(worker.pid, signal.SIGSEGV)
        out, err = process.communicate(timeout=60)
    assert "not verified" in out and "crashed (SIGSEGV) running the original" in out, (out, err)
    assert process.returncode == (1 if form else 0)
    assert (tmp_path / "out.onnx").exists() == (not form)


LONG = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {
    n = Constant <value: tensor = int64 {9223372036854775807}> ()
    go = Constant <value: tensor = bool {1}> ()
    i = Identity (x)
    y = Loop (n, go, i) <body: graph = b (int64 k, bool c, float[2] s) => (bool d, float[2] t) {
        d = Identity (c)
        t = Sin (s)
    }>
}"""
