"""The text models of `models/` and of the test cases, as protos and files."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

import onnx

ROOT = Path(__file__).resolve().parents[1]


def _load_build() -> ModuleType:
    """By file: `models` is a folder of data, not a package on the path."""
    spec = importlib.util.spec_from_file_location("sample_models_build", ROOT / "models" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _load_build()


def build_text(text: str) -> onnx.ModelProto:
    """A model from text in the format of `models/*.onnxtxt`, unchecked: cases may be odd on purpose."""
    with tempfile.NamedTemporaryFile("w", suffix=".onnxtxt") as f:
        f.write(text)
        f.flush()
        proto = build.build(Path(f.name))
    assert isinstance(proto, onnx.ModelProto)
    return proto
