"""The README's commands work."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx

import onnxopt
from onnxopt.graph import read_model
from onnxopt.rewriting import Driver, Rule, const, op, rewrite, var
from tests.commands import Run
from tests.samples import ROOT, sample

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^\$ make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
    assert all(f"\n{target}:" in makefile for target in targets)


def test_its_commands_exist(run: Run) -> None:
    commands = {c.split()[0] for c in re.findall(r"`onnxopt ([^`]+)`", README)}
    assert {"optimize", "stats", "verify"} <= commands
    for command in commands:
        assert run(command, "--help").returncode == 0, command


def test_its_api_runs(tmp_path: Path, monkeypatch: object) -> None:
    onnx.save(sample("residual_block"), tmp_path / "model.onnx")
    code = blocks("python")[0].replace('"model', f'"{tmp_path}/model')
    scope: dict[str, object] = {}
    exec(code, scope)
    report = scope["report"]
    assert isinstance(report, onnxopt.Report)
    assert report.ok


def test_its_rule_is_a_rule() -> None:
    scope: dict[str, object] = {"rewrite": rewrite, "op": op, "var": var, "const": const}
    exec(blocks("python")[1], scope)
    rule = scope["fold_add"]
    assert isinstance(rule, Rule)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y)'
        "<float[1, 1, 1, 1] w = {2}, float[1, 1, 1] z = {3}> { c = Conv (x, w) y = Add (z, c) }"
    )
    model = read_model(proto)
    Driver([rule]).run(model)
    (node,) = model.graph
    assert node.op == "Conv"
    assert node.inputs[2] is not None
    assert np.array_equal(node.inputs[2].array, [3])


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert "docs/index.md" in links
    assert [link for link in links if not (ROOT / link).exists()] == []
