"""Small models, and a registry that forgets what a test registers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from onnx import parser

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.graph import Model, read_model
from onnxopt.pipeline import config, registry
from onnxopt.verification import Verification, Verifier

MakeModel = Callable[..., Model]


@pytest.fixture
def model() -> MakeModel:
    """A model from the body of its main graph."""

    def make(body: str = "a = Identity (x) b = Relu (a) y = Neg (b)", rest: str = "", weights: str = "") -> Model:
        opsets = '["" : 17, "l" : 1]' if rest else '["" : 17]'
        header = f"<ir_version: 10, opset_import: {opsets}> g (float[N, 4] x) => (float[N, 4] y) {weights}"
        return read_model(parser.parse_model(f"{header} {{ {body} }} {rest}"))

    return make


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_PASSES", "_ORIGINS", "_MODULES"):
        monkeypatch.setattr(registry, name, getattr(registry, name).copy())
    monkeypatch.setattr(config, "DECLARED", config.DECLARED.copy())
    for name in [m for m in sys.modules if m.startswith("onnxopt_plugin_")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [n for n, cls in registry._PASSES.items() if cls.__module__.startswith("onnxopt_plugin_")]:
        del registry._PASSES[name]  # of a test elsewhere, whose module is forgotten
    yield
    for name in [m for m in sys.modules if m.startswith("onnxopt_plugin_")]:
        del sys.modules[name]  # its passes are forgotten now: whoever wants them imports it again


@pytest.fixture
def no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification as it is where two models cannot be compared in pieces."""
    with_places = Verifier.finish

    def finish(self: Verifier) -> Verification:
        verdict = with_places(self)
        verdict.places = []
        return verdict

    monkeypatch.setattr(Verifier, "finish", finish)
