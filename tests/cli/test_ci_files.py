"""Files that add onnxopt to a build are valid by their schemas, and run unchanged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import SCRIPT
from tests.installed import Place

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "examples" / "ci"


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.github-actions", ROOT / "action.yml"),
        ("vendor.github-workflows", CI / "github-workflow.yml"),
        ("vendor.gitlab-ci", CI / "gitlab-ci.yml"),
        *(("vendor.github-workflows", file) for file in sorted((ROOT / ".github" / "workflows").glob("*.yml"))),
    ],
)
def test_ci_files_are_valid_by_their_schemas(schema: str, file: Path) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    done = subprocess.run(checker, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_uses_existing_inputs_of_the_action() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = yaml.safe_load((CI / "github-workflow.yml").read_text())["jobs"]["optimize"]["steps"]
    used = next(s for s in steps if s.get("uses", "").startswith("onnxopt/"))
    assert set(used["with"]) <= set(action["inputs"])
    assert {name for name, i in action["inputs"].items() if i.get("required")} <= set(used["with"])
    for name in ("report", "junit"):
        assert f"steps.{used['id']}.outputs.{name}" in (CI / "github-workflow.yml").read_text()
        assert name in action["outputs"]


def run_action(folder: Path, **inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run the optimizing step of the action in the environment that GitHub makes.

    Return the process and the outputs.
    """
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step: dict[str, Any] = next(s for s in action["runs"]["steps"] if s.get("id") == "optimize")
    given = {name: str(i.get("default", "")) for name, i in action["inputs"].items()} | inputs
    environment = {name: given[text.split("inputs.")[1].split()[0]] for name, text in step["env"].items()}
    environment |= {"GITHUB_OUTPUT": str(folder / "output"), "RUNNER_TEMP": str(folder), "GITHUB_ACTIONS": "true"}
    environment |= {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    environment |= {"PATH": f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (folder / "output").read_text().splitlines()
    return done, dict(line.split("=", 1) for line in lines)


def test_the_action_optimizes(samples: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("residual_block", "qdq_conv"):
        shutil.copy(samples / f"{name}.onnx", tmp_path / "models")
    done, outputs = run_action(tmp_path, models="models/*.onnx", **{"out-dir": "build", "cache-dir": "cache"})
    assert done.returncode == 0, done.stderr
    assert outputs["exit-code"] == "0"
    assert f"report: {outputs['report']}\n" in done.stdout
    assert done.stdout.startswith("::notice title=onnxopt::cache-dir without cache-key: ")
    assert sorted(p.name for p in (tmp_path / "build").iterdir()) == ["qdq_conv.onnx", "residual_block.onnx"]
    report = json.loads(Path(outputs["report"]).read_text())
    assert [o["status"] for o in report["models"]] == ["unchanged", "optimized"]
    assert Path(outputs["junit"]).read_text().count("<testcase") == 2
    assert "| ✓ | `build/residual_block.onnx` |" in (tmp_path / "summary.md").read_text()


def test_the_action_stops_the_build(samples: Path, tmp_path: Path) -> None:
    shutil.copy(samples / "residual_block.onnx", tmp_path)
    budget = '--check --fail-if "nodes_after > 3"'
    done, outputs = run_action(tmp_path, models="residual_block.onnx", args=budget)
    assert done.returncode == 1
    assert outputs["exit-code"] == "1"
    assert "::error file=residual_block.onnx" in done.stderr
    assert not (tmp_path / "build").exists()


def test_arguments_of_the_action_are_words_and_models_no_options(samples: Path, tmp_path: Path) -> None:
    shutil.copy(samples / "residual_block.onnx", tmp_path / "--no-verify.onnx")
    told = "--check --dim 'batch=1' --fail-if \"nodes_after > 99\" --backup $(touch${IFS}ran)"
    done, outputs = run_action(tmp_path, models="*.onnx", args=told)
    assert not (tmp_path / "ran").exists()
    assert "'$(touch${IFS}ran)'" in done.stderr or "--backup is for --in-place" in done.stderr
    done, outputs = run_action(tmp_path, models="*.onnx", args=told.partition(" --backup")[0])
    assert outputs["exit-code"] == "1"
    report = json.loads(Path(outputs["report"]).read_text())
    assert [(o["source"], o["status"]) for o in report["models"]] == [("--no-verify.onnx", "would change")]
    assert report["models"][0]["report"]["verification"]["status"] == "verified"
    done, outputs = run_action(tmp_path, models="*.onnx", args="--check --fail-if 'unbalanced")
    assert (done.returncode, outputs["exit-code"]) == (2, "2"), "and none of it was left out"
    assert "::notice" not in run_action(tmp_path, args="'", **{"cache-dir": "c", "cache-key": "secret"})[0].stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("::error title=onnxopt::a quote in the action's args is not closed")


def test_the_action_installs_its_own_checkout(place: Place, tmp_path: Path) -> None:
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    step = next(s for s in steps if "INSTALL" in s.get("env", {}))
    assert step["env"]["ACTION_PATH"] == "${{ github.action_path }}"
    env = {"INSTALL": "self", "ACTION_PATH": str(ROOT)}
    done = place.run(step["run"] + "\ncd /; python -c 'import onnxopt; print(onnxopt.__file__)'", tmp_path, **env)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(place.packages)


def test_the_gitlab_job_runs(place: Place, samples: Path, tmp_path: Path) -> None:
    job = yaml.safe_load((CI / "gitlab-ci.yml").read_text())["optimize-models"]
    (tmp_path / "models").mkdir()
    shutil.copy(samples / "residual_block.onnx", tmp_path / "models")
    done = place.run("\n".join(job["script"]), tmp_path, ONNXOPT=job["variables"]["ONNXOPT"])
    assert done.returncode == 0, done.stderr
    kept = [tmp_path / job["artifacts"]["reports"]["junit"], *(tmp_path / p for p in job["artifacts"]["paths"])]
    assert all(path.exists() for path in kept) and (tmp_path / job["cache"]["paths"][-1]).is_dir()
    assert (tmp_path / "build" / "residual_block.onnx").is_file()


def hooks() -> dict[str, list[str]]:
    return {h["id"]: h["entry"].split() for h in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}


def test_hooks_on_a_repository(samples: Path, tmp_path: Path) -> None:
    """Hooks run like from pre-commit: the entry, then the staged files that match."""
    environment = os.environ | {"PATH": f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"}

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert call("git", "init", "-q").returncode == 0
    shutil.copy(samples / "residual_block.onnx", tmp_path / "m.onnx")
    call("git", "add", "m.onnx")
    staged = call("git", "diff", "--cached", "--name-only").stdout.split()
    assert call(*hooks()["onnxopt-check"], *staged).returncode == 1
    assert call(*hooks()["onnxopt-optimize"], *staged).returncode == 0
    assert call("git", "diff", "--name-only").stdout.split() == ["m.onnx"], "pre-commit stops where a file changed"
    assert call(*hooks()["onnxopt-check"], *staged).returncode == 0
    configured = yaml.safe_load((CI / "pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {h["id"] for h in configured} <= set(hooks())
