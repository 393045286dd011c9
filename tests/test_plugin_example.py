"""The example plugin: installed by pip, found by its entry point, its own test green."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SCRIPT
from tests.samples import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin, installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", folder, ROOT / "examples" / "plugin"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def run(installed: Path, *args: str | Path) -> str:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run(args, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_listed_with_its_origin(installed: Path) -> None:
    lines = [line for line in run(installed, SCRIPT, "passes").splitlines() if line.startswith("powers-as-products")]
    assert len(lines) == 1
    assert "onnxopt-powers 1.0.0" in lines[0]
    assert "powers-as-products" not in subprocess.run([SCRIPT, "passes"], capture_output=True, text=True).stdout


def test_it_is_explained(installed: Path) -> None:
    assert "Pow(x, const n)" in run(installed, SCRIPT, "explain", "powers-as-products")


def test_its_own_test_is_green(installed: Path) -> None:
    out = run(
        installed,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        ROOT / "examples/plugin/test_powers.py",
    )
    assert "4 passed" in out


def test_a_plugin_that_cannot_be_loaded_is_named_behind_the_others(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(
        "from onnxopt import graph_pass, register\n"
        "@register\n@graph_pass(opt_level=1)\ndef good_pass(graph, ctx):\n    'It does nothing.'\n"
    )
    for name, module in (("bad", "no_such_module"), ("good", "good"), ("worse", "no_module_either")):
        info = tmp_path / f"{name}_plugin-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[onnxopt.passes]\n{name} = {module}\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([SCRIPT, "passes"], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    for name in ("bad", "worse"):
        assert f"the plugin {name} ({name}-plugin 1.0) cannot be loaded: ModuleNotFoundError" in done.stderr
    listed = [line.split() for line in done.stdout.splitlines()]
    assert ["good-pass", "--with", "graph", "-", "good-plugin", "1.0", "It", "does", "nothing"] in listed
    assert ["canonicalize", "-O1"] in [words[:2] for words in listed]
