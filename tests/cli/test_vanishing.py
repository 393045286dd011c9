"""Models removed or replaced by a pipe or device during a command: the command ends, and reports no bug."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from onnxopt.batch.places import file_digest
from onnxopt.errors import nearest_file, plain, unreadable
from tests.cli.conftest import Run

REPLACES = '''
import os
from onnxopt import model_pass, register
@register
@model_pass(opt_level=1)
def replaces(model, ctx):
    """Has another file, or none, in the place of the model."""
    path = os.path.realpath(str(model.path))
    if os.path.exists(path):
        os.unlink(path)
        {how}
'''
HOWS = {"removed": "pass", "pipe": "os.mkfifo(path)", "device": "os.symlink('/dev/zero', path)"}
PIPE = "error: model.onnx: it is a pipe or a device, not a file"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a file that is open cannot be removed there")


@pytest.mark.parametrize("where", ["--out-dir", "--in-place", "--check", "--cache-dir"])
@pytest.mark.parametrize("how", HOWS)
def test_a_model_replaced_during_optimization(how: str, where: str, run: Run, samples: Path, tmp_path: Path) -> None:
    shutil.copy(samples / "residual_block.onnx", tmp_path / "model.onnx")
    (tmp_path / "replaces.py").write_text(REPLACES.format(how=HOWS[how]))
    words = {"--out-dir": ["--out-dir", "b"], "--cache-dir": ["--out-dir", "b", "--cache-dir", "c"]}.get(where, [where])
    done = run("optimize", "model.onnx", *words, "--plugin", "replaces.py", "--with", "replaces", "--no-verify")
    if how == "removed" and "--out-dir" in words:
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "b" / "model.onnx").is_file(), "what was read lasts"
        return
    assert done.returncode == 2
    assert "internal error" not in done.stderr
    said = "error: model.onnx: no such file" if how == "removed" else PIPE
    changed = "error: model.onnx was changed while it was read"  # the change is noticed first for --in-place
    assert done.stderr.splitlines()[0] in (said, changed)
    assert not (tmp_path / "b" / "model.onnx").exists()


@pytest.mark.parametrize("how", HOWS)
def test_a_model_replaced_before_its_digest_is_an_error(how: str, run: Run, samples: Path, tmp_path: Path) -> None:
    """A model replaced after the read is an error if the result records a digest of its bytes."""
    shutil.copy(samples / "residual_block.onnx", tmp_path / "model.onnx")
    (tmp_path / "replaces.py").write_text(REPLACES.format(how=HOWS[how]))
    words = ["model.onnx", "out.onnx", "--plugin", "replaces.py", "--with", "replaces"]
    done = run("optimize", *words, "--provenance")
    said = "error: model.onnx: no such file" if how == "removed" else PIPE
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, said)
    assert not (tmp_path / "out.onnx").exists()


def test_pipes_and_devices_are_refused_without_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for place in (tmp_path / "pipe.onnx", Path("/dev/zero")):
        with pytest.raises(OSError, match="it is a pipe or a device") as e:
            file_digest(place)
        assert str(unreadable(place, e.value)) == f"{place}: it is a pipe or a device, not a file"
        assert nearest_file(place) == "it is a pipe or a device"
    with pytest.raises(IsADirectoryError), open(tmp_path, "rb", opener=plain):
        pass
    (tmp_path / "file").write_text("text")
    with open(tmp_path / "file", opener=plain) as f:
        assert f.read() == "text"
