"""The text models of `models/` and of the test cases, as protos and files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import onnx
import onnx.parser
import onnx.shape_inference

from onnxopt.graph import Model, Value

ROOT = Path(__file__).resolve().parents[1]
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '


def _load_build() -> ModuleType:
    """By file: `models` is a folder of data, not a package on the path."""
    spec = importlib.util.spec_from_file_location("sample_models_build", ROOT / "models" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _load_build()


def sample(name: str) -> onnx.ModelProto:
    """A model of `models/`."""
    model: onnx.ModelProto = build.build(ROOT / "models" / f"{name}.onnxtxt")
    return model


def parsed(text: str) -> onnx.ModelProto:
    """A model from text, of opset 17 where the text does not say."""
    model: onnx.ModelProto = onnx.parser.parse_model(text if "<ir_version" in text else HEAD + text)
    return model


def build_text(text: str) -> onnx.ModelProto:
    """A model from text in the format of `models/*.onnxtxt`; outputs may leave out their types."""
    model = parsed(text)
    _, fills, _ = build.header(text)
    for info in [v for v in model.graph.value_info if v.name in fills]:
        model.graph.value_info.remove(info)
        model.graph.initializer.append(build._weight(model.graph.name, info, build.FILLS[fills[info.name]]))
    inferred = {o.name: o for o in onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output}
    for output in model.graph.output:
        if not output.HasField("type"):
            output.CopyFrom(inferred[output.name])
    return model


def value(model: Model, name: str) -> Value:
    """Returns a value of the main graph by name."""
    return next(v for n in model.graph for v in n.outputs if v is not None and v.name == name)


def operators(model: Model) -> list[str]:
    """Returns the operators of the main graph, in order."""
    return [n.op for n in model.graph]
