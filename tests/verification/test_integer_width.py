"""Results with int32 in place of int64 agree: equal numbers of any width, in pieces and by value numbering."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification.inputs.cases import RECIPES
from onnxopt.verification.inputs.plan import InputSpec, Plan
from onnxopt.verification.inputs.values import InputMaker
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.pieces.pairs import Pairs, Sameness
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.transforms import tensor_types

HEAD = '<ir_version: 9, opset_import: ["" : 17]> g (float[N, 4] x) => (float[2] y)'
WIDE = f"""{HEAD}
<int64[1] start = {{0}}, int64[1] end = {{9223372036854775807}}, int64[2] i = {{1, 0}}, int64 two = {{2}}>
{{ s = Shape (x) c = Slice (s, start, end) g = Gather (c, i) m = Mul (g, two) y = Cast <to = 1> (m) }}"""
NARROW = f"""{HEAD} <int32[1] start = {{0}}, int32[1] end = {{2147483647}}, int32[2] i = {{1, 0}}, int32 two = {{2}}>
{{ s = Shape (x) s_int32 = Cast <to = 6> (s) c_int32 = Slice (s_int32, start, end) g_int32 = Gather (c_int32, i)
   m_int32 = Mul (g_int32, two) y = Cast <to = 1> (m_int32) }}"""


def program(folder: Path, name: str, text: str, *, any_width: bool) -> Program:
    onnx.save(parser.parse_model(text), folder / name)
    skeleton = Skeleton(folder / name)
    skeleton.kinds = tensor_types(skeleton.proto) if any_width else {}
    return Program(skeleton)


@pytest.mark.parametrize(
    ("text", "any_width", "alike"),
    [
        (NARROW, True, True),
        (NARROW, False, False),
        (NARROW.replace("{1, 0}", "{0, 1}"), True, False),
        (
            NARROW.replace("to = 6> (s)", "to = 3> (s)").replace("int32", "int8").replace("2147483647", "127"),
            True,
            False,
        ),
    ],
)
def test_value_numbers(text: str, any_width: bool, alike: bool, tmp_path: Path) -> None:
    pairs = Pairs(*(program(tmp_path, f"{i}.onnx", t, any_width=any_width) for i, t in enumerate((WIDE, text))))
    assert Sameness(pairs, pairs.b.given).is_made_alike("y") == alike
    assert pairs.int32 == ({"c_int32", "g_int32", "m_int32"} if any_width and "int32" in text else set())


@pytest.mark.parametrize("recipe", ["random", "wide", "extremes"])
def test_int64_inputs_are_fed_numbers_of_32_bits(recipe: str) -> None:
    plan = Plan([InputSpec("n", "int64"), InputSpec("m", "int64", (64,))])
    plan.hold_int32()
    feeds = InputMaker(plan, {}, 0).fill(RECIPES[recipe], {}, "wide").feeds
    for array in feeds.values():
        assert isinstance(array, np.ndarray) and array.dtype == np.int64
        assert (array == array.astype(np.int32)).all()
