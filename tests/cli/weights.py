"""Models with weights beside them, and the numbers that a reader finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as rt
from onnx import TensorProto, helper, numpy_helper

from onnxopt.proto.messages import all_tensors

SIZE = 600
# File names on Linux and macOS that are drives, shares or parent folders on Windows.
ELSEWHERE_ON_WINDOWS = [
    "..\\w",
    "sub\\..\\..\\up\\w",
    "C:\\w",
    "C:w",
    "C:/w",
    "\\w",
    "\\\\host\\share\\w",
    "//host/share/w",
    "\\\\?\\C:\\w",
]


def write_model(path: Path, locations: list[str], fill: float = 1.0, size: int = SIZE, missing: bool = False) -> Path:
    """Save y = w0 + x, + w1, …, which cannot be folded. Each weight is the whole file at its location."""
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
    """Return the sum that the model adds, as onnxruntime and onnx read it."""
    session = rt.InferenceSession(path, providers=["CPUExecutionProvider"])
    result = session.run(None, {"x": np.zeros(session.get_inputs()[0].shape, np.float32)})[0]
    loaded = onnx.load(path)
    stored = sum(float(onnx.numpy_helper.to_array(t)[0]) for t in loaded.graph.initializer)
    assert float(result[0]) == stored
    return stored


def references(path: Path) -> set[str]:
    return references_of(onnx.load(path, load_external_data=False))


def references_of(model: onnx.ModelProto) -> set[str]:
    return {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}


def beside(model: onnx.ModelProto, path: Path, at_least: int = 1) -> Path:
    """Save a model with its large tensors in `NAME.data`.

    Large: at least `at_least` bytes. Tensors of bodies, attributes and functions are included.
    """
    data = bytearray()
    for tensor in all_tensors(model):
        raw = numpy_helper.to_array(tensor).tobytes()
        if len(raw) < at_least:
            continue
        for field in ("float_data", "int32_data", "int64_data", "raw_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", f"{path.name}.data"), ("offset", str(len(data))), ("length", str(len(raw)))):
            tensor.external_data.add(key=key, value=text)
        data += raw
    path.with_name(f"{path.name}.data").write_bytes(data)
    path.write_bytes(model.SerializeToString())
    return path
