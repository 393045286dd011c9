"""Runs on many models: folders, --in-place, --check, and failures of single models."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import NAMES, Run, statuses


def test_many_models_into_a_folder(run: Run, models: list[str], tmp_path: Path) -> None:
    done = run("optimize", *models, "--out-dir", "build", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("3 models: ")
    for name in NAMES:
        alone = run("optimize", f"models/{name}.onnx", f"{name}.onnx")
        assert alone.returncode == 0
        assert (tmp_path / "build" / f"{name}.onnx").read_bytes() == (tmp_path / f"{name}.onnx").read_bytes()
    assert sorted(p.name for p in (tmp_path / "build").iterdir()) == sorted(f"{n}.onnx" for n in NAMES)
    again = run("optimize", *models, "--out-dir", "build", "--format", "json")
    assert statuses(again.stdout) == ["current", "current", "unchanged"]


def test_a_failing_model_stops_no_other(run: Run, models: list[str], tmp_path: Path) -> None:
    (tmp_path / "models" / "broken.onnx").write_bytes(b"not a model")
    named = ["models/broken.onnx", *models, "models/missing.onnx"]
    done = run("optimize", *named, "--out-dir", "build", "--format", "json")
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    assert answer["exit_code"] == 2
    assert statuses(done.stdout) == ["failed", "optimized", "optimized", "unchanged", "failed"]
    assert "not an ONNX model" in answer["models"][0]["message"]
    assert "no such file" in answer["models"][-1]["message"]
    assert len(list((tmp_path / "build").iterdir())) == 3


def test_a_crash_affects_its_model_only(run: Run, models: list[str], tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        "import os, signal\n"
        "from onnxopt import model_pass, register\n"
        "@register\n"
        "@model_pass(opt_level=1)\n"
        "def crash(model, ctx):\n"
        '    """Ends the process for one of the models."""\n'
        "    if 'residual' in model.name: os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    done = run("optimize", *models, "--out-dir", "build", "--plugin", "crash.py", "--with", "crash", "--format", "json")
    assert done.returncode == 4
    answer = json.loads(done.stdout)["models"]
    assert [o["status"] for o in answer] == ["optimized", "failed", "unchanged"]
    assert "SIGSEGV" in answer[1]["message"]
    assert sorted(p.name for p in (tmp_path / "build").iterdir()) == ["qdq_conv.onnx", "repvgg_blocks.onnx"]


def test_in_place_keeps_a_backup_of_the_first_original(run: Run, models: list[str], tmp_path: Path) -> None:
    original = (tmp_path / models[0]).read_bytes()
    first = run("optimize", models[0], "--in-place", "--backup", ".orig", "--format", "json")
    assert statuses(first.stdout) == ["optimized"]
    assert (tmp_path / f"{models[0]}.orig").read_bytes() == original
    assert (tmp_path / models[0]).read_bytes() != original
    second = run("optimize", models[0], "--in-place", "--backup", ".orig", "-O3", "--format", "json")
    assert statuses(second.stdout) == ["optimized"]
    assert (tmp_path / f"{models[0]}.orig").read_bytes() == original
    third = run("optimize", models[0], "--in-place", "-O3", "--format", "json")
    assert statuses(third.stdout) == ["unchanged"]
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == sorted(
        [*(f"{n}.onnx" for n in NAMES), "repvgg_blocks.onnx.orig"]
    )


def test_check_writes_nothing(run: Run, models: list[str], tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.onnx")}
    done = run("optimize", *models, "--check", "--format", "json")
    assert done.returncode == 1
    assert statuses(done.stdout) == ["would change", "would change", "unchanged"]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.onnx")} == before
    assert run("optimize", models[2], "--check").returncode == 0
