"""Small models, and a registry that forgets what a test registers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from onnx import parser

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.graph import Model, read_model
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
def _forget(registry_as_it_was: None) -> None:
    """Passes that a test registers are forgotten behind it."""


@pytest.fixture
def no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification as it is where two models cannot be compared in pieces."""
    with_places = Verifier.finish

    def finish(self: Verifier) -> Verification:
        verdict = with_places(self)
        verdict.places = []
        return verdict

    monkeypatch.setattr(Verifier, "finish", finish)
