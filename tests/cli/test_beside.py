"""External weights of bodies, attributes and functions are read like all others.

Small ones go into the result, for runtimes that read them there only.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as rt
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxopt.io.external import external_tensors
from tests.cli.conftest import Run
from tests.cli.weights import beside
from tests.samples import parsed

N = 32
TEXT = f"""<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
g (float[4,{N}] x) => (float[4,{N}] y) <int64 twice = {{2}}> {{
  k = Constant <value_float = 0.0> ()
  a = MatMul (x, k)
  b = Loop (twice, , a) <body = b (int64 i, bool c, float[4,{N}] h) => (bool c1, float[4,{N}] h1) {{
    c1 = Identity (c)  t = MatMul (h, W)  t2 = MatMul (t, V)  h1 = Tanh (t2)
  }}>
  y = f.Scale (b)
}}
<domain: "f", opset_import: ["" : 17]> Scale (v) => (w) {{ s = Constant <value_float = 0.0> ()  w = Mul (v, s) }}"""


def model(seed: int = 0) -> ModelProto:
    """Return a network with weights in every place but the main graph's initializers."""
    draw = np.random.default_rng(seed)

    def weight(name: str, *dims: int) -> TensorProto:
        return numpy_helper.from_array((draw.normal(size=dims) / dims[0] ** 0.5).astype(np.float32), name)

    made = parsed(TEXT)
    constant, _, loop, _ = made.graph.node
    constant.attribute[0].CopyFrom(helper.make_attribute("value", weight("w", N, N)))
    loop.attribute[0].g.initializer.extend([weight("W", N, N), weight("V", N, N)])
    made.functions[0].node[0].attribute[0].CopyFrom(helper.make_attribute("value", weight("s", 4, N)))
    return made


def run_in_runtime(path: Path) -> np.ndarray:
    session = rt.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(5).normal(size=(4, N)).astype(np.float32)
    return session.run(None, {"x": x})[0]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return beside(model(), tmp_path / "m.onnx")


OPTIONS = [
    "-O0",
    "-O1 --external reuse",
    "-O3 --inline-functions --target-opset 20 --external inline",
    "--dtype float16",
]


@pytest.mark.parametrize("asked", OPTIONS)
def test_results_compute_the_same_and_are_verified(asked: str, source: Path, run: Run) -> None:
    options = asked.split()
    done = run("optimize", source.name, "out.onnx", *options)
    assert done.returncode == 0, done.stderr
    assert options[0] == "-O0" or "✓" in done.stdout
    out = source.with_name("out.onnx")
    allowed = 2e-2 if "--dtype" in options else 1e-5
    np.testing.assert_allclose(run_in_runtime(out), run_in_runtime(source), atol=allowed)
    assert options[-1] != "inline" or not external_tensors(onnx.load(out, load_external_data=False))


def test_commands_read_weights_beside_the_model(source: Path, run: Run, tmp_path: Path) -> None:
    assert run("optimize", source.name, "out.onnx", "-O3").returncode == 0
    wrong = model()
    body = wrong.graph.node[2].attribute[0].g
    body.initializer[0].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(body.initializer[0]) * 1.5, "W"))
    beside(wrong, tmp_path / "wrong.onnx")
    same = run("verify", source.name, "out.onnx")
    assert same.returncode == 0, same.stderr
    other = run("verify", source.name, "wrong.onnx", "--format", "json")
    assert other.returncode == 1
    assert json.loads(other.stdout)["status"] == "different"
    report = run("report", source.name, "out.onnx", "-o", "r.html")
    assert report.returncode == 0, report.stderr
    nothing = run("bisect", source.name)
    assert (nothing.returncode, "does not differ" in nothing.stderr) == (2, True)
    stats = run("stats", source.name, "--format", "json")
    size = sum(f.stat().st_size for f in (source, source.with_name("m.onnx.data")))
    assert json.loads(stats.stdout)["file_bytes"] == size
    for command in (
        ("extract", source.name, "part.onnx", "--outputs", "b"),
        ("find", source.name, "MatMul(x, w)"),
        ("why", source.name, "linear-composition"),
        ("bench", source.name, "out.onnx", "--seconds", "0.1"),
    ):
        done = run(*command)
        assert done.returncode == 0, (command, done.stderr)


SIZES = """g (float[n,96] x) => (float[n,32] y, float[n,8,4] z) <float[96,96] w = {0}, int64[3] parts = {32, 32, 32},
  int64[3] to = {0, 8, 4}> { h = MatMul (x, w)  a, b, c = Split <axis = 1> (h, parts)  y = Add (a, c)
  z = Reshape (b, to) }"""


@pytest.mark.parametrize(("level", "external"), [("-O0", "auto"), ("-O2", "copy"), ("-O2", "inline"), ("-O0", "reuse")])
def test_small_tensors_of_data_files_go_into_the_result(external: str, level: str, run: Run, tmp_path: Path) -> None:
    made = parsed(SIZES)
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.eye(96, dtype=np.float32), "w"))
    beside(made, tmp_path / "m.onnx")
    with pytest.raises(Exception, match="Cannot parse data from external tensors"):
        rt.InferenceSession(tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "out.onnx", "--external", external, level)
    assert done.returncode == 0, done.stderr
    assert "! 2 small tensors of data files went into the model" in done.stdout
    assert level == "-O0" or "by the reference evaluator (onnxruntime: " in done.stdout
    rt.InferenceSession(tmp_path / "out.onnx")
    outside = [t.name for t in external_tensors(onnx.load(tmp_path / "out.onnx", load_external_data=False))]
    assert outside == ([] if external == "inline" else ["w"])
    again = run("optimize", "out.onnx", "again.onnx", "--external", external, level)
    assert "unchanged" in again.stdout
    assert "small tensor" not in again.stdout
