"""The ten commands of docs/tutorial.md, in an environment with the wheel alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.installed import Place
from tests.samples import ROOT

pytestmark = pytest.mark.skipif("os.name == 'nt'", reason="a shell of POSIX")


def test_the_ten_commands_of_the_tutorial(place: Place, tmp_path: Path) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    assert len(script.splitlines()) == 10 and script.startswith("pip install onnxopt\n")
    done = place.run(script, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (place.packages / "onnxopt").is_dir(), "what ran is the wheel's"
    assert done.stdout.count("✓ verified") >= 4
    made = {p.name for p in tmp_path.iterdir()}
    assert made == {"demo.onnx", "demo.opt.onnx", "best.onnx", "half.onnx", "report.html", "build", ".cache"}
    assert "<svg" in (tmp_path / "report.html").read_text() or "<script" in (tmp_path / "report.html").read_text()
