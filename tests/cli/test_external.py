"""Weights beside a model: a stranger names the file they come from, never one that is written."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as rt
import pytest
from onnx import TensorProto, helper

from onnxopt.io.placing import is_data_of
from tests.cli.conftest import SCRIPT, Run

SIZE = 600


def write_model(path: Path, locations: list[str], fill: float = 1.0, size: int = SIZE, missing: bool = False) -> Path:
    """y = w0 + x, + w1, …, nothing of which can be folded; each weight is all of the file at its location."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes, weights, value = [helper.make_node("Identity", ["x"], ["v"])], [], "v"
    for i, location in enumerate(locations):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[size])
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", location), ("offset", "0"), ("length", str(4 * size))):
            tensor.external_data.add(key=key, value=text)
        weights.append(tensor)
        out = "y" if i == len(locations) - 1 else f"v{i}"
        nodes.append(helper.make_node("Add", [value, f"w{i}"], [f"a{i}"]))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [out]))
        value = out
        target = path.parent / location
        if not missing and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(np.full(size, fill, np.float32).tobytes())
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def total(path: Path) -> float:
    """What the model adds, as every reader sees it, wherever it stands."""
    session = rt.InferenceSession(path, providers=["CPUExecutionProvider"])
    result = session.run(None, {"x": np.zeros(session.get_inputs()[0].shape, np.float32)})[0]
    loaded = onnx.load(path)
    stored = sum(float(onnx.numpy_helper.to_array(t)[0]) for t in loaded.graph.initializer)
    assert float(result[0]) == stored
    return stored


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def references(path: Path) -> set[str]:
    loaded = onnx.load(path, load_external_data=False)
    return {e.value for t in loaded.graph.initializer for e in t.external_data if e.key == "location"}


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
def test_a_location_is_no_place_to_write(way: str, there: bool, run: Run, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
@pytest.mark.parametrize("way", ["optimize", "-O0", "--out-dir -O0"])
def test_what_is_no_file_holds_no_weights(way: str, kind: str, run: Run, tmp_path: Path) -> None:
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
def test_a_result_never_replaces_what_is_read(how: str, command: tuple[str, ...], run: Run, tmp_path: Path) -> None:
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


def test_nor_in_many_or_in_parts(run: Run, tmp_path: Path) -> None:
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
    reader = threading.Thread(target=lambda: taken.append((tmp_path / "pipe").read_bytes()))
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


# -- where weights go ------------------------------------------------------------------------------------


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


def test_what_protobuf_cannot_hold_is_not_tried(run: Run, tmp_path: Path) -> None:
    model = write_model(tmp_path / "in" / "m.onnx", ["w.bin"], missing=True, size=600_000_000)
    with open(model.with_name("w.bin"), "wb") as f:
        f.truncate(2_400_000_000)
    folds = ("--disable", "sum_with_zeros,neutral_tensor")  # zeros would be no terms
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


def test_many_files_and_few_descriptors(tmp_path: Path) -> None:
    count = 1500
    write_model(tmp_path / "in" / "m.onnx", [f"d/w{i}" for i in range(count)], size=300)
    for more in (["copy", "--no-verify"], ["reuse"], ["inline"]):
        done = subprocess.run(
            [SCRIPT, "optimize", "in/m.onnx", "out.onnx", "--external", *more],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert total(tmp_path / "out.onnx") == count


# -- together, or not at all -----------------------------------------------------------------------------


def test_model_and_data_change_together(tmp_path: Path) -> None:
    """Two writers take turns, and are killed at any moment; a reader never finds a mixture."""
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
        """What a reader finds; it opens the model, then the data: gone means that a writer was faster."""
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


def references_of(model: onnx.ModelProto) -> set[str]:
    return {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}


@pytest.mark.parametrize("at", ["data", "model", "removal"])
def test_killed_between_two_renames(at: str, tmp_path: Path) -> None:
    """At each step of putting a result in place."""
    for fill in (1.0, 2.0):
        write_model(tmp_path / f"in{fill}" / "m.onnx", ["w.bin"], fill=fill)
    kill = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from onnxopt.io import load, save, placing\n"
        "steps = {'data': ('replace', 1), 'model': ('replace', 2), 'removal': ('_remove', 1)}\n"
        "name, left = steps[sys.argv[2]]\n"
        "place = os if name == 'replace' else placing\n"
        "done = getattr(place, name)\n"
        "def step(*args):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    done(*args)\n"
        "if len(sys.argv) > 3: setattr(place, name, step)\n"
        "save(load(sys.argv[1]), 'out.onnx')\n"
    )

    def go(*args: str) -> int:
        return subprocess.run(
            [Path(SCRIPT).with_name("python"), "-c", kill, *args], cwd=tmp_path, check=False
        ).returncode

    assert go("in1.0/m.onnx", at) == 0
    assert go("in2.0/m.onnx", at, "die") == -signal.SIGKILL
    assert total(tmp_path / "out.onnx") == (2 if at == "removal" else 1)
    (tmp_path / ".out.onnx.stranger.tmp").mkdir()
    assert len(list(tmp_path.glob(".out.onnx.*.tmp"))) == 2
    assert go("in1.0/m.onnx", at) == 0
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


def test_nor_do_dumps_and_pages(run: Run, tmp_path: Path) -> None:
    """What goes into the folder of the model is not what it reads, whatever that is called."""
    model = write_model(tmp_path / "m.onnx", ["001-elim-identity.onnx", "page.html"])
    dumped = run("optimize", model, "out.onnx", "--pipeline", "elim-identity", "--dump-dir", ".")
    assert (dumped.returncode, "is a data file of the input" in dumped.stderr) == (2, True), dumped.stderr
    page = run("report", model, model, "-o", "page.html")
    assert (page.returncode, "is a data file of the input" in page.stderr) == (2, True)
    assert total(model) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["001-elim-identity.onnx", "m.onnx", "page.html"]


def test_what_a_killed_build_left_is_cleared(run: Run, samples: Path, tmp_path: Path) -> None:
    """Of whatever kind of run, by whatever kind; but nothing that is not known to be ours, or that somebody holds."""
    import fcntl

    build = tmp_path / "build"
    for name in (".onnxopt.abcdefgh.tmp", ".residual_block.onnx.abcdefgh.tmp", ".onnxopt.held0000.tmp"):
        (build / name / "half").mkdir(parents=True)
        (build / name / "onnxopt.owner").touch()
    for name in (".onnxopt.12345678.tmp", ".other.onnx.abcdefgh.tmp", "onnxopt.abcdefgh.tmp"):
        (build / name).mkdir()
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
