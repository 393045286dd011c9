"""A model and its weights change together or not at all, also if a writer is killed or interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxopt.io import staging
from onnxopt.io.staging import is_data_of
from tests.cli.conftest import SCRIPT, Run, snapshot
from tests.cli.weights import references_of, total, write_model


def test_model_and_data_change_together(tmp_path: Path) -> None:
    """A reader finds model and data of one writer, while two writers take turns and are killed at random."""
    sizes = {1.0: 40_000, 2.0: 50_000}
    for fill, size in sizes.items():
        write_model(tmp_path / f"in{fill}" / "m.onnx", ["w.bin"], fill=fill, size=size)
    (tmp_path / "here").mkdir()
    out = tmp_path / "here" / "out.onnx"
    rng = np.random.default_rng(0)

    def writer(fill: float) -> subprocess.Popen[bytes]:
        command = [SCRIPT, "optimize", f"in{fill}/m.onnx", "here/out.onnx", "--no-verify", "-q"]
        return subprocess.Popen(command, cwd=tmp_path)

    def read() -> float:
        """Return the number in the weights as a reader finds it.

        Missing data means that a writer was faster than the reader.
        """
        for _ in range(100):
            loaded = onnx.load(out, load_external_data=False)
            (tensor,) = loaded.graph.initializer
            (name,) = references_of(loaded)
            try:
                data = np.fromfile(out.parent / name, np.float32)
            except FileNotFoundError:
                continue
            assert list(tensor.dims) == [sizes[float(data[0])]], "weights of the other"
            assert (data == data[0]).all()
            return float(data[0])
        raise AssertionError("its data is gone")

    assert writer(1.0).wait() == 0
    start = time.monotonic()
    assert writer(2.0).wait() == 0
    takes = time.monotonic() - start
    for _ in range(8):
        pair = [writer(1.0), writer(2.0)]
        end = time.monotonic() + float(rng.uniform(0.5, 1.3)) * takes
        while time.monotonic() < end:
            read()
        pair[0].send_signal(signal.SIGKILL)
        for process in pair:
            process.wait()
        read()
    assert writer(1.0).wait() == 0
    assert read() == 1
    assert total(out) == 1
    names = sorted(p.name for p in out.parent.iterdir())
    assert [is_data_of("out.onnx", name) for name in names] == [False, True], "what the killed ones left is gone"


@pytest.mark.parametrize("at", ["making", "data", "model", "removal", "end"])
def test_a_writer_killed_at_each_step_leaves_a_whole_result(at: str, run: Run, tmp_path: Path) -> None:
    """A writer killed at each step of staging and replacing leaves a whole result.

    `end`: the staged files are removed, their folder is not.
    """
    for fill in (1.0, 2.0):
        write_model(tmp_path / f"in{fill}" / "m.onnx", ["w.bin"], fill=fill)
    kill = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from onnxopt.io import staging\n"
        "steps = {'making': (staging, 'own', 1), 'data': (os, 'replace', 1), 'model': (os, 'replace', 2),\n"
        "         'removal': (staging, '_remove', 1), 'end': (Path, 'rmdir', 1)}\n"
        f"place, name, left = steps[{at!r}]\n"
        "done = getattr(place, name)\n"
        "def step(*args):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return done(*args)\n"
        "setattr(place, name, step)\n"
    )
    (tmp_path / "die.py").write_text(kill)

    def go(model: str, *more: str) -> int:
        return run("optimize", model, "out.onnx", "-O0", "--no-verify", *more).returncode

    assert go("in1.0/m.onnx") == 0
    assert go("in2.0/m.onnx", "--plugin", "die.py") == -signal.SIGKILL
    assert total(tmp_path / "out.onnx") == (2 if at in ("removal", "end") else 1)
    (tmp_path / ".out.onnx.stranger.tmp" / "theirs").mkdir(parents=True)
    assert len(list(tmp_path.glob(".out.onnx.*.tmp"))) == 2
    assert go("in1.0/m.onnx") == 0
    assert total(tmp_path / "out.onnx") == 1
    assert len(list(tmp_path.glob("out.onnx.*.data"))) == 1
    assert [p.name for p in tmp_path.glob(".*")] == [".out.onnx.stranger.tmp"], "which is not known to be ours"


def test_a_living_writer_keeps_its_files(tmp_path: Path) -> None:
    from onnxopt.io import Staged, load, save

    source = write_model(tmp_path / "in" / "m.onnx", ["w.bin"])
    out = tmp_path / "out.onnx"
    with Staged(out) as slow:
        slow.write(load(source), "copy")
        save(load(source), out)
        slow.commit()
    assert total(out) == 1
    assert sorted(is_data_of("out.onnx", p.name) for p in tmp_path.glob("*out.onnx*")) == [False, True]


def test_interrupted_between_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxopt.io import load, save

    sources = [write_model(tmp_path / f"in{fill}" / "m.onnx", ["w.bin"], fill=fill) for fill in (1, 2)]
    save(load(sources[0]), tmp_path / "out.onnx", "copy")
    before = snapshot(tmp_path)
    replace, left = os.replace, 2

    def interrupted(source: str, target: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(load(sources[1]), tmp_path / "out.onnx", "copy")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("step", ["mkdtemp", "own", "close"])
def test_an_interruption_during_staging_leaves_nothing(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption right after any step of staging leaves no file, though the step is done and unrecorded."""
    place = {"mkdtemp": tempfile, "own": staging, "close": os}[step]
    done = getattr(place, step)
    calls = []

    def interrupted(*args: Any, **more: Any) -> Any:
        found = done(*args, **more)
        calls.append(args)
        if len(calls) == 1:
            if step == "own":
                found.close()
            raise KeyboardInterrupt
        return found

    (tmp_path / "mine").touch()
    monkeypatch.setattr(place, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        staging.StagingFolder(tmp_path, "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_leftovers_of_a_killed_build_are_removed(run: Run, samples: Path, tmp_path: Path) -> None:
    """Leftovers of a killed run are removed by any later run, but no foreign file and none of a running process."""
    import fcntl

    build = tmp_path / "build"
    for name in (".onnxopt.abcdefgh.tmp", ".residual_block.onnx.abcdefgh.tmp", ".onnxopt.held0000.tmp"):
        (build / name / "half").mkdir(parents=True)
        (build / name / "onnxopt.owner").touch()
    for name in (".onnxopt.12345678.tmp", ".other.onnx.abcdefgh.tmp", "onnxopt.abcdefgh.tmp"):
        (build / name / "theirs").mkdir(parents=True)
    (build / ".other.onnx.abcdefgh.tmp" / "onnxopt.owner").touch()
    kept = {".onnxopt.held0000.tmp", ".onnxopt.12345678.tmp", ".other.onnx.abcdefgh.tmp", "onnxopt.abcdefgh.tmp"}
    with open(build / ".onnxopt.held0000.tmp" / "onnxopt.owner") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run("optimize", samples / "residual_block.onnx", "--out-dir", "build").returncode == 0
        assert {p.name for p in build.iterdir()} == kept | {"residual_block.onnx"}
    (build / ".residual_block.onnx.abcdefgh.tmp").mkdir()
    (build / ".residual_block.onnx.abcdefgh.tmp" / "onnxopt.owner").touch()
    assert run("optimize", samples / "residual_block.onnx", "build/residual_block.onnx").returncode == 0
    assert {p.name for p in build.iterdir()} == (kept - {".onnxopt.held0000.tmp"}) | {"residual_block.onnx"}
