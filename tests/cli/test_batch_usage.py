"""Contradictory options, and commands without a place for results, give one error line and a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run, snapshot
from tests.cli.weights import write_model


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
        (["a.onnx", "b.onnx", "--jobs", "2"], "is b.onnx the result of a.onnx, or a second model?"),
        (["a.onnx", "b.onnx", "--dim", "n=4", "--dim", "n=5"], "--dim gives 'n' two values: 4 and 5"),
        (["a.onnx", "b.onnx", "--verify-dim", "n=4", "--verify-dim", "n=5"], "--verify-dim gives 'n' two values"),
        (["a.onnx", "b.onnx", "--shape", "x:1,2", "--shape", "x:1,3"], "--shape gives 'x' two values: (1, 2) and"),
        (["a.onnx", "b.onnx", "--config", "k=1", "--config", "k=2"], "--config gives 'k' two values: 1 and 2"),
        (
            ["a.onnx", "b.onnx", "--input", "x=a.npy", "--input", "x=b.npy"],
            "--input gives 'x' two values: a.npy and b.npy",
        ),
        (["a.onnx", "b.onnx", "--no-keep-io"], "--no-keep-io is for --dtype"),
        (["a.onnx", "b.onnx", "--zero-weights"], "--zero-weights is for --reproducer"),
        (["a.onnx", "b.onnx", "-O1", "--pipeline", "dead-code"], "--pipeline contradicts -O"),
        (["a.onnx", "--in-place", "--backup", "old/"], "'old/' is not a suffix"),
    ],
)
def test_contradictory_options_are_an_error(run: Run, args: list[str], message: str) -> None:
    done = run("optimize", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 2, "one line, and a hint"


def test_options_may_repeat_and_unused_project_settings_are_allowed(run: Run, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxopt.toml").write_text("keep-io = false\nzero-weights = true\nlevel = 1\n")
    model = samples / "residual_block.onnx"
    same = ("--config", "constant-folding.max-bytes=9", "--config", "constant-folding.max-bytes=9")
    done = run("optimize", model, "out.onnx", "--pipeline", "dead-code", "--no-verify", *same)
    assert done.returncode == 0, done.stderr


def test_a_folder_is_no_model(run: Run, tmp_path: Path) -> None:
    (tmp_path / "nets" / "of two").mkdir(parents=True)
    (tmp_path / "nets" / "none").mkdir()
    (tmp_path / "build" / "nets").mkdir(parents=True)

    def hint() -> str:
        done = run("optimize", "nets", "--out-dir", "build")
        assert done.returncode == 2
        assert done.stderr.startswith("error: nets is a directory\nhint: ")
        return done.stderr.splitlines()[1].removeprefix("hint: ")

    assert hint() == "there is no .onnx file in it; a model is one file"
    (tmp_path / "nets" / "of two" / "m.onnx").touch()
    assert hint() == "name the models in it: 'nets/of two'/*.onnx"
    (tmp_path / "nets" / "m.onnx").touch()
    assert hint() == "name the models in it: nets/*.onnx"


def test_a_model_without_a_place_is_told_three(run: Run) -> None:
    hint = run("optimize", "nets/m.onnx").stderr.splitlines()[1]
    assert "onnxopt optimize nets/m.onnx nets/m.opt.onnx" in hint
    assert "--in-place" in hint
    assert "--out-dir" in hint


def test_a_result_replaces_no_file_read_by_another_model(run: Run, tmp_path: Path) -> None:
    """A result never replaces a data file of another model, whether named like a model or like data."""
    write_model(tmp_path / "a.onnx", ["b.onnx"])
    write_model(tmp_path / "b.onnx", ["b.onnx.0123456789ab.data"])
    write_model(tmp_path / "c.onnx", ["b.onnx.0123456789ab.data"])
    (tmp_path / "link.onnx").symlink_to("c.onnx")
    before = snapshot(tmp_path)
    for models, message in (
        (("a.onnx", "b.onnx"), "b.onnx, which the result of b.onnx replaces, is a data file of a.onnx"),
        (
            ("c.onnx", "b.onnx"),
            "b.onnx.0123456789ab.data, which the result of b.onnx replaces, is a data file of c.onnx",
        ),
        (("c.onnx", "link.onnx"), "which the result of c.onnx replaces, is one of the models"),
    ):
        done = run("optimize", *models, "--in-place")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 2)
        assert message in done.stderr
        assert snapshot(tmp_path) == before
    write_model(tmp_path / "d.onnx", ["w.bin"])
    write_model(tmp_path / "e.onnx", ["w.bin"])
    assert run("optimize", "d.onnx", "e.onnx", "--in-place", "--no-verify").returncode == 0, "which stays"
