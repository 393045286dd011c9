"""Small models, and rules run on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import parser

from onnxopt.graph import Model, Value, check_model, read_model, write_model
from onnxopt.rewriting import Driver, Fuel, Match, Rule, op, rewrite, var
from tests.samples import operators


def model(body: str, signature: str = "(float[N, 4] x) => (float[N, 4] y)", weights: str = "") -> Model:
    source = f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {weights} {{ {body} }}'
    return read_model(parser.parse_model(source))


def run(m: Model, *rules: Rule, fuel: int | None = None) -> Driver:
    driver = Driver(rules, Fuel(fuel))
    driver.run(m)
    check_model(m)
    onnx.checker.check_model(write_model(m), full_check=True)
    return driver


@rewrite(op.Neg(op.Relu(var("x")), name="neg"))
def neg_of_relu(m: Match, x: Value) -> Value:
    """-max(x, 0) = min(-x, 0)."""
    return m.op.Clip(m.op.Neg(x), None, m.const(np.float32(0)))


def operators_after(rule: Rule, body: str, **options: Any) -> list[str]:
    m = model(body, **options)
    run(m, rule)
    return operators(m)
