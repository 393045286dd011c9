"""Weights beside a model: what each `--external` takes, beside `cp` and onnxruntime's offline optimizer."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from costs import Cost, cost, middle
from onnx import TensorProto, helper

_WIDTH = 5120  # a weight has 100 MiB
RUNTIME = (
    "import sys, onnxruntime as rt; o = rt.SessionOptions(); o.optimized_model_filepath = sys.argv[2];"
    "o.log_severity_level = 4; o.graph_optimization_level = getattr(rt.GraphOptimizationLevel, sys.argv[3]);"
    "o.add_session_config_entry('session.optimized_model_external_initializers_file_name', sys.argv[4]);"
    "rt.InferenceSession(sys.argv[1], o, providers=['CPUExecutionProvider'])"
)


def runtime(source: Path, result: Path, level: str, data: str = "") -> list[str]:
    """onnxruntime's offline optimizer; `data`: the file for large weights."""
    code = RUNTIME if data else RUNTIME.replace("o.add_session", "0 and o.add_session")
    return [sys.executable, "-c", code, str(source), str(result), level, data]


def build(folder: Path, gib: float, sparse: bool) -> Path:
    """x through MatMul, Identity and Tanh, again and again; the weights in one file. `sparse`: they are holes but for
    256 KiB at the head of each, so that what is measured is what a tool reads and keeps."""
    size = 4 * _WIDTH * _WIDTH
    layers = max(1, round(gib * (1 << 30) / size))
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    with open(folder / "weights.bin", "wb") as f:
        for i in range(layers):
            f.seek(i * size)
            f.write(rng.standard_normal((1 << 16) if sparse else _WIDTH * _WIDTH, np.float32).tobytes())
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[_WIDTH, _WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in (("location", "weights.bin"), ("offset", str(i * size)), ("length", str(size))):
                tensor.external_data.add(key=key, value=text)
            weights.append(tensor)
            for op, given, out in (
                ("MatMul", [value, f"w{i}"], "m"),
                ("Identity", [f"m{i}"], "i"),
                ("Tanh", [f"i{i}"], "v"),
            ):
                nodes.append(helper.make_node(op, given, [f"{out}{i}"]))
            value = f"v{i}"
        f.truncate(layers * size)
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", _WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def commands(source: Path, out: Path) -> dict[str, list[str]]:
    """The command of each row; `out` is empty before it, and beside the source for what refers to it."""
    found = {"cp": ["cp", str(source.with_name("weights.bin")), str(out / "weights.bin")]}
    for external in ("reuse", "copy", "auto", "inline"):
        place = source.with_name("out.onnx") if external == "reuse" else out / "out.onnx"
        onnxopt = [str(Path(sys.executable).with_name("onnxopt")), "optimize", str(source), str(place)]
        found[f"`--external {external}`"] = [*onnxopt, "--external", external, "-q", "--no-verify"]
    return found | {"onnxruntime": runtime(source, out / "out.onnx", "ORT_ENABLE_BASIC", "out.data")}


def measured(
    gib: float, sparse: bool, folder: Path | None, runs: int, seconds: float, runtime_seconds: float
) -> dict[str, Cost]:
    """Each row, timed in turn. What fails (weights of more than 2 GiB inside a model) is not repeated."""
    took: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        source, out = build(Path(name), gib, sparse), Path(name) / "out"
        for _ in range(runs):
            for row, command in commands(source, out).items():
                limit = runtime_seconds if row == "onnxruntime" else seconds
                if limit and not any(c.failed for c in took.get(row, ())):
                    shutil.rmtree(out, ignore_errors=True)
                    out.mkdir()
                    took.setdefault(row, []).append(cost(command, limit))
    return {row: middle(costs) for row, costs in took.items()}
