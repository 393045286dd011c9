"""Add and LayerNormalization of tokens stay matrices: in rank 3, onnxruntime fuses the slower SkipLayerNormalization.

docs/forms.md has the times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as rt
import pytest
from onnx import numpy_helper, parser

import onnxopt

WIDTH, HEADS = 16, 2


def block(layer: int, x: str) -> str:
    """A layer of an encoder with normalizations behind the sums, as in DistilBERT and ALBERT."""
    heads = "".join(
        f"{n}a{layer} = MatMul ({x}, w{n}{layer}) {n}b{layer} = Add ({n}a{layer}, b{n}{layer}) "
        f"{n}c{layer} = Reshape ({n}b{layer}, split) {n}{layer} = Transpose <perm = [0, 2, 1, 3]> ({n}c{layer}) "
        for n in "qkv"
    )
    return f"""
      {heads}
      t{layer} = Transpose <perm = [0, 1, 3, 2]> (k{layer})
      s{layer} = MatMul (q{layer}, t{layer})
      m{layer} = Add (s{layer}, mask)
      p{layer} = Softmax <axis = -1> (m{layer})
      y{layer} = MatMul (p{layer}, v{layer})
      z{layer} = Transpose <perm = [0, 2, 1, 3]> (y{layer})
      c{layer} = Reshape (z{layer}, join)
      o{layer} = MatMul (c{layer}, wo{layer})
      ob{layer} = Add (o{layer}, bo{layer})
      r{layer} = Add (ob{layer}, {x})
      n{layer} = LayerNormalization (r{layer}, g, h)
      f{layer} = MatMul (n{layer}, wf{layer})
      fb{layer} = Add (f{layer}, bf{layer})
      a{layer} = Relu (fb{layer})
      u{layer} = MatMul (a{layer}, wu{layer})
      ub{layer} = Add (u{layer}, bu{layer})
      rr{layer} = Add (ub{layer}, n{layer})
      x{layer + 1} = LayerNormalization (rr{layer}, g, h)
    """


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[B, S, {WIDTH}] x0, float[B, 1, 1, S] mask) => (float[B, S, {WIDTH}] x2)
    <int64[4] split = {{0, 0, {HEADS}, {WIDTH // HEADS}}}, int64[3] join = {{0, 0, {WIDTH}}}>
    {{ {block(0, "x0")} {block(1, "x1")} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    names = {f"{kind}{n}{layer}" for kind in "wb" for n in "qkvofu" for layer in (0, 1)} | {"g", "h"}
    for name in sorted(names):
        shape = (WIDTH, WIDTH) if name.startswith("w") else (WIDTH,)
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "encoder.onnx")
    return tmp_path / "encoder.onnx"


def run_by_onnxruntime(path: Path) -> list[str]:
    """Returns the operators that run after loading a model."""
    settings = rt.SessionOptions()
    settings.log_severity_level = 4
    settings.optimized_model_filepath = str(path.with_suffix(".run.onnx"))
    rt.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return [n.op_type for n in onnx.load(settings.optimized_model_filepath).graph.node]


@pytest.mark.parametrize("asked", [{}, {"level": 3}, {"target": "onnxruntime==1.32"}])
def test_no_slow_operator_is_made_of_an_encoder(encoder: Path, asked: dict[str, Any]) -> None:
    assert run_by_onnxruntime(encoder).count("SkipLayerNormalization") == 4
    result = encoder.with_name("result.onnx")
    assert onnxopt.optimize(encoder, result, **asked).report.ok
    left = run_by_onnxruntime(result)
    assert "SkipLayerNormalization" not in left
    assert left.count("LayerNormalization") == 4


def test_one_alone_is_worth_its_reshapes_to_the_target_only(tmp_path: Path) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1, 8, {WIDTH}] x) => (float[1, 8, {WIDTH}] y) '
    model = parser.parse_model(text + "{ m = MatMul (x, w) s = Add (m, x) y = LayerNormalization (s, g, h) }")
    for name, shape in (("w", (WIDTH, WIDTH)), ("g", (WIDTH,)), ("h", (WIDTH,))):
        model.graph.initializer.append(numpy_helper.from_array(np.full(shape, 0.5, np.float32), name))
    onnx.save(model, tmp_path / "one.onnx")
    for target, count in (("any", 1), ("onnxruntime==1.29", 1), ("onnxruntime==1.32", 0)):
        report = onnxopt.optimize(tmp_path / "one.onnx", tmp_path / "out.onnx", target=target).report
        assert report.ok
        assert run_by_onnxruntime(tmp_path / "out.onnx").count("SkipLayerNormalization") == count, target
