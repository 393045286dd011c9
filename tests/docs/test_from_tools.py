"""docs/from-tools.md has a row for each option of other tools, and commands in it are as onnxopt takes them.

`options_of_tools.txt` has the options of each tool's parsers, as read from the version that its heading names.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import click
import pytest

from onnxopt.cli.main import cli
from onnxopt.errors import OnnxOptError
from onnxopt.pipeline import registry
from tests.samples import ROOT

PAGE: Final = (ROOT / "docs" / "from-tools.md").read_text()
OPTIONS: Final = (Path(__file__).parent / "options_of_tools.txt").read_text()
COMMANDS: Final = cli.list_commands(click.Context(cli))
MODELS: Final = dict.fromkeys(("optimize", "verify", "extract", "diff", "report"), 2) | {"passes": 0, "explain": 0}
IS_COMMAND: Final = re.compile(f"(?:onnxopt )?(?:-|(?:{'|'.join(COMMANDS)})\\b)")
PASSES: Final = re.compile(r"--(?:disable|with) (\S+)")


def rows(text: str) -> list[list[str]]:
    return [re.split(r" \| ", row.strip("| ")) for row in text.splitlines() if row.startswith("|")]


def test_each_option_of_other_tools_has_a_row() -> None:
    assert len(OPTIONS.split("# ")) == 6
    for tool in OPTIONS.split("# ")[1:]:
        heading, _, options = tool.partition("\n")
        name, version = heading.split()
        assert f"{name} {version}" in PAGE
        section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        named = {o for row in rows(section) for o in re.findall(r"(?<![\w-])--[\w-]+", row[0])}
        assert not set(options.split()) - named, name


def test_commands_of_the_rows_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("in.onnx", "out.onnx", "a.onnx", "b.onnx", "x.npy", "data.npy", "data.npz", "FILE"):
        Path(name).touch()
    taken = 0
    for row in rows(PAGE):
        for text in filter(IS_COMMAND.match, re.findall("`([^`…]*)`", row[-1])):
            words = shlex.split(text.removeprefix("onnxopt "))
            command = words.pop(0) if words[0] in COMMANDS else "optimize"
            if words == ["--version"]:
                command = ""
            elif not any(w.endswith(".onnx") for w in words[:1]):
                words = ["in.onnx", "out.onnx"][: MODELS.get(command, 1)] + words
            try:
                (cli.get_command(click.Context(cli), command) or cli).make_context(command, words)
                for name in ",".join(PASSES.findall(text)).split(","):
                    assert not name or registry.pass_or_rule(name), name
            except click.exceptions.Exit:
                assert not command
            except (click.ClickException, OnnxOptError) as e:
                pytest.fail(f"{text}: {e}")
            taken += 1
    assert taken > 100


def test_passes_of_the_rows_exist() -> None:
    table = rows(PAGE.partition("Some names:")[2].partition("##")[0])[2:]
    names = {name for row in table for name in re.findall(r"`([a-z][a-z-]+)`", row[-1])}
    assert len(names) > 18
    assert names <= set(registry.all_passes())
