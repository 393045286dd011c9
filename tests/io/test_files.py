"""Unreadable files, external data elsewhere, results that cannot be written."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as rt
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxopt.errors import ModelError, OnnxOptError, WriteError
from onnxopt.io import load, save, staging
from onnxopt.io.staging import is_data_of
from tests.cli.weights import ELSEWHERE_ON_WINDOWS


def linear(tensors: int = 1, external: str | None = None, size: int = 600) -> onnx.ModelProto:
    """y = x + w0 + w1 + …"""
    nodes, weights, value = [], [], "x"
    for i in range(tensors):
        weights.append(numpy_helper.from_array(np.full(size, i + 1, np.float32), f"w{i}"))
        out = "y" if i == tensors - 1 else f"v{i}"
        nodes.append(helper.make_node("Add", [value, f"w{i}"], [out]))
        value = out
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_data(folder: Path, tensors: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(linear(tensors), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def relocate(path: Path, key: str, value: str) -> None:
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == key:
                entry.value = value
    path.write_bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        (None, "no such file", "check the path"),
        (b"", "is empty", "did not finish"),
        (b"<html>404</html>", "not an ONNX model", "download it again"),
        (linear().SerializeToString()[:-100], "truncated", "export"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "not an ONNX model", "git lfs pull"),
        (gzip.compress(linear().SerializeToString()), "not an ONNX model", "unpack it"),
        (b"\x1c\0\0\0TFL3" + bytes(200), "not an ONNX model", "tf2onnx"),
        (numpy_helper.from_array(np.zeros(2)).SerializeToString(), "not an ONNX model", "was this a tensor"),
    ],
    ids=["missing", "empty", "html", "truncated", "lfs", "gzip", "tflite", "tensor"],
)
def test_unreadable(content: bytes | None, says: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError) as e:
        load(path)
    assert says in e.value.message
    assert "bad.onnx" in e.value.message
    assert hint in e.value.hint
    assert "\n" not in e.value.message


def test_a_directory_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("y = Relu (z)", "reads `z`, which nothing defines"),
        ("y = Relu (x) y = Neg (x)", "`y` is defined twice"),
        ("a = Relu (b) b = Relu (a) y = Relu (x)", "is part of a cycle"),
    ],
)
def test_a_graph_that_contradicts_itself(body: str, says: str, tmp_path: Path) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {{ {body} }}'
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: main: ") as e:
        load(tmp_path / "m.onnx")
    assert says in e.value.message


@pytest.mark.parametrize("location", ["/etc/hostname", "../outside.bin", "link.bin", "", *ELSEWHERE_ON_WINDOWS])
def test_data_outside_the_folder_is_refused(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_data(tmp_path / "model")
    (tmp_path / "outside.bin").write_bytes(bytes(10_000))
    os.symlink(tmp_path / "outside.bin", path.parent / "link.bin")
    relocate(path, "location", location)
    monkeypatch.chdir(path.parent)
    if location in ELSEWHERE_ON_WINDOWS and "/" not in location:  # here a name like any other, of a file in the folder
        (path.parent / location).write_bytes(bytes(10_000))
    for name in (path, Path("model.onnx")):  # a bare file name has the same folder
        model = load(name)
        with pytest.raises(ModelError, match="outside the model's folder"):
            _ = model.graph.initializers["w0"].array


@pytest.mark.parametrize(
    ("key", "value"), [("offset", "999999"), ("length", "999999"), ("offset", "-8"), ("length", "4")]
)
def test_data_that_is_not_there_is_refused(key: str, value: str, tmp_path: Path) -> None:
    path = with_data(tmp_path)
    relocate(path, key, value)
    with pytest.raises(ModelError, match="`w0` needs 2400 bytes"):
        _ = load(path).graph.initializers["w0"].array


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("text", ["1_6", " 16 ", "+16", "\uff11\uff16", "16.0", "0x10", "9" * 5000])
def test_what_runtimes_take_for_no_number_is_none(key: str, text: str, tmp_path: Path) -> None:
    """Python reads some of it as one."""
    path = with_data(tmp_path)
    relocate(path, key, text)
    with pytest.raises(ModelError, match=rf"^model\.onnx: tensor `w0`: external {key} .* is not a number"):
        _ = load(path).graph.initializers["w0"].array


@pytest.mark.parametrize(
    ("kind", "dims", "says"),
    [
        (onnx.TensorProto.STRING, [4], "of strings"),
        (onnx.TensorProto.INT4, [-1], r"of shape \[-1\]"),
        (onnx.TensorProto.FLOAT, [-2, -2], r"of shape \[-2, -2\]"),
    ],
)
def test_what_cannot_be_stored_is_not_read(kind: int, dims: list[int], says: str, tmp_path: Path) -> None:
    path = with_data(tmp_path)
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[0]
    tensor.data_type, tensor.dims[:] = kind, dims
    tensor.name = "odd"
    model.graph.node.add(op_type="Custom", domain="c", input=["odd"], output=["z"])
    model.graph.initializer.add().CopyFrom(onnx.numpy_helper.from_array(np.zeros(600, np.float32), "w0"))
    model.opset_import.add(domain="c", version=1)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=f"`odd` {says} cannot have external data"):
        _ = load(path).graph.initializers["odd"].array
    with pytest.raises(ModelError, match=f"`odd` {says} cannot have external data"):
        save(load(path), tmp_path / "sub.onnx", "copy")
    assert not (tmp_path / "sub.onnx").exists()


def test_data_is_read_when_asked_for(tmp_path: Path) -> None:
    path = with_data(tmp_path)
    (tmp_path / "weights.bin").unlink()
    model = load(path)
    with pytest.raises(ModelError, match="is missing"):
        _ = model.graph.initializers["w0"].array


def test_data_that_is_cut_off_meanwhile_is_refused(tmp_path: Path) -> None:
    """Its pages are mapped, and reading those that are gone would end the process."""
    path = with_data(tmp_path, 3)
    model = load(path)
    assert float(model.graph.initializers["w0"].array[0]) == 1
    os.truncate(tmp_path / "weights.bin", 3000)
    with pytest.raises(ModelError, match=r"`w1` needs 2400 bytes at offset .* which has 3000"):
        _ = model.graph.initializers["w1"].array


def test_data_that_is_removed_meanwhile_stays_mapped(tmp_path: Path) -> None:
    model = load(with_data(tmp_path, 3))
    assert float(model.graph.initializers["w0"].array[0]) == 1
    (tmp_path / "weights.bin").unlink()
    assert float(model.graph.initializers["w2"].array[0]) == 3


def test_a_thousand_tensors_take_one_descriptor(tmp_path: Path) -> None:
    model = load(with_data(tmp_path, 1200))
    before = len(os.listdir("/proc/self/fd"))
    total = sum(float(v.array[0]) for v in model.graph.initializers.values())
    assert total == sum(range(1, 1201))
    assert len(os.listdir("/proc/self/fd")) - before <= 1


def test_a_changed_model_takes_its_data_along(tmp_path: Path) -> None:
    model = load(with_data(tmp_path / "a", 3))
    (tmp_path / "b").mkdir()
    node = model.graph.first
    assert node is not None
    model.graph.touch(node)  # as after a rewrite
    save(model, tmp_path / "b" / "out.onnx")
    assert [is_data_of("out.onnx", f.name) for f in sorted((tmp_path / "b").iterdir())] == [False, True]
    x = np.ones(600, np.float32)
    session = rt.InferenceSession(tmp_path / "b" / "out.onnx", providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, {"x": x})[0], np.full(600, 7))
    assert float(model.graph.initializers["w2"].array[0]) == 3, "the model in memory stays usable"


def test_an_unchanged_model_is_copied_with_its_data_under_a_name_of_ours(tmp_path: Path) -> None:
    source = with_data(tmp_path / "a", 2)
    (tmp_path / "b").mkdir()
    save(load(source), tmp_path / "b" / "out.onnx")
    model, data = sorted((tmp_path / "b").iterdir())
    assert (model.name, is_data_of("out.onnx", data.name)) == ("out.onnx", True)
    again, before = onnx.load(model), onnx.load(source)
    assert again == before
    save(load(source), tmp_path / "a" / "out.onnx")
    assert (tmp_path / "a" / "out.onnx").read_bytes() == source.read_bytes(), "where its data is, nothing is to be done"


def test_which_models_stand_alone_is_known_where_it_is_soon_found(tmp_path: Path) -> None:
    """Of those of small tensors, and of those whose large ones stay in the file."""
    for size, stored, known in ((60, False, True), (600, False, False), (600_000, False, False), (600_000, True, True)):
        onnx.save(linear(3, size=size), tmp_path / "in.onnx")
        assert load(tmp_path / "in.onnx", stored=stored).stands_alone is known
    assert not load(with_data(tmp_path / "a")).stands_alone
    named = linear(3, size=60)
    named.graph.doc_string = "the location of nothing"
    onnx.save(named, tmp_path / "in.onnx")
    assert not load(tmp_path / "in.onnx").stands_alone, "who uses the word is looked at"


@pytest.mark.parametrize("size", [60, 600], ids=["alone", "not known"])
def test_what_protobuf_cannot_hold_goes_beside_the_model(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(linear(3, size=size), tmp_path / "in.onnx")
    model = load(tmp_path / "in.onnx")
    assert model.stands_alone is (size == 60)
    assert model.graph.first is not None
    model.graph.touch(model.graph.first)
    monkeypatch.setattr(sys.modules["onnxopt.io.layout"], "INLINE_LIMIT", 8 * size)
    monkeypatch.setattr(sys.modules["onnxopt.proto.messages"], "INLINE_BELOW", 4 * size)
    save(model, tmp_path / "out.onnx")
    (data,) = tmp_path.glob("out.onnx.*.data")
    assert data.stat().st_size >= 12 * size
    again = onnx.load(tmp_path / "out.onnx").graph.initializer
    assert [numpy_helper.to_array(t)[0] for t in again] == [1, 2, 3]
    assert float(model.graph.initializers["w2"].array[0]) == 3, "the model in memory stays usable"
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A real limit on the size of files, in a process of its own."""
    onnx.save(linear(50), tmp_path / "in.onnx")
    (tmp_path / "out.onnx").write_bytes(b"before")
    code = (
        "import signal, sys; from onnxopt.io import load, save; from onnxopt.errors import WriteError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "model = load('in.onnx'); model.graph.touch(model.graph.first)\n"
        "try: save(model, 'out.onnx')\n"
        "except WriteError as e: print(e.message); sys.exit(e.exit_code)\n"
    )
    limit = (20_000, 20_000)
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        check=False,
    )
    assert run.returncode == 2, run.stderr
    assert "cannot write out.onnx" in run.stdout
    assert sorted(f.name for f in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]
    assert (tmp_path / "out.onnx").read_bytes() == b"before"


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    onnx.save(linear(), tmp_path / "in.onnx")
    model = load(tmp_path / "in.onnx")
    with pytest.raises(WriteError, match="is a directory"):
        save(model, tmp_path)
    with pytest.raises(OnnxOptError) as e:
        save(model, tmp_path / "nowhere" / "out.onnx")
    assert e.value.hint == "create the folder first"


def test_mode_and_link_of_an_existing_destination_are_kept(tmp_path: Path) -> None:
    onnx.save(linear(), tmp_path / "in.onnx")
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "out.onnx"
    target.write_bytes(b"old")
    target.chmod(0o640)
    os.symlink(target, tmp_path / "out.onnx")
    save(load(tmp_path / "in.onnx"), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").is_symlink()
    assert target.read_bytes() == (tmp_path / "in.onnx").read_bytes()
    assert target.stat().st_mode & 0o777 == 0o640


def test_what_is_just_taken_away_was_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of a batch, of which one is done while the other looks: a model in some ten thousand failed."""
    first = staging.StagingFolder(tmp_path, staging.MANY)

    def too_late(file: Path) -> bool:
        first.remove()
        return False

    monkeypatch.setattr(staging, "is_owned", too_late)
    staging.StagingFolder(tmp_path, staging.MANY).remove()
    assert not [*tmp_path.iterdir()]
