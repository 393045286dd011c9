"""Inputs that are chosen to say something: what they are, and wrong results that others would not find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.verification import DIFFERENT, EQUAL, Verification, VerifyOptions, verify
from onnxopt.verification.cases import OWN, RECIPES
from onnxopt.verification.inputs import InputMaker
from onnxopt.verification.plan import make_plan

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def model(text: str, **constants: Any) -> onnx.ModelProto:
    found = parser.parse_model(f"{HEAD} g {text}")
    found.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    return found


def judge(a: onnx.ModelProto, b: onnx.ModelProto, folder: Path, *cases: str) -> Verification:
    """The verdict of the optimizer's own check, or that of these cases."""
    for name, it in (("a", a), ("b", b)):
        onnx.save(it, folder / f"{name}.onnx")
    return verify(folder / "a.onnx", folder / "b.onnx", VerifyOptions(cases=cases or None))


# -- booleans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["", "[1]", "[4]"], ids=["scalar", "one", "row"])
def test_ones_are_true(shape: str) -> None:
    plan = make_plan(model(f"(float[N, 4] x, bool{shape} b) => (y) {{ y = Where (b, x, x) }}"))
    ones, zeros = (InputMaker(plan, {}, 0).fill(RECIPES[name], {"N": 2}).feeds["b"] for name in ("ones", "zeros"))
    assert ones.all() and not zeros.any()


def test_a_single_boolean_is_true_then_false() -> None:
    plan = make_plan(model("(float[N, 4] x, bool[1] b) => (y) { y = Where (b, x, x) }"))
    found = [InputMaker(plan, {}, seed).fill(recipe, {"N": 2}).feeds["b"] for seed in range(4) for recipe in OWN[:2]]
    assert [bool(b.all()) for b in found] == [True, False] * 4


def test_what_is_wrong_where_all_are_true_is_found(tmp_path: Path) -> None:
    text = "(float[N, 4] x, bool[4] b) => (float[N, 4] y) {{ f = Cast <to = 1> (b) m = ReduceMin (f) s = {} y = Mul (x, s) }}"
    a, b = (model(text.format(body)) for body in ("Identity (m)", "Sub (m, m)"))
    assert judge(a, b, tmp_path, "random", "ones").status == DIFFERENT
