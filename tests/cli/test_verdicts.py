"""Statements of a run about itself hold: the verdict, the changes, the place of the largest difference."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt import UsageError, VerifyOptions
from tests.cli.conftest import Run

MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] w = {1, 2, 3, 4}> { a = MatMul (x, w) b = Relu (a) y = Identity (b) }"""
OTHER = MODEL.replace("{1, 2, 3, 4}", "{1, 2, 3, 4.1}")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(MODEL), tmp_path / "m.onnx")
    return tmp_path


@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
@pytest.mark.parametrize("option", ["--rtol", "--atol", "--timeout", "--seed"])
@pytest.mark.parametrize("command", [("optimize", "m.onnx", "o.onnx"), ("verify", "m.onnx", "m.onnx")], ids=" ".join)
def test_tolerances_that_are_not_numbers_are_refused(
    command: tuple[str, ...], option: str, number: str, run: Run, model: Path
) -> None:
    done = run(*command, option, number)
    assert done.returncode == 2
    assert f"invalid value for '{option}'" in done.stderr
    assert not (model / "o.onnx").exists()


@pytest.mark.parametrize(
    "given", [{"rtol": float("nan")}, {"atol": -1.0}, {"seed": -1}, {"timeout": 0.0}, {"timeout": float("inf")}]
)
def test_tolerances_that_are_not_numbers_are_refused_by_the_api(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        VerifyOptions(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [("m.onnx", "o.onnx"), ("m.onnx", "--out-dir", "out")], ids=" ".join)
@pytest.mark.parametrize("change", [("--target-opset", "21"), ("--dim", "N=3"), ("--shape", "x:3,2")], ids=" ".join)
def test_changes_without_passes_are_verified(
    change: tuple[str, ...], where: tuple[str, ...], run: Run, model: Path
) -> None:
    done = run("optimize", *where, "-O0", *change, "--strict", "--format", "json")
    assert done.returncode == 0, done.stderr
    (outcome,) = json.loads(done.stdout)["models"]
    assert outcome["report"]["verification"]["status"] == "equal"


def test_strict_contradicts_not_verifying(run: Run, model: Path) -> None:
    done = run("optimize", "m.onnx", "o.onnx", "--strict", "--no-verify")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: --strict contradicts --no-verify")


def test_a_cut_counts_as_a_change(run: Run, model: Path) -> None:
    done = run("optimize", "m.onnx", "o.onnx", "-O0", "--outputs", "a")
    *_, summary, verdict = done.stdout.splitlines()
    assert summary.startswith("o.onnx: 3 → 1 node (-67%)")
    assert verdict == "nothing else to do"


def test_changes_with_an_equal_node_count_are_reported(run: Run, model: Path) -> None:
    assert ": 3 nodes, unchanged, " in run("optimize", "m.onnx", "o.onnx", "-O0").stdout
    assert "o.onnx: 3 nodes, 1" in run("optimize", "m.onnx", "o.onnx", "-O0", "--dim", "N=3").stdout
    done = run("optimize", "m.onnx", "o.onnx", "-O0", "--provenance")
    assert done.stdout.splitlines()[-1] == "nothing to do: no node and no weight is new"


def test_the_reported_difference_belongs_to_the_named_case(run: Run, model: Path) -> None:
    onnx.save(parser.parse_model(OTHER), model / "other.onnx")
    done = run("verify", "m.onnx", "other.onnx")
    verdict = next(line for line in done.stdout.splitlines() if line.startswith("✗"))
    case, said = verdict.split("case ")[1].split(": ", 1)
    line = next(line for line in done.stdout.splitlines() if line.startswith(f"{case} "))
    assert said.split("differs by ")[1].split()[0] == line.split("differs by ")[1].split()[0]


def test_an_archive_is_not_the_value_of_an_input(run: Run, model: Path) -> None:
    np.savez(model / "in.npz", x=np.zeros((2, 2), np.float32))
    for command in (("optimize", "m.onnx", "o.onnx", "--input"), ("verify", "m.onnx", "m.onnx", "--inputs")):
        done = run(*command, "x=in.npz")
        assert done.returncode == 2
        assert done.stderr.startswith("error: in.npz holds several arrays, the input `x` takes one\n")


def test_an_unreadable_model_is_reported_to_programs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 40)
    summary = tmp_path / "s.md"
    done = run(
        *("optimize", "m.onnx", "o.onnx", "--junit", "j.xml", "--format", "json"),
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == 2
    (outcome,) = json.loads(done.stdout)["models"]
    assert (outcome["status"], outcome["code"]) == ("failed", 2)
    assert "::error file=m.onnx" in done.stderr
    assert "| failed |" in summary.read_text()
    assert len(list(ElementTree.parse(tmp_path / "j.xml").getroot().iter("error"))) == 1


def test_an_opset_newer_than_onnx_is_reported(run: Run, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(MODEL.replace(": 17", ": 99")), tmp_path / "m.onnx")
    known = onnx.defs.onnx_opset_version()
    for where in (("o.onnx",), ("--out-dir", "out")):
        done = run("optimize", "m.onnx", *where, "--no-verify")
        assert f"! the model is of opset 99, the installed onnx knows up to {known}" in done.stdout


def test_a_budget_names_the_model_once(run: Run, model: Path) -> None:
    done = run("optimize", "m.onnx", "--out-dir", "out", "--fail-if", "nodes_after > 0")
    assert done.stdout.splitlines()[0].count("m.onnx") == 1
