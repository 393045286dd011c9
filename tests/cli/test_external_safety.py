"""External weights: a stranger's model names files to read, never a file to write."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from onnxopt.io.staging import is_data_of
from tests.cli.conftest import Run, snapshot
from tests.cli.weights import ELSEWHERE_ON_WINDOWS, SIZE, references, total, write_model

WAYS = {
    "optimize": ("optimize", "MODEL", "here/out.onnx"),
    "-O0": ("optimize", "MODEL", "here/out.onnx", "-O0"),
    "-O0 --no-verify": ("optimize", "MODEL", "here/out.onnx", "-O0", "--no-verify"),
    "--out-dir": ("optimize", "MODEL", "--out-dir", "here"),
    "--out-dir -O0": ("optimize", "MODEL", "--out-dir", "here", "-O0"),
    "extract": ("extract", "MODEL", "here/out.onnx", "--outputs", "y"),
    "--dump-dir": ("optimize", "MODEL", "here/out.onnx", "--dump-dir", "here"),
    "--out-dir of parts": ("partition", "MODEL", "--ops", "Add", "--out-dir", "here"),
    "--fuse": ("partition", "MODEL", "--ops", "Add", "--fuse", "here/out.onnx"),
}
STRANGE = ["Makefile", ".github/workflows/ci.yml", "conftest.py", "out.onnx.data"]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_location_is_never_written_to(way: str, there: bool, run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "up" / "m.onnx", STRANGE)
    here = tmp_path / "here"
    here.mkdir()
    (here / "README").write_text("ours")
    for location in STRANGE if there else []:
        (here / location).parent.mkdir(parents=True, exist_ok=True)
        (here / location).write_text("ours")
    before = snapshot(tmp_path)
    done = run(*("up/m.onnx" if a == "MODEL" else a for a in WAYS[way]))
    assert done.returncode == 0, done.stderr
    after = snapshot(tmp_path)
    assert {name: after[name] for name in before} == before
    assert {(here / location).exists() for location in STRANGE} == {there}
    assert there or not any(p.is_dir() for p in here.iterdir())
    for made in here.glob("*.onnx"):
        assert all(is_data_of(made.name, name) for name in references(made))
        if made.name in ("out.onnx", "m.onnx"):
            assert total(made) == len(STRANGE)


ELSEWHERE = [
    *("/etc/hostname", "..", ".", "", "sub/../../up/w", "sub/../w", "link", "circle", "a\0b", "x" * 5000),
]


@pytest.mark.parametrize(
    ("way", "location"),
    [
        *(("-O0 --no-verify", location) for location in ELSEWHERE),
        *((way, "../up/w") for way in ("optimize", "-O0", "--out-dir -O0", "extract", "--out-dir of parts")),
    ],
)
def test_data_elsewhere_is_refused(way: str, location: str, run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "in" / "m.onnx", [location], missing=True)
    for name in ("up", "here", "in/sub"):
        (tmp_path / name).mkdir()
    for name in ("up/w", "in/w"):
        (tmp_path / name).write_bytes(bytes(4 * SIZE))
    os.symlink("../up/w", tmp_path / "in" / "link")
    os.symlink("circle", tmp_path / "in" / "circle")
    before = snapshot(tmp_path)
    done = run(*("in/m.onnx" if a == "MODEL" else a for a in WAYS[way]))
    assert done.returncode == 2, done.stderr
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert "outside the model's folder" in error
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "location", ["/etc/hostname", "../up/w", "circle", "pipe", "a\0b", "x" * 5000, *ELSEWHERE_ON_WINDOWS]
)
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_an_unreadable_data_file_is_named(command: str, location: str, run: Run, tmp_path: Path) -> None:
    """Commands name an unreadable data file, and do not call the model truncated."""
    write_model(tmp_path / "in" / "m.onnx", [location], missing=True)
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "w").write_bytes(bytes(4 * SIZE))
    os.symlink("circle", tmp_path / "in" / "circle")
    os.mkfifo(tmp_path / "in" / "pipe")
    if location in ELSEWHERE_ON_WINDOWS and "/" not in location:
        (tmp_path / "in" / location).write_bytes(bytes(4 * SIZE))
    done = run(command, "in/m.onnx", "in/m.onnx")
    assert done.returncode == 2, done.stderr
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: in/m.onnx: the data of `w0` ")
    assert ("not a regular file" if location == "pipe" else "outside the model's folder") in error
    assert hint.startswith("hint: plain files")


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
@pytest.mark.parametrize("way", ["optimize", "-O0", "--out-dir -O0"])
def test_weights_in_special_files_are_refused(way: str, kind: str, run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "in" / "m.onnx", ["w"], missing=True)
    (tmp_path / "here").mkdir()
    if kind == "fifo":
        os.mkfifo(tmp_path / "in" / "w")
    elif kind == "folder":
        (tmp_path / "in" / "w").mkdir()
    else:
        os.symlink("/dev/zero", tmp_path / "in" / "w")
    done = run(*("in/m.onnx" if a == "MODEL" else a for a in WAYS[way]))
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert "not a regular file" in done.stderr or "outside the model's folder" in done.stderr
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("how", ["same", "hard link", "symlink", "spelling", "model"])
@pytest.mark.parametrize("command", [("optimize", "-O0"), ("extract", "--outputs", "y")])
def test_a_result_never_replaces_a_data_file_of_the_input(
    how: str, command: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "in" / "m.onnx", ["w.bin"])
    (tmp_path / "x").mkdir()
    out = {"same": "in/w.bin", "spelling": "./x/../in/w.bin", "model": "x/m"}.get(how, "x/w")
    if how == "hard link":
        os.link(tmp_path / "in" / "w.bin", tmp_path / "x" / "w")
    elif how == "symlink":
        os.symlink("../in/w.bin", tmp_path / "x" / "w")
    elif how == "model":
        os.link(model, tmp_path / "x" / "m")
    before = snapshot(tmp_path)
    done = run(command[0], "in/m.onnx", out, *command[1:])
    assert done.returncode == 2
    assert "is a data file of the input" in done.stderr or "is the input itself" in done.stderr
    assert snapshot(tmp_path) == before


def test_a_data_file_of_the_input_is_not_removed_as_old_data(run: Run, samples: Path, tmp_path: Path) -> None:
    data = "out.onnx.0123456789ab.data"
    write_model(tmp_path / "in" / "out.onnx", [data])
    shutil.copy(samples / "residual_block.onnx", tmp_path / "in" / data)
    before = snapshot(tmp_path)
    done = run("optimize", f"in/{data}", "in/out.onnx", "--no-verify")
    assert (done.returncode, "is called as data of in/out.onnx is" in done.stderr) == (2, True)
    assert snapshot(tmp_path) == before


def test_locations_are_never_written_to_in_batches_and_parts(run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "in" / "sub" / "m.onnx", ["part_000.onnx", "partition.json"])
    shutil.move(tmp_path / "in" / "sub" / "part_000.onnx", tmp_path / "in" / "m.onnx")
    os.symlink("../m.onnx", tmp_path / "in" / "sub" / "part_000.onnx")
    before = snapshot(tmp_path)
    for command in (("--out-dir", "in/sub"), ("--out-dir", "in"), ("--in-place",)):
        assert run("optimize", "in/sub/m.onnx", *command).returncode == 2
    (tmp_path / "in" / "sub" / "part_000.onnx").unlink()
    shutil.copy(tmp_path / "in" / "m.onnx", tmp_path / "in" / "sub" / "part_000.onnx")
    done = run("partition", "in/sub/m.onnx", "--ops", "Add", "--out-dir", "in/sub")
    assert (done.returncode, "is a data file of the input" in done.stderr) == (2, True)
    assert snapshot(tmp_path) == before


def test_devices_and_pipes_are_written_to(run: Run, samples: Path, tmp_path: Path) -> None:
    model = samples / "residual_block.onnx"
    assert run("optimize", model, "/dev/null").returncode == 0
    full = run("optimize", model, "/dev/full")
    assert full.returncode == 2
    assert full.stderr.splitlines()[0] == "error: cannot write /dev/full: No space left on device"
    for device in ("/dev/null", "/dev/full"):
        assert Path(device).is_char_device()
    os.mkfifo(tmp_path / "pipe")
    taken: list[bytes] = []
    reader = threading.Thread(target=lambda: taken.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    assert run("optimize", model, "pipe").returncode == 0
    reader.join(timeout=60)
    assert run("optimize", model, "out.onnx").returncode == 0
    assert taken == [(tmp_path / "out.onnx").read_bytes()]
    assert (tmp_path / "pipe").is_fifo()
    write_model(tmp_path / "in" / "m.onnx", ["w.bin"])
    done = run("optimize", "in/m.onnx", "/dev/null")
    assert (done.returncode, "--external inline" in done.stderr) == (2, True)
    assert run("optimize", "in/m.onnx", "/dev/null", "--external", "inline").returncode == 0
    (tmp_path / "here").mkdir()
    os.mkfifo(tmp_path / "here" / "m.onnx")
    done = run("optimize", "in/m.onnx", "--out-dir", "here")
    assert (done.returncode, "is not a file, and is not replaced" in done.stderr) == (2, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "in", "out.onnx", "pipe"]


def test_dumps_pages_and_reports_never_replace_a_data_file(run: Run, tmp_path: Path) -> None:
    """Dumps, pages and reports never replace a data file of the input, whatever its name."""
    model = write_model(tmp_path / "m.onnx", ["001-elim-identity.onnx", "page.json"])
    dumped = run("optimize", model, "out.onnx", "--pipeline", "elim-identity", "--dump-dir", ".")
    assert (dumped.returncode, "is a data file of the input" in dumped.stderr) == (2, True), dumped.stderr
    page = run("report", model, model, "-o", "page.json")
    assert (page.returncode, "is a data file of the input" in page.stderr) == (2, True)
    for option in ("--report", "--journal", "--junit"):
        said = run("optimize", "m.onnx", "out.onnx", option, "page.json")
        assert (said.returncode, "is a data file of the input" in said.stderr) == (2, True), said.stderr
        many = run("optimize", "m.onnx", "--out-dir", "d", option, "page.json")
        assert (many.returncode, "is a data file of the input" in many.stderr) == (2, True), many.stderr
    found = run("bisect", "m.onnx", "-o", "page.json")
    assert (found.returncode, "is a data file of the input" in found.stderr) == (2, True), found.stderr
    assert total(model) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["001-elim-identity.onnx", "m.onnx", "page.json"]
