"""Places of weights by --external: inside the result, in its own data file, or in the original's files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from pathlib import Path

import onnx
import pytest

from onnxopt.cli.demo import network
from onnxopt.io.staging import is_data_of
from tests.cli.conftest import Run, snapshot
from tests.cli.fork_server import ForkServer
from tests.cli.weights import beside, references, total, write_model


@pytest.mark.parametrize("level", ["-O0", "-O2"])
@pytest.mark.parametrize("out", ["in/out.onnx", "out.onnx"])
@pytest.mark.parametrize("external", ["auto", "inline", "copy", "reuse"])
def test_external(external: str, out: str, level: str, run: Run, tmp_path: Path) -> None:
    source = write_model(tmp_path / "in" / "m.onnx", ["w.bin", "sub/w.bin"], fill=2)
    before = snapshot(tmp_path)
    once: dict[str, bytes] = {}
    for _ in range(2):
        done = run("optimize", "in/m.onnx", out, "--external", external, level)
        assert done.returncode == 0, done.stderr
        assert level == "-O0" or "✓" in done.stdout
        made = {name: data for name, data in snapshot(tmp_path).items() if name not in before}
        assert total(tmp_path / out) == 4
        files = references(tmp_path / out)
        if external == "inline":
            assert not files
        elif external == "reuse" or (external, out, level) == ("auto", "in/out.onnx", "-O0"):
            assert files == ({"w.bin", "sub/w.bin"} if out.startswith("in/") else {"in/w.bin", "in/sub/w.bin"})
            assert level != "-O0" or out == "out.onnx" or (tmp_path / out).read_bytes() == source.read_bytes()
        else:
            assert [is_data_of("out.onnx", name) for name in files] == [True]
        data = {str(Path(out).parent / name) for name in files} - set(before)
        assert set(made) == {out, *data}
        assert not once or snapshot(tmp_path) == once, "the same again is the same"
        once = snapshot(tmp_path)
    assert {name: data for name, data in once.items() if name in before} == before


@pytest.mark.parametrize("more", [(), ("--cache-dir", ".cache"), ("--external", "reuse"), ("--external", "inline")])
def test_in_place_writes_new_data_and_keeps_the_old_data(more: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "in" / "m.onnx", ["sub/w.bin"], fill=4)
    before = snapshot(tmp_path / "in")
    for _ in range(2):
        done = run("optimize", "in/m.onnx", "--in-place", "--backup", ".orig", *more)
        assert (done.returncode, done.stderr) == (0, "")
        assert total(tmp_path / "in/m.onnx") == total(tmp_path / "in/m.onnx.orig") == 4
        assert all(snapshot(tmp_path / "in")[n] == data for n, data in before.items() if n != "m.onnx")
        assert (tmp_path / "in/m.onnx.orig").read_bytes() == before["m.onnx"] != (tmp_path / "in/m.onnx").read_bytes()
    assert "current" in done.stdout or "unchanged" in done.stdout
    assert len(references(tmp_path / "in/m.onnx")) == {"inline": 0}.get(more[-1] if more else "", 1)


def test_in_place_a_backup_keeps_data_of_ours(run: Run, tmp_path: Path) -> None:
    beside(network(), tmp_path / "m.onnx")
    assert run("optimize", "m.onnx", "made.onnx", "-O0", "--external", "copy").returncode == 0
    (first,) = references(tmp_path / "made.onnx")
    for _ in range(2):
        assert run("optimize", "made.onnx", "--in-place", "--backup", ".orig", "--no-verify").returncode == 0
        assert references(tmp_path / "made.onnx") != {first} == references(tmp_path / "made.onnx.orig")
        assert onnx.load(tmp_path / "made.onnx.orig").graph.initializer
    assert run("optimize", "made.onnx", "--in-place", "--dtype", "float16", "--no-verify").returncode == 0
    data = {name for name in snapshot(tmp_path) if is_data_of("made.onnx", name)}
    assert data == {first, *references(tmp_path / "made.onnx")}, "what only the one between read is gone"


def test_in_place_does_not_separate_a_model_from_its_data(run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "in" / "m.onnx", ["w.bin"])
    write_model(tmp_path / "own.onnx", ["own.onnx"])
    os.symlink("in/m.onnx", tmp_path / "m.onnx")
    shutil.copy(tmp_path / "in" / "w.bin", tmp_path)
    before = snapshot(tmp_path)
    for name, said in (("m.onnx", "is a link into another folder"), ("own.onnx", "is its own data file")):
        done = run("optimize", name, "--in-place")
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert snapshot(tmp_path) == before


def test_the_data_file_of_a_result_is_named(run: Run, tmp_path: Path) -> None:
    """The data file of a result is named: a model shipped without the file does not load."""
    write_model(tmp_path / "in" / "m.onnx", ["w.bin"], fill=2)
    for where, out in ((("out.onnx",), "out.onnx"), (("--out-dir", "out"), "out/m.onnx")):
        done = run("optimize", "in/m.onnx", *where)
        assert done.returncode == 0, done.stderr
        (name,) = references(tmp_path / out)
        assert f", data in {name}, " in done.stdout
        as_json = run("optimize", "in/m.onnx", *where, "--format", "json")
        assert json.loads(as_json.stdout)["models"][0]["report"]["data"] == [name]
    assert ", data in" not in run("optimize", "in/m.onnx", "whole.onnx", "--external", "inline").stdout
    assert ", data in" not in run("optimize", "in/m.onnx", "--check").stdout


def test_reuse_goes_only_where_readers_follow(run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "in" / "m.onnx", ["w.bin"])
    (tmp_path / "out").mkdir()
    for where in (("out/o.onnx",), ("--out-dir", "out")):
        done = run("optimize", "in/m.onnx", *where, "--external", "reuse")
        assert (done.returncode, "--external copy" in done.stderr) == (2, True)
        assert not list((tmp_path / "out").iterdir())
    done = run("optimize", "in/m.onnx", "--out-dir", ".", "--external", "reuse", "--cache-dir", "cache")
    assert done.returncode == 0, done.stderr
    assert references(tmp_path / "m.onnx") == {"in/w.bin"}
    assert total(tmp_path / "m.onnx") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "m.onnx", "out"]


def test_a_check_writes_no_data(run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "in" / "m.onnx", ["w.bin"])
    before = snapshot(tmp_path)
    assert run("optimize", "in/m.onnx", "--check").returncode == 1
    assert run("optimize", "in/m.onnx", "--check", "-O0").returncode == 0
    assert snapshot(tmp_path) == before


def test_inline_weights_beyond_protobufs_limit_are_an_error(run: Run, tmp_path: Path) -> None:
    model = write_model(tmp_path / "in" / "m.onnx", ["w.bin"], missing=True, size=600_000_000)
    with open(model.with_name("w.bin"), "wb") as f:
        f.truncate(2_400_000_000)
    folds = ("--disable", "sum_with_zeros,neutral_operand")  # sums with zeros would be folded
    done = run("optimize", "in/m.onnx", "out.onnx", "--external", "inline", "--no-verify", *folds)
    assert done.returncode == 2
    assert "2.2 GiB of weights" in done.stderr
    done = run("optimize", "in/m.onnx", "out.onnx", "--no-verify", *folds)
    assert done.returncode == 0, done.stderr
    (data,) = tmp_path.glob("out.onnx.*.data")
    assert data.stat().st_size == 2_400_000_000
    assert data.stat().st_blocks < 1000, "a hole stays a hole"


def test_data_can_be_mapped(run: Run, tmp_path: Path) -> None:
    model = write_model(tmp_path / "in" / "m.onnx", ["a", "b", "a"], size=600_000)
    done = run("optimize", model, "out.onnx")
    assert done.returncode == 0, done.stderr
    loaded = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    entries = [{e.key: e.value for e in t.external_data} for t in loaded.graph.initializer]
    assert all(int(e["offset"]) % 65536 == 0 for e in entries)
    assert len({e["offset"] for e in entries}) == 2, "what is shared is written once"
    small = write_model(tmp_path / "small" / "m.onnx", ["a", "b"])
    assert run("optimize", small, "small.onnx").returncode == 0
    loaded = onnx.load(tmp_path / "small.onnx", load_external_data=False)
    offsets = [int(e.value) for t in loaded.graph.initializer for e in t.external_data if e.key == "offset"]
    assert offsets == [0, 4096]


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of a test")
def test_many_files_and_few_descriptors(tmp_path: Path, fork_server: ForkServer | None) -> None:
    assert fork_server is not None
    count = 600
    write_model(tmp_path / "in" / "m.onnx", [f"d/w{i}" for i in range(count)], size=300)
    for more in (["copy", "--no-verify"], ["reuse"], ["inline"]):
        words, limits = ["optimize", "in/m.onnx", "out.onnx", "--external", *more], {resource.RLIMIT_NOFILE: 256}
        done = fork_server.run(words, tmp_path, os.environ, limits=limits)
        assert done.returncode == 0, done.stderr
        assert total(tmp_path / "out.onnx") == count
