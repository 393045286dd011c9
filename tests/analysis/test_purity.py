"""BatchNormalization and Dropout in inference mode, as each opset declares the mode."""

from __future__ import annotations

import pytest
from onnx import parser

from onnxopt.analysis.constants import may_train
from onnxopt.graph import read_model


@pytest.mark.parametrize(
    ("opset", "node", "trains"),
    [
        (6, "y = BatchNormalization (x, s, s, s, s)", True),
        (6, "y = BatchNormalization <is_test = 1> (x, s, s, s, s)", False),
        (9, "y = BatchNormalization (x, s, s, s, s)", False),
        (9, "y, m, v = BatchNormalization (x, s, s, s, s)", True),
        (14, "y = BatchNormalization (x, s, s, s, s)", False),
        (14, "y = BatchNormalization <training_mode = 1> (x, s, s, s, s)", True),
        (6, "y = Dropout (x)", True),
        (6, "y = Dropout <is_test = 1> (x)", False),
        (7, "y = Dropout (x)", False),
        (12, "y = Dropout (x)", False),
        (12, "y = Dropout (x, r, yes)", True),
        (12, "y = Dropout (x, r, no)", False),
        (12, "y = Dropout (x, r, maybe)", True),
        (17, "y = InstanceNormalization (x, s, s)", False),
    ],
)
def test_may_train(opset: int, node: str, trains: bool) -> None:
    model = read_model(
        parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[1, 1, 2] x, bool maybe) => (float[1, 1, 2] y)'
            f"<float[1] s = {{1}}, float r = {{0.5}}, bool yes = {{1}}, bool no = {{0}}> {{ {node} }}"
        )
    )
    assert may_train(next(iter(model.graph))) == trains


def test_what_the_caller_of_a_function_decides_may_be_training() -> None:
    model = read_model(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17, "local" : 1]> g (float[2, 1] x) => (float[2, 1] y)'
            "{ y = local.f (x) }"
            '<opset_import: ["" : 17], domain: "local"> f <mode: int = 0> (x) => (y)'
            "{ s = Constant <value = float[1] {1}> ()"
            "  y = BatchNormalization <training_mode: int = @mode> (x, s, s, s, s) }"
        )
    )
    (function,) = model.functions.values()
    assert [may_train(node) for node in function] == [False, True]
