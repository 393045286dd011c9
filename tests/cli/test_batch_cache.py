"""The cache is keyed by contents, data and plugins, and shared by builds; changed entries are computed again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from onnxopt.io.staging import is_data_of
from tests.cli.conftest import SCRIPT, Run, statuses


def test_the_cache_goes_by_content(run: Run, models: list[str], tmp_path: Path) -> None:
    first, second = models[1:]

    def go(*more: str) -> list[str]:
        shutil.rmtree(tmp_path / "build", ignore_errors=True)
        done = run("optimize", first, second, "--out-dir", "build", "--cache-dir", "cache", "--format", "json", *more)
        assert done.returncode == 0, done.stderr
        return statuses(done.stdout)

    assert go() == ["optimized", "unchanged"]
    made = (tmp_path / "build" / "residual_block.onnx").read_bytes()
    assert go() == ["cached", "unchanged"]
    assert (tmp_path / "build" / "residual_block.onnx").read_bytes() == made
    assert go("-O3") == ["optimized", "unchanged"], "other options, another result"
    again = ("optimize", first, "--out-dir", "again", "--cache-dir", "cache", "--stats")
    assert [" nodes " in run(*again).stdout.partition(" operator ")[2] for _ in range(2)] == [True, True]
    shutil.copy(tmp_path / first, tmp_path / second)
    assert go() == ["cached", "cached"], "the name does not matter"
    for entry in (tmp_path / "cache").rglob("files/*.onnx"):
        entry.write_bytes(b"damaged")
    assert go() == ["optimized", "cached"], "the second finds what the first has made"


def test_changed_cache_entries_are_computed_again(run: Run, models: list[str], tmp_path: Path) -> None:
    go = ("optimize", *models, "--cache-dir", "cache", "--out-dir")
    assert run(*go, "one").stderr == ""
    for record in (tmp_path / "cache").glob("*/*/record"):
        record.write_text(record.read_text().replace('"code": 0', '"code": 00'))
    done = run(*go, "two", "--format", "json")
    assert statuses(done.stdout) == ["optimized", "optimized", "unchanged"]
    said = "warning: the cache cache: what is damaged, or was not made with your key, is made anew\n"
    assert (done.returncode, done.stderr) == (0, said), "once"
    done = run(*go, "three", "--format", "json", ONNXOPT_CACHE_KEY="of another build")
    assert (statuses(done.stdout)[0], done.stderr) == ("optimized", said)
    for name in ("repvgg_blocks.onnx", "residual_block.onnx"):
        assert (tmp_path / "three" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_the_cache_knows_data_and_plugins(run: Run, samples: Path, tmp_path: Path) -> None:
    for file in ("external_weights.onnx", "external_weights.data"):
        shutil.copy(samples / file, tmp_path)
    plugin = tmp_path / "plug.py"
    plugin.write_text(
        "from onnxopt import model_pass, register\n"
        "@register\n"
        "@model_pass(opt_level=1)\n"
        "def plug(model, ctx):\n"
        '    """Does nothing."""\n'
    )
    more = ("--plugin", "plug.py", "--with", "plug", "--cache-dir", "cache", "--format", "json")

    def go(*where: str) -> list[str]:
        done = run("optimize", "external_weights.onnx", *where, *more)
        assert done.returncode == 0, done.stderr
        return statuses(done.stdout)

    assert go("--out-dir", "build") == ["optimized"]
    made = {p.name: p.read_bytes() for p in (tmp_path / "build").iterdir()}
    assert [is_data_of("external_weights.onnx", name) for name in sorted(made)] == [False, True]
    assert go("--out-dir", "build") == ["current"]
    shutil.rmtree(tmp_path / "build")
    assert go("--out-dir", f"file://{tmp_path}/build") == ["cached"]
    assert {p.name: p.read_bytes() for p in (tmp_path / "build").iterdir()} == made, "nothing of the cache beside it"
    assert go("other.onnx") == ["optimized"], "the data file is called after the model"
    onnx.checker.check_model(str(tmp_path / "other.onnx"))
    plugin.write_text(plugin.read_text() + "    model.graph\n")
    assert go("--out-dir", "new") == ["optimized"], "another plugin"
    (tmp_path / "external_weights.data").write_bytes(bytes(len((samples / "external_weights.data").read_bytes())))
    assert go("--out-dir", "new") == ["optimized"], "other data"


def test_two_builds_share_a_cache(run: Run, models: list[str], tmp_path: Path) -> None:
    command = [str(SCRIPT), "optimize", *models, "--jobs", "2", "--cache-dir", "cache", "--out-dir"]
    builds = [subprocess.Popen([*command, f"build{i}"], cwd=tmp_path, stdout=subprocess.DEVNULL) for i in range(2)]
    assert [b.wait(timeout=60) for b in builds] == [0, 0]
    assert {p.name: p.read_bytes() for p in (tmp_path / "build0").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "build1").iterdir()
    }
    entries = list((tmp_path / "cache").glob("*/*"))
    assert len(entries) == 3
    assert not [p for p in entries if p.name.startswith(".")]
    third = run("optimize", *models, "--cache-dir", "cache", "--out-dir", "build2", "--format", "json")
    assert statuses(third.stdout) == ["cached", "cached", "unchanged"]


@pytest.mark.skipif(sys.platform == "win32", reason="no file is called so there")
def test_results_that_cannot_be_cached_are_not_reported_as_damaged(run: Run, samples: Path, tmp_path: Path) -> None:
    """A result whose data file has a name invalid on other systems is not cached, and not reported as damaged."""
    name = "net:v2\\x.onnx"
    shutil.copy(samples / "residual_block.onnx", tmp_path / name)
    model = onnx.load(samples / "external_weights.onnx")
    onnx.save(model, tmp_path / f"large{name}", save_as_external_data=True, location="large.data", size_threshold=0)
    found = []
    for folder in ("one", "two"):
        go = ("--out-dir", folder, "--cache-dir", "cache", "--format", "json")
        done = run("optimize", name, f"large{name}", *go)
        assert (done.returncode, done.stderr) == (0, "")
        found.append(statuses(done.stdout))
    assert found == [["optimized", "optimized"], ["cached", "optimized"]]
