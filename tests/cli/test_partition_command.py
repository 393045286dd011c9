"""`onnxopt partition`: output, files, checks, refusals."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import parser

from onnxopt import verification
from onnxopt.cli.partition import partition
from onnxopt.errors import UsageError, VerificationError, WriteError
from onnxopt.graph import check_model, read_model
from onnxopt.verification import Verifier
from tests.runtime import outputs

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}>
    { a = Mul(x, w) b = Relu(a) c = Sigmoid(b) d = Add(b, c) e = Mul(d, w) y = Tanh(e) }
"""
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return path


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(partition, [str(a) for a in args])


def test_plain_lines_list_the_parts(source: Path, tmp_path: Path) -> None:
    r = run(source, "--ops", "Mul,Relu", "--ops", "Add")
    assert r.exit_code == 0, r.output
    assert r.output.splitlines() == [
        "part_000  supported  2 nodes: Mul, Relu; x -> b",
        "part_001  rest  1 node: Sigmoid; b -> c",
        "part_002  supported  2 nodes: Add, Mul; b, c -> e",
        "part_003  rest  1 node: Tanh; e -> y",
        "2 supported of 4 parts, 4 of 6 nodes",
    ]
    assert [f.name for f in tmp_path.iterdir()] == ["model.onnx"]


def test_parts_are_written_and_run_in_order(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    for _ in range(2):  # the second run replaces the files of the first
        r = run(source, "--ops", "Mul,Relu,Add", "--out-dir", folder)
        assert r.exit_code == 0, r.output
        assert "checked: bit for bit the same, 4 cases" in r.output
    index = json.loads((folder / "partition.json").read_text())
    assert [p["file"] for p in index["parts"]] == [f"part_00{i}.onnx" for i in range(4)]
    assert [p["supported"] for p in index["parts"]] == [True, False, True, False]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["model.onnx", "parts"]
    values = {"x": X}
    for p in index["parts"]:
        found = outputs(folder / p["file"], {name: values[name] for name in p["inputs"]})
        assert list(found) == p["outputs"]
        values |= found
    np.testing.assert_allclose(values["y"], outputs(source, {"x": X})["y"], rtol=1e-6)


def test_only_parts_of_an_earlier_run_are_removed(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    assert run(source, "--ops", "Mul,Relu,Add", "--out-dir", folder).exit_code == 0
    (folder / "part_009.onnx").write_text("not of that run")
    index = json.loads((folder / "partition.json").read_text())
    index["parts"].append({"file": "../model.onnx"})
    (folder / "partition.json").write_text(json.dumps(index))
    assert run(source, "--ops", "Mul,Relu,Add,Sigmoid", "--out-dir", folder).exit_code == 0
    assert sorted(f.name for f in folder.iterdir()) == [
        "part_000.onnx",
        "part_001.onnx",
        "part_009.onnx",
        "partition.json",
    ]
    assert source.exists()


def test_single_nodes_can_be_refused(source: Path) -> None:
    assert "1 supported of 2 parts, 2 of 6 nodes" in run(source, "--ops", "Mul,Relu", "--no-single-node").output


def test_each_part_a_function_call(source: Path, tmp_path: Path) -> None:
    fused = tmp_path / "fused.onnx"
    r = run(source, "--ops", "Mul,Relu,Add", "--fuse", fused)
    assert r.exit_code == 0, r.output
    assert "2 function calls, 4 nodes" in r.output
    proto = onnx.load(fused)
    onnx.checker.check_model(proto, full_check=True)
    check_model(read_model(proto))
    assert [n.op_type for n in proto.graph.node] == ["part_000", "Sigmoid", "part_001", "Tanh"]
    np.testing.assert_allclose(outputs(fused, {"x": X})["y"], outputs(source, {"x": X})["y"], rtol=1e-6)


def test_a_part_that_cannot_be_a_function_stays_in_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "if.onnx"
    text = """
        <ir_version: 8, opset_import: ["" : 17]> g (bool c, float[2] x) => (float[2] y)
        { y = If(c) <then_branch = t () => (a) { a = Relu(x) }, else_branch = e () => (b) { b = Relu(x) }> }
    """
    onnx.save(parser.parse_model(text), path)
    r = run(path, "--ops", "If,Relu", "--fuse", tmp_path / "fused.onnx", "--out-dir", tmp_path / "parts")
    assert r.exit_code == 0, r.output
    assert "part 0 stays as it is: a body of If" in r.output
    assert "0 function calls, 1 node" in r.output


WRONG = """from onnxopt.verification import judge, loaded
honest = loaded.Composition.run
loaded.Composition.run = lambda self, feeds: [v + 1 for v in honest(self, feeds)]
judge.main()"""


def test_a_mismatch_is_an_error_and_nothing_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "Verifier", partial(Verifier, start=WRONG))
    for option, target in (("--out-dir", "parts"), ("--fuse", "fused.onnx")):
        r = run(source, "--ops", "Mul", option, tmp_path / target)
        assert isinstance(r.exception, VerificationError)
        assert r.exception.exit_code == 1
        assert "output `y` differs by" in r.exception.message
    assert [f.name for f in tmp_path.iterdir()] == ["model.onnx"]


def test_a_model_that_does_not_run_is_not_checked(tmp_path: Path) -> None:
    path = tmp_path / "custom.onnx"
    text = """
        <ir_version: 8, opset_import: ["" : 17, "nobody" : 1]> g (float[2] x) => (float[2] y)
        { a = Relu(x) y = nobody.Knows(a) }
    """
    onnx.save(parser.parse_model(text), path)
    r = run(path, "--ops", "nobody::Knows", "--out-dir", tmp_path / "parts")
    assert r.exit_code == 0, r.output
    assert "not checked: onnxruntime cannot load the original" in r.output


def test_an_unwritable_folder_is_an_error(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **given: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    r = run(source, "--ops", "Mul", "--out-dir", tmp_path / "parts")
    assert isinstance(r.exception, WriteError)
    assert r.exception.message.endswith("parts: Permission denied")
    assert r.exception.hint == "name a folder that can be written"


def test_listed_operators_may_be_absent_from_the_model(source: Path) -> None:
    """A listed operator of the standard may be absent from the model: a backend has one list for all models."""
    assert (
        run(source, "--ops", "Mul,Add,Conv,ai.onnx.ml::Scaler").stdout == run(source, "--ops", "Mul,Add").stdout != ""
    )


def test_usage_errors(source: Path, tmp_path: Path) -> None:
    r = run(source, "--ops", "Mul,relu")
    assert isinstance(r.exception, UsageError)
    assert r.exception.message == "neither the model nor the standard has an operator 'relu'"
    assert r.exception.hint == "did you mean Relu?"
    r = run(source, "--ops", "Zzz")
    assert isinstance(r.exception, UsageError)
    assert r.exception.hint == "it has Add, Mul, Relu, Sigmoid, Tanh"
    assert run(source).exit_code == 2, "--ops is needed"
    empty = run(source, "--ops", " , ")
    assert (empty.exit_code, "it names no operator" in empty.output) == (2, True)
    r = run(source, "--ops", "Mul", "--out-dir", source)
    assert isinstance(r.exception, WriteError)
    r = run(source, "--ops", "Mul", "--out-dir", tmp_path / "no" / "where")
    assert isinstance(r.exception, WriteError)
    assert r.exception.hint == "create the folder around it first"
    r = run(source, "--ops", "Mul", "--fuse", source)
    assert isinstance(r.exception, WriteError)
    part = tmp_path / "part_000.onnx"
    part.write_bytes(source.read_bytes())
    r = run(part, "--ops", "Mul", "--out-dir", tmp_path)
    assert isinstance(r.exception, WriteError)
    assert part.read_bytes() == source.read_bytes()


def test_constants_of_an_old_model_stay_constants(tmp_path: Path) -> None:
    """An old model's constants stay constant in IR 8, which functions need.

    A listed input could be overridden there.
    """
    old = tmp_path / "old.onnx"
    old_model = MODEL.replace("ir_version: 8", "ir_version: 3").replace("x) =>", "x, float[4] w) =>")
    onnx.save(parser.parse_model(old_model), old)
    fused = tmp_path / "fused.onnx"
    assert run(old, "--ops", "Mul,Relu,Add", "--fuse", fused).exit_code == 0
    model = onnx.load(fused)
    assert (model.ir_version, [i.name for i in model.graph.input]) == (8, ["x"])
    assert [t.name for t in model.graph.initializer] == ["w"]
    check_model(read_model(model))
    np.testing.assert_array_equal(outputs(fused, {"x": X})["y"], outputs(old, {"x": X})["y"])
