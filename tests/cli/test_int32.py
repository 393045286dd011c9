"""`--int32`: 64-bit integers become 32-bit integers if proved to fit; values that stay are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxopt
from tests.cli.conftest import Run, operators

TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
g (int64[N] ids, int64[N] other, float[N, 4] x) => (int64[N] moved, int64[N] square, float[K] flat)
<float[3, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int64 one = {1}, int64[1] at = {0}, int64 four = {4}>
{
  back = Sub (ids, one)
  e = Gather (table, back)
  moved = Add (ids, one)
  square = Mul (other, other)
  s = Shape <start = 0, end = 1> (x)
  n = Mul (s, four)
  sum = Add (x, e)
  flat = Reshape (sum, n)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def types(path: Path) -> dict[str, str]:
    graph = onnx.load(path).graph
    kinds = {i.name: i.type.tensor_type.elem_type for i in (*graph.input, *graph.output)}
    return {name: onnx.TensorProto.DataType.Name(kind) for name, kind in kinds.items()}


def test_inner_integers_become_int32(model: Path, run: Run) -> None:
    """Inner integers become int32; inputs and outputs stay.

    Each int64 value left is named with -v, and in the report.
    """
    done = run("optimize", model, "out.onnx", "--int32", "-O0", "-v", "--report", "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ equal" in done.stdout
    assert "int64: 10 → 7 values\n" in done.stdout
    assert "4: inputs and outputs of the model keep their type\n" in done.stdout
    assert "2: operators take or give only int64 (Shape 1, Reshape 1)\n    `s`: Shape -> s\n" in done.stdout
    assert set(types(model.parent / "out.onnx").values()) == {"INT64", "FLOAT"}
    found = json.loads((model.parent / "report.json").read_text())["int64"]
    assert (found["before"], found["after"]) == (10, 7) and len(found["left"]) == 7
    assert run("optimize", "out.onnx", "again.onnx", "--int32", "-O0").returncode == 0
    assert (model.parent / "out.onnx").read_bytes() == (model.parent / "again.onnx").read_bytes()


def test_inputs_and_outputs_become_int32_without_keep_io(model: Path, run: Run) -> None:
    """Without --keep-io, inputs become int32, and outputs proved to fit.

    Verification feeds the same numbers to both files.
    """
    done = run("optimize", model, "out.onnx", "--int32", "--no-keep-io")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ equal" in done.stdout
    assert "numbers may need 64 bits (`square` 2)" in done.stdout
    kinds = {"ids": "INT32", "other": "INT32", "moved": "INT32", "square": "INT64"}
    assert kinds.items() <= types(model.parent / "out.onnx").items()
    assert run("verify", model, "out.onnx", "--int32", "--pieces", "-q").returncode == 0
    shown = run("report", model, "out.onnx", "--int32", "--no-keep-io", "-o", "page.html")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "DIFFERENT" not in (model.parent / "page.html").read_text()
    assert "input `ids` is int64 in A and int32 in B" in run("verify", model, "out.onnx").stderr
    wrong = onnx.load(model.parent / "out.onnx")
    next(n for n in wrong.graph.node if n.op_type == "Mul").input[:] = ["other", "other"]
    next(o for o in wrong.graph.output if o.name == "square").type.tensor_type.elem_type = onnx.TensorProto.INT32
    onnx.save(wrong, model.parent / "wrong.onnx")
    told = run("verify", model, "wrong.onnx", "--int32", "-q")
    assert told.returncode == 1 and "output `square`" in told.stdout and "it goes wrong at `square`" in told.stdout


def test_wrong_usage(model: Path, run: Run) -> None:
    np.save(model.parent / "big.npy", np.array([1 << 40, 2]))
    for args, said in (
        (
            ["--int32", "--no-keep-io", "--input", "other=big.npy"],
            "big.npy: input `other` holds 1099511627776, which needs 64 bits",
        ),
        (["--no-keep-io"], "--no-keep-io is for --dtype and --int32"),
        (["--with", "convert-int32"], "convert-int32 is no pass that runs with the others\nhint: say --int32"),
        (["--int32=yes"], "option '--int32' does not take a value"),
    ):
        done = run("optimize", model, "out.onnx", *args)
        assert done.returncode == 2 and said in done.stderr, done.stderr
        assert not (model.parent / "out.onnx").exists()


def test_large_constants_beside_the_model(tmp_path: Path) -> None:
    """Large external indices become int32, also behind a function, whose values have no types."""
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18, "f" : 1]>
        g (float[5] x) => (float[2000] y) <int64[2000] at = {0}> { h = f.twice (x) y = Gather (h, at) }
        <domain: "f", opset_import: ["" : 18]> twice (a) => (b) { b = Add (a, a) }""")
    indices = (np.arange(2000) % 5).astype(np.int64)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(indices, "at"))
    onnx.save(proto, tmp_path / "in.onnx", save_as_external_data=True, size_threshold=0, location="data")
    report = onnxopt.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx", int32=True).report
    assert report.ok and report.int64 is not None and report.int64.after == 0
    assert any("functions keep their types" in text for text in report.pipeline.warnings)
    result = onnx.load(tmp_path / "out.onnx")
    assert [t.data_type for t in result.graph.initializer if list(t.dims) == [2000]] == [onnx.TensorProto.INT32]
    assert "Gather" in operators(tmp_path / "out.onnx")
