"""Inputs and expected outputs given to `onnxopt verify`: all forms, and refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.conftest import Run
from tests.cli.verify.conftest import BATCH, VECTOR, compare, statuses

ONNX_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def test_given_values_in_every_form(run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    write("b.onnx", BATCH, "{ y = Relu (x) }")
    x = np.ones((5, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "set.npz", x=-x)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "x.npy", x)
    code, found = compare(run, "--input", "x=x.npy")
    assert (code, statuses(found)) == (0, {"given": "equal"})
    assert found["cases"][0]["dims"] == {"N": 5}
    code, found = compare(run, "--inputs", "folder", "--inputs", "set.npz")
    assert (code, statuses(found)) == (1, {"folder": "equal", "set.npz": "different"})
    code, found = compare(run, "--inputs", "x=x.npy", "--cases", "random")
    assert (code, statuses(found)) == (0, {"random": "equal"})


def test_inputs_not_given_are_generated_to_fit(run: Run, write: Any, tmp_path: Path) -> None:
    signature = "(float[N, S] p, float[N, S] q) => (float[N, S] y)"
    for name in ("a.onnx", "b.onnx"):
        write(name, signature, "{ y = Add (p, q) }")
    np.save(tmp_path / "p.npy", np.ones((5, 7), np.float32))
    code, found = compare(run, "--inputs", "p=p.npy")
    assert (code, found["cases"][0]["dims"]) == (0, {"N": 5, "S": 7})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("z", np.ones((2, 4), np.float32), "the model has no input `z`"),
        ("x", np.ones((2, 4)), "input `x` takes float32, not float64"),
        ("x", np.ones((2, 5), np.float32), "input `x` takes shape [N, 4], not [2, 5]"),
    ],
)
def test_unfitting_data_is_refused(name: str, value: Any, says: str, run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    np.save(tmp_path / f"{name}.npy", value)
    r = run("verify", "a.onnx", "a.onnx", "--inputs", f"{name}={name}.npy")
    assert r.returncode == 2
    assert says in r.stderr
    assert len(r.stderr.splitlines()) == 2


def test_places_without_data_are_refused(run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    (tmp_path / "empty").mkdir()
    (tmp_path / "not.npz").write_bytes(b"nothing")
    for place, says in (("nowhere", "no such file"), ("empty", "there are no .npy"), ("not.npz", "is no .npy file")):
        r = run("verify", "a.onnx", "a.onnx", "--inputs", place)
        assert r.returncode == 2, place
        assert says in r.stderr


def test_a_hint_names_inputs_and_only_accepted_forms(run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    np.save(tmp_path / "z.npy", np.ones((2, 4), np.float32))
    for args in (("verify", "a.onnx", "a.onnx", "--inputs"), ("optimize", "a.onnx", "b.onnx", "--input")):
        r = run(*args, "z=z.npy")
        assert r.returncode == 2
        assert r.stderr == "error: z.npy: the model has no input `z`\nhint: the inputs are x\n"


def test_pickled_data_is_refused_without_numpys_advice(run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    (tmp_path / "text.npy").write_text("1 2 3 4")
    np.save(tmp_path / "objects.npy", np.array([{}]))
    np.savez(tmp_path / "objects.npz", x=np.array([{}]))
    for place, says in (
        ("x=text.npy", "text.npy is no .npy file"),
        ("x=objects.npy", "objects.npy holds Python objects, which are not read"),
        ("objects.npz", "objects.npz holds Python objects, which are not read"),
    ):
        r = run("verify", "a.onnx", "a.onnx", "--inputs", place)
        assert r.returncode == 2
        assert r.stderr.startswith(f"error: {says}")
        assert "pickle" not in r.stderr


def test_damaged_archives_are_refused(run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    np.savez_compressed(tmp_path / "good.npz", x=np.ones((2, 4), np.float32))
    good = (tmp_path / "good.npz").read_bytes()
    at = good.index(b"x.npy") + 20
    for data in (good[:4] + bytes(200), good[:at] + bytes(30) + good[at + 30 :], good[:-10]):
        (tmp_path / "bad.npz").write_bytes(data)
        r = run("verify", "a.onnx", "a.onnx", "--inputs", "bad.npz")
        assert r.returncode == 2, r.stderr
        assert r.stderr.startswith("error: bad.npz cannot be read: ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
@pytest.mark.parametrize("name", ["x.npy", "input_0.pb"])
def test_a_named_pipe_is_refused(name: str, run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / name)
    r = run("verify", "a.onnx", "a.onnx", "--inputs", "data")
    assert r.returncode == 2
    assert f"{name} is no plain file" in r.stderr


@pytest.mark.parametrize(
    "model",
    ["simple/test_expand_shape_model1", "simple/test_sequence_model4", "pytorch-converted/test_Conv2d_padding"],
)
def test_the_data_of_onnx_itself(model: str, run: Run) -> None:
    folder = ONNX_DATA / model
    r = run("verify", folder / "model.onnx", folder / "model.onnx", "--inputs", folder, "--format", "json")
    assert r.returncode == 0, r.stdout + r.stderr
    (case,) = json.loads(r.stdout)["cases"]
    assert case["name"] == "test_data_set_0"
    assert [o["against"] for o in case["outputs"]][:3] == ["", "A and file", "B and file"]


def test_expected_outputs_are_compared_with_both_models(run: Run, write: Any, tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        write(name, VECTOR, "{ y = Abs (x) }")
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    x = np.array([-1, 2, -3, 4], np.float32)
    (folder / "input_0.pb").write_bytes(numpy_helper.from_array(x, "x").SerializeToString())
    (folder / "output_0.pb").write_bytes(numpy_helper.from_array(x, "y").SerializeToString())
    r = run("verify", "a.onnx", "b.onnx", "--inputs", folder)
    assert r.returncode == 1
    lines = r.stdout.splitlines()
    assert lines[0].endswith(": ok")
    assert lines[1].startswith("test_data_set_0: y [A and file] float32[4] max abs 6")
    assert lines[2].startswith("test_data_set_0: y [B and file] float32[4] max abs 6")


def test_sequences_and_optionals_are_read_by_the_types_of_the_graph(run: Run, tmp_path: Path) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [None])
    sequence, optional = helper.make_sequence_type_proto(tensor), helper.make_optional_type_proto(tensor)
    nodes = [
        helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0),
        helper.make_node("OptionalGetElement", ["o"], ["e"]),
        helper.make_node("Add", ["c", "e"], ["y"]),
    ]
    inputs = [helper.make_value_info("s", sequence), helper.make_value_info("o", optional)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(model, tmp_path / "b.onnx")
    values = [np.array([1, 2], np.float32), np.array([3], np.float32)]
    files = {
        "input_0": numpy_helper.from_list(values, "s"),
        "input_1": numpy_helper.from_optional(np.array([10, 20, 30], np.float32), "o"),
        "output_0": numpy_helper.from_array(np.array([11, 22, 33], np.float32), "y"),
    }
    for name, proto in files.items():
        (tmp_path / f"{name}.pb").write_bytes(proto.SerializeToString())
    code, found = compare(run, "--inputs", ".")
    assert code == 0, found
    assert [o["max_abs"] for o in found["cases"][0]["outputs"]] == [0, 0, 0]
