"""Output for build systems: budgets, annotations, summaries, JUnit, reports."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from tests.cli.conftest import Run, statuses


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
    same = run("optimize", models[2], "out.onnx", "--fail-if", "not verified or max_rel", "--fail-if", "rewrites")
    assert same.returncode == 0, "the same bytes compute the same"
    blind = run("optimize", models[0], "out.onnx", "--no-verify", "--fail-if", "max_rel > 1e-3")
    assert blind.returncode == 1
    assert "max_rel = inf" in blind.stderr
    wrong = run("optimize", models[0], "out.onnx", "--fail-if", "nodes_after > x")
    assert wrong.returncode == 2
    assert "column 15" in wrong.stderr


def test_annotations_summary_and_junit_of_a_run(run: Run, models: list[str], tmp_path: Path) -> None:
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


def test_annotations_are_where_the_repository_has_the_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "repo" / "nets").mkdir(parents=True)
    (tmp_path / "repo" / "nets" / "m.onnx").write_bytes(b"no model")
    done = run(
        *("optimize", tmp_path / "repo/nets/m.onnx", "--check"),
        GITHUB_ACTIONS="true",
        GITHUB_WORKSPACE=str(tmp_path / "repo"),
        GITHUB_STEP_SUMMARY=str(tmp_path / "nowhere" / "summary"),
    )
    assert done.returncode == 2
    assert "\n::error file=nets/m.onnx,title=onnxopt::" in done.stdout
    assert "warning: GITHUB_STEP_SUMMARY: cannot write" in done.stderr


def test_the_report_of_many_is_one_document(run: Run, models: list[str], tmp_path: Path) -> None:
    done = run("optimize", *models, "--check", "--report", "report.json", "-v")
    assert done.returncode == 1
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["exit_code"] == 1
    assert statuses(json.dumps(document)) == ["would change", "would change", "unchanged"]
    assert "    fold_conv_bn: 3 (-3 nodes)\n" in done.stdout


def test_json_has_no_infinities(run: Run, models: list[str], tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from onnxopt import PassInfo, RewritePass, op, register, rewrite, var\n"
        "@rewrite(op.Relu(var('x')))\n"
        "def roots(m, x):\n"
        '    """Not a number where x is negative."""\n'
        "    return m.op.Sqrt(x)\n"
        "@register\n"
        "class Wrong(RewritePass):\n"
        '    """Wrong."""\n'
        "    info = PassInfo('wrong', opt_level=1)\n"
        "    rules = (roots,)\n"
    )

    def refuse(name: str) -> None:
        raise AssertionError(name)

    args = ("--plugin", "wrong.py", "--with", "wrong", "--strict", "--format", "json")
    done = run("optimize", models[1], "out.onnx", *args)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout, parse_constant=refuse)
    verdict = answer["models"][0]["report"]["verification"]
    assert (verdict["status"], verdict["worst_rel"]) == ("different", None)


def test_whoever_asked_for_json_gets_an_object_of_each_error(run: Run, models: list[str], tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_text("junk")
    for arguments, says in (
        (("optimize", models[0]), "where should the result"),
        (("optimize", models[0], "out.onnx", "--nonsense"), "--nonsense"),
        (("verify", models[0], "bad.onnx"), "bad.onnx is not an ONNX model"),
        (("stats", "missing.onnx"), "missing.onnx: no such file"),
        (("stats", models[0], "--top", "x"), "invalid value for '--top'"),
        (("find", models[0], "Relu("), "the example cannot be read"),
        (("bench", models[0], "--provider", "none"), "has no execution provider 'none'"),
        (("nothing",), "no command is called 'nothing'"),
    ):
        for option in (("--format", "json"), ("--format=json",)):
            done = run(*arguments, *option)
            found = json.loads(done.stdout)
            assert says in found["error"]["message"], found
            assert found["error"]["hint"], found
            assert found["error"]["message"] in done.stderr
            assert found["exit_code"] == done.returncode == 2
    assert run("optimize", models[0]).stdout == ""
    assert run("optimize", models[0], "-", "--format", "json").stdout == "", "what goes there is a model"


def test_a_projects_file_asks_for_json_too(run: Run, models: list[str], tmp_path: Path) -> None:
    (tmp_path / "onnxopt.toml").write_text('format = "json"\n')
    (tmp_path / "an other.toml").write_text('format = "text"\n')
    for arguments in ((), ("--nonsense",), (models[0], "--level", "7"), (models[0],)):
        done = run("optimize", *arguments)
        found = json.loads(done.stdout)
        assert found["exit_code"] == done.returncode == 2 and found["error"]["message"] in done.stderr
        for option in ("--format=text", "--project-file=an other.toml"):
            assert run("optimize", *arguments, option).stdout == ""
    assert run("stats", "missing.onnx").stdout == ""
    (tmp_path / "onnxopt.toml").write_text('format = "json"\nnothing = 1\n')
    assert (
        "no setting is called 'nothing'"
        in json.loads(run("optimize", models[0], "out.onnx").stdout)["error"]["message"]
    )
