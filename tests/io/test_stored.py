"""Weights that stay in the file: invisible to users, and the result has the same bytes."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxopt import optimize_file
from onnxopt.analysis.submodel import submodel
from onnxopt.cli.main import cli
from onnxopt.errors import ModelError, UsageError
from onnxopt.graph import Model, write_model
from onnxopt.graph.writer import write_deferred
from onnxopt.io import load, save
from onnxopt.optimizer import OptimizeOptions
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, execute, parse_pipeline
from onnxopt.pipeline.reproducer import _zero
from onnxopt.proto.wire import GRAPH, key, skim, varint

WIDTH = 512  # a weight of a mebibyte


def weights(count: int = 3, width: int = WIDTH) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((width, width), dtype=np.float32) for _ in range(count)]


def model(count: int = 3, doc: str = "", width: int = WIDTH) -> ModelProto:
    """y = Abs(x) W0 W1 …, between Identities"""
    nodes, tensors = [], []
    for i, w in enumerate(weights(count, width)):
        tensors.append(numpy_helper.from_array(w, f"w{i}"))
        tensors[-1].doc_string = doc
        nodes.append(helper.make_node("MatMul", [f"a{i}", f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Identity", [f"m{i}"], [f"a{i + 1}"]))
    tensors.append(numpy_helper.from_array(np.array([0, -1], np.int64), "target"))
    nodes = [
        helper.make_node("Abs", ["x"], ["a0"]),
        *nodes,
        helper.make_node("Reshape", [f"a{count}", "target"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", None])
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    onnx.save(model(), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def stored(model: Model) -> dict[str, int]:
    return {name: len(v.stored) for name, v in model.graph.initializers.items() if v.stored is not None}


def test_large_ones_stay_and_small_ones_do_not(file: Path) -> None:
    light = load(file, stored=True)
    assert stored(light) == dict.fromkeys(["w0", "w1", "w2"], 4 * WIDTH**2)
    assert all(not t.raw_data for t in light.proto.graph.initializer if t.name != "target")
    assert light.proto.ByteSize() < 2000
    assert stored(load(file)) == {}


def test_they_hold_what_they_held(file: Path) -> None:
    light = load(file, stored=True)
    for value, expected in zip(light.graph.initializers.values(), weights()):
        assert value.constant_type() == (TensorProto.FLOAT, expected.shape)
        assert np.array_equal(value.glance(), expected) and np.array_equal(value.array, expected)
        assert value.array.flags.aligned and not value.array.flags.writeable
        assert value.whole_tensor().raw_data == expected.tobytes()
    digests = [[v.digest() for v in m.graph.initializers.values()] for m in (light, load(file))]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_numbers_that_numpy_does_not_have(dtype: Any, tmp_path: Path) -> None:
    proto, held = model(1, width=1024), weights(1, 1024)[0].astype(dtype)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(held, "w0"))
    onnx.save(proto, tmp_path / "in.onnx")
    light = load(tmp_path / "in.onnx", stored=True)
    assert stored(light) == {"w0": held.nbytes} and light.file is not None
    value = light.graph.initializers["w0"]
    assert np.shares_memory(value.glance().view(np.uint8), np.frombuffer(light.file.view, np.uint8)), "it was copied"
    assert value.array.dtype == held.dtype and value.array.tobytes() == held.tobytes()
    assert not value.array.flags.writeable and value.array.flags.aligned


@pytest.mark.parametrize("doc", ["", "behind the data in the file"])
def test_the_result_has_the_bytes_that_it_would_have(doc: str, tmp_path: Path) -> None:
    onnx.save(model(doc=doc), tmp_path / "in.onnx")
    passes = parse_pipeline("elim-identity,constant-folding,dead-code")
    written = []
    for light in (True, False):
        found = load(tmp_path / "in.onnx", stored=light)
        execute(passes, found, PassContext())
        assert len(found.graph) == 4
        save(found, tmp_path / "out.onnx")
        written.append((tmp_path / "out.onnx").read_bytes())
        assert write_model(found).SerializeToString() == written[-1]
        assert stored(found) == {}  # they are in the proto now
        save(found, tmp_path / "again.onnx")
        assert (tmp_path / "again.onnx").read_bytes() == written[-1]
    assert written[0] == written[1] == onnx.load(tmp_path / "out.onnx").SerializeToString()


@pytest.mark.parametrize("external", ["auto", "copy", "inline", "reuse"])
def test_beside_external_data(external: str, tmp_path: Path) -> None:
    proto = model()
    written = proto.graph.initializer[1]
    (tmp_path / "w.bin").write_bytes(written.raw_data)
    written.ClearField("raw_data")
    written.data_location = TensorProto.EXTERNAL
    written.external_data.add(key="location", value="w.bin")
    onnx.save(proto, tmp_path / "in.onnx")
    found = []
    for light in (True, False):
        read = load(tmp_path / "in.onnx", stored=light)
        assert len(stored(read)) == (2 if light else 0)
        execute(parse_pipeline("elim-identity"), read, PassContext())
        save(read, tmp_path / "out.onnx", external)
        found.append((tmp_path / "out.onnx").read_bytes())
        both = onnx.load(tmp_path / "out.onnx")
        assert all(np.array_equal(numpy_helper.to_array(t), w) for t, w in zip(both.graph.initializer, weights()))
    assert found[0] == found[1]


def test_what_outgrows_protobuf_gets_a_data_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxopt.io.layout.INLINE_LIMIT", 10_000)
    read = load(file, stored=True)
    execute(parse_pipeline("elim-identity"), read, PassContext())
    save(read, file.parent / "out.onnx")
    assert (file.parent / "out.onnx").stat().st_size < 2000
    both = onnx.load(file.parent / "out.onnx")
    assert all(np.array_equal(numpy_helper.to_array(t), w) for t, w in zip(both.graph.initializer, weights()))


def test_a_part_of_the_model_has_them(file: Path) -> None:
    read = load(file, stored=True)
    part = submodel(read.graph, [n for n in read.graph if n.op == "MatMul"][:1])
    assert np.array_equal(numpy_helper.to_array(part.graph.initializer[0]), weights()[0])


def test_a_reproducer_keeps_none_of_them(file: Path) -> None:
    read = load(file, stored=True)
    _zero(read)
    assert not any(numpy_helper.to_array(t).any() for t in write_model(read).graph.initializer if t.name != "target")


def test_weights_that_callers_may_change_are_tried_with_others(tmp_path: Path) -> None:
    proto = model()
    proto.graph.input.append(helper.make_tensor_value_info("w1", TensorProto.FLOAT, [WIDTH, WIDTH]))
    onnx.save(proto, tmp_path / "in.onnx")
    report = optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert report.verification is not None and any("overridable" in c.name for c in report.verification.cases)


class Rewritten(ModelPass):
    """Somebody else writes to the model while passes run."""

    info = PassInfo("rewritten")
    change: Callable[[Path], object]

    def run(self, model: Model, ctx: PassContext) -> None:
        assert model.path is not None
        type(self).change(model.path)
        model.version += 1


@pytest.mark.parametrize(
    "change",
    [
        lambda path: onnx.save(model(doc="another"), path),
        lambda path: (onnx.save(model(), path.with_suffix(".new")), path.with_suffix(".new").replace(path)),
        lambda path: path.unlink(),
    ],
    ids=["written to", "replaced", "gone"],
)
def test_a_file_that_changed_meanwhile_is_not_written_from(change: Callable[[Path], object], file: Path) -> None:
    read = load(file, stored=True)
    Rewritten.change = staticmethod(change)
    Rewritten().run(read, PassContext())
    with pytest.raises(ModelError, match="changed while it was being optimized") as e:
        save(read, file.parent / "out.onnx")
    assert e.value.hint == "run again when it is complete"
    assert not [p for p in file.parent.iterdir() if p.name.startswith((".", "out"))]


def test_models_whose_functions_are_put_in_place_are_read_whole(file: Path) -> None:
    assert len(stored(OptimizeOptions(target_opset=18).load(file, stored=True))) == 3, "a newer opset needs no weights"
    proto = model()
    proto.functions.append(
        helper.make_function("local", "F", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], [])
    )
    proto.functions[0].opset_import.add(domain="", version=17)
    proto.opset_import.add(domain="local", version=1)
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "F", "local"
    onnx.save(proto, file.with_name("called.onnx"))
    inlined = OptimizeOptions(inline_functions=True).load(file.with_name("called.onnx"), stored=True)
    assert stored(inlined) == {} and inlined.graph.initializers["w1"].array.any() and not inlined.functions
    assert len(stored(OptimizeOptions(inline_functions=True).load(file, stored=True))) == 3
    assert len(stored(OptimizeOptions().load(file, stored=True))) == 3


# -- the file without its weights ---------------------------------------------------------------------------


def again(data: bytes, light: bytes, places: dict[int, tuple[int, int]]) -> ModelProto:
    proto = ModelProto.FromString(light)
    for i, (start, length) in places.items():
        proto.graph.initializer[i].raw_data = data[start : start + length]
    return proto


def test_what_is_left_out_is_all_that_is_missing() -> None:
    proto = model(doc="behind")
    data = proto.SerializeToString()
    light, places = skim(memoryview(data), 1 << 10, 1 << 20)
    assert list(places) == [0, 1, 2] and len(light) < 2000
    assert again(data, light, places) == proto


def test_a_graph_in_several_fields_is_one_graph() -> None:
    """Readers of protobuf merge them: initializers of the second come behind those of the first."""
    proto = model()
    more = onnx.GraphProto()
    more.initializer.append(numpy_helper.from_array(weights()[2], "more"))
    field = more.SerializeToString()
    data = proto.SerializeToString() + bytes([key(GRAPH)]) + varint(len(field)) + field
    light, places = skim(memoryview(data), 1 << 10, 1 << 20)
    assert list(places) == [0, 1, 2, 4]
    assert again(data, light, places) == ModelProto.FromString(data)


def test_of_many_fields_none_is_left_out() -> None:
    data = model().SerializeToString()
    for most in range(12):
        light, places = skim(memoryview(data), 1 << 10, most)
        assert (light == data, places) == (True, {}) if most < 12 else len(places) == 3


def test_a_tensor_of_many_fields_is_left_whole() -> None:
    """Numbers one by one, which nobody writes, are not looked through one by one."""
    proto = model()
    data = proto.SerializeToString()
    light, places = skim(memoryview(data + _more_dims(300)), 1 << 10, 1 << 20)
    assert list(places) == [0, 1, 2]
    assert again(data, light, places).graph.initializer[4].dims[:] == [1] * 300


def _more_dims(count: int) -> bytes:
    """One more graph, whose initializer has so many dims, each a field, and some bytes."""
    tensor = b"\x08\x01" * count + TensorProto(raw_data=b"0" * 5000).SerializeToString()
    graph = bytes([key(5)]) + varint(len(tensor)) + tensor
    return bytes([key(GRAPH)]) + varint(len(graph)) + graph


def test_what_is_no_message_is_said_to_be_none(tmp_path: Path) -> None:
    data = model().SerializeToString()
    cut = tmp_path / "cut.onnx"
    for size in itertools.chain(range(len(data) - 4, len(data)), [len(data) // 2, 1 << 20]):
        cut.write_bytes(data[:size])
        with pytest.raises(ModelError):
            load(cut, stored=True)


def test_nothing_is_left_for_a_later_writer_to_forget(file: Path) -> None:
    read = load(file, stored=True)
    proto, deferred = write_deferred(read, 1 << 10)
    assert sorted(deferred) == [0, 1, 2]
    assert write_model(read) == model() and write_deferred(read, 1 << 10)[1] == {}
    assert proto is read.proto


def test_commands_leave_them_there(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What partitions, looks for a fault, or names files of data reads no weights."""
    monkeypatch.chdir(tmp_path)
    optimize_file(file, tmp_path / "out.onnx", level=1)
    whole: list[Path] = []
    monkeypatch.setattr(sys.modules[load.__module__], "_parse", whole.append)
    for command in (
        ("partition", str(file), "--ops", "MatMul", "--out-dir", "parts"),
        ("partition", str(file), "--ops", "MatMul", "--fuse", "fused.onnx"),
        ("report", str(file), "out.onnx", "-o", "page.html", "--no-verify"),
    ):
        (tmp_path / "page.html").write_text("another")
        cli(list(command), standalone_mode=False)
    with pytest.raises(UsageError, match="does not differ"):
        cli(["bisect", str(file)], standalone_mode=False)
    assert whole == []


def test_a_weight_read_in_a_single_body_moves_there_with_its_data(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 128] x, bool c) => (float[N, 128] y) {
        y = If (c) <then_branch = a () => (float[N, 128] p) {
            q = MatMul (x, w0)
            p = Add (q, w1)
        }, else_branch = b () => (float[N, 128] r) { r = Neg (x) }>
    }"""
    proto = onnx.parser.parse_model(text)
    arrays = weights(1, 128)[0], np.zeros((1, 128), np.float32), weights(1, 256)[0], weights(1)[0]
    proto.graph.initializer.extend(numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(arrays))
    proto.graph.node.extend(helper.make_node("MatMul", [f"w{i}", f"w{i}"], [f"z{i}"]) for i in (2, 3))
    proto.graph.output.extend(helper.make_tensor_value_info(f"z{i}", TensorProto.FLOAT, None) for i in (2, 3))
    onnx.save(proto, tmp_path / "in.onnx")
    optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", pipeline="deduplicate-constants", strict=True)
    body = onnx.load(tmp_path / "out.onnx").graph.node[0].attribute
    moved = {t.name: numpy_helper.to_array(t) for a in body for t in a.g.initializer}
    assert moved.keys() == {"w0", "w1"}
    np.testing.assert_array_equal(moved["w0"], arrays[0])
