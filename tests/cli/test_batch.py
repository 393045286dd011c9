"""Many models: folders, in place, checks, the cache, budgets, and what build systems read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

from tests.cli.conftest import Run

NAMES = ("repvgg_blocks", "residual_block", "qdq_conv")


@pytest.fixture
def models(samples: Path, tmp_path: Path) -> list[str]:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(samples / f"{name}.onnx", folder)
    return [f"models/{name}.onnx" for name in NAMES]


def statuses(text: str) -> list[str]:
    return [o["status"] for o in json.loads(text)["models"]]


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


def test_one_that_fails_stops_no_other(run: Run, models: list[str], tmp_path: Path) -> None:
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


def test_a_crash_is_the_outcome_of_its_model(run: Run, models: list[str], tmp_path: Path) -> None:
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


def test_external_data_is_not_replaced_in_place(run: Run, samples: Path, tmp_path: Path) -> None:
    for file in ("external_weights.onnx", "external_weights.data"):
        shutil.copy(samples / file, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    done = run("optimize", "external_weights.onnx", "--in-place")
    assert done.returncode == 2
    assert "external data" in done.stderr
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert run("optimize", "external_weights.onnx", "--out-dir", "build").returncode == 0
    onnx.checker.check_model(str(tmp_path / "build" / "external_weights.onnx"))


def test_check_writes_nothing(run: Run, models: list[str], tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.onnx")}
    done = run("optimize", *models, "--check", "--format", "json")
    assert done.returncode == 1
    assert statuses(done.stdout) == ["would change", "would change", "unchanged"]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.onnx")} == before
    assert run("optimize", models[2], "--check").returncode == 0


def test_the_cache_goes_by_content(run: Run, models: list[str], tmp_path: Path) -> None:
    def go(*more: str) -> list[str]:
        shutil.rmtree(tmp_path / "build", ignore_errors=True)
        done = run("optimize", *models, "--out-dir", "build", "--cache-dir", "cache", "--format", "json", *more)
        assert done.returncode == 0, done.stderr
        return statuses(done.stdout)

    assert go() == ["optimized", "optimized", "unchanged"]
    made = (tmp_path / "build" / "repvgg_blocks.onnx").read_bytes()
    assert go() == ["cached", "cached", "unchanged"]
    assert (tmp_path / "build" / "repvgg_blocks.onnx").read_bytes() == made
    assert go("-O3") == ["optimized", "optimized", "unchanged"], "other options, another result"
    shutil.copy(tmp_path / models[1], tmp_path / models[0])
    assert go() == ["cached", "cached", "unchanged"], "the name does not matter"
    for entry in (tmp_path / "cache").rglob("files/*.onnx"):
        entry.write_bytes(b"damaged")
    assert go() == ["optimized", "cached", "unchanged"], "the second finds what the first has made"


def test_budgets_of_the_command_line_and_of_the_project(run: Run, models: list[str], tmp_path: Path) -> None:
    done = run("optimize", models[0], "out.onnx", "--fail-if", "nodes_after > 5", "--fail-if", "rolled_back")
    assert done.returncode == 1
    assert "over budget: nodes_after > 5 (nodes_after = 16)" in done.stderr
    assert (tmp_path / "out.onnx").exists()
    (tmp_path / "onnxopt.toml").write_text('fail-if = ["nodes_after > 20", "bytes_after > 1 * MiB"]\n')
    assert run("optimize", models[0], "out.onnx").returncode == 0
    (tmp_path / "onnxopt.toml").write_text('fail-if = "nodes_after > 4"\n')
    many = run("optimize", *models, "--out-dir", "build")
    assert many.returncode == 1
    assert many.stderr.count("over budget") == 3
    wrong = run("optimize", models[0], "out.onnx", "--fail-if", "nodes_after > x")
    assert wrong.returncode == 2
    assert "column 15" in wrong.stderr


def test_what_build_systems_read(run: Run, models: list[str], tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    done = run(
        *("optimize", *models, "models/missing.onnx", "--out-dir", "build", "--junit", "junit.xml"),
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == 2
    assert "::error file=models/missing.onnx,title=onnxopt::models/missing.onnx: no such file%0A" in done.stdout
    table = summary.read_text()
    assert table.startswith("before\n### onnxopt\n")
    assert "| ✓ | `build/repvgg_blocks.onnx` | 22 → 16 nodes (-27%) |" in table
    assert "| ✗ | `build/missing.onnx` |" in table
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "0", "1")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["m.onnx"], "where should the result of m.onnx go?"),
        (["a.onnx", "b.onnx", "c.onnx"], "the results of several models need a folder"),
        (["a.onnx", "--in-place", "--check"], "exclude each other"),
        (["a.onnx", "b.onnx", "--backup", ".orig"], "--backup is for --in-place"),
        (["a.onnx", "-", "--out-dir", "d"], "stdin and stdout are for one model"),
        (["a.onnx", "c.onnx", "--out-dir", "d", "--time-passes"], "--time-passes is for one model"),
        (["a.onnx", "--out-dir", "d", "--executor", "cloud"], "there is no executor 'cloud'"),
        (["a.onnx", "a.onnx", "--out-dir", "d"], "written twice"),
    ],
)
def test_what_contradicts_itself(run: Run, args: list[str], message: str) -> None:
    done = run("optimize", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 2, "one line, and a hint"


def test_a_model_without_a_place_is_told_three(run: Run) -> None:
    hint = run("optimize", "nets/m.onnx").stderr.splitlines()[1]
    assert "onnxopt optimize nets/m.onnx nets/m.opt.onnx" in hint
    assert "--in-place" in hint
    assert "--out-dir" in hint


def test_provenance(run: Run, models: list[str], tmp_path: Path) -> None:
    import hashlib

    original = tmp_path / models[0]
    for out in ("a.onnx", "b.onnx"):
        assert run("optimize", models[0], out, "--provenance").returncode == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    said = {p.key: p.value for p in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert said["onnxopt.source_sha256"] == hashlib.sha256(original.read_bytes()).hexdigest()
    assert said["onnxopt.pipeline"].startswith("fixpoint(lift-constants,")
    assert said["onnxopt.version"]
    assert run("optimize", "a.onnx", "again.onnx", "--provenance").returncode == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes(), "nothing was changed"
    assert run("optimize", models[0], "plain.onnx").returncode == 0
    assert not onnx.load(tmp_path / "plain.onnx").metadata_props
    assert run("optimize", models[2], "noted.onnx", "--provenance").returncode == 0
    assert len(onnx.load(tmp_path / "noted.onnx").metadata_props) == 3, "also where no rewrite fires"
