"""Functions that onnx's inliner leaves in place keep what they call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt import OptimizeOptions, optimize_file
from tests.runtime import plain_session

HEAD = '<ir_version: 10, opset_import: ["" : 17, "my" : 1]> g (float[N] x) => (float[N] y) '
X = np.array([3, -1, 0.5], np.float32)


def function(name: str, body: str, opset: int = 17) -> str:
    return f'<domain: "my", opset_import: ["" : {opset}, "my" : 1]> {name} (a) => (b) {{ {body} }}'


H = function("h", "b = Neg (a)")
F = function("f", "t = my.h (a) b = Sigmoid (t)", 16)
IF = """c = Constant <value = bool[1] {1}> ()
b = If (c) <then_branch = t () => (p) { p = my.h (a) }, else_branch = e () => (q) { q = Identity (a) }>"""


def run(path: Path) -> np.ndarray:
    return np.asarray(plain_session(path).run(None, {"x": X})[0])


@pytest.mark.parametrize(
    ("main", "functions", "left"),
    [
        ("y = my.f (x)", (F, H), {"f", "h"}),
        ("t = my.h (x) y = my.f (t)", (F, H), {"f", "h"}),
        (  # a chain of three
            "y = my.f (x)",
            (F, function("h", "t = my.k (a) b = Neg (t)"), function("k", "b = Abs (a)")),
            {"f", "h", "k"},
        ),
        (  # two callers
            "t = my.f (x) u = my.e (t) y = my.h (u)",
            (F, function("e", "t = my.h (a) b = Tanh (t)", 15), H),
            {"e", "f", "h"},
        ),
        ("y = my.f (x)", (function("f", IF, 16), H), {"f", "h"}),
        ("y = my.f (x)", (function("f", "t = my.h (a) b = Sigmoid (t)"), H), set()),
        ("y = my.f (x)", (F, H, function("unused", "b = Abs (a)")), {"f", "h"}),
    ],
)
def test_what_functions_in_place_call_is_there(
    main: str, functions: tuple[str, ...], left: set[str], tmp_path: Path
) -> None:
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(parser.parse_model(HEAD + f"{{ {main} }}" + "".join(functions)), source)
    model = OptimizeOptions(inline_functions=True).load(source)
    assert {name.rpartition("::")[2] for name in model.functions} == left
    report = optimize_file(source, target, OptimizeOptions(inline_functions=True))
    assert report.verification is not None and report.verification.agrees
    assert np.array_equal(run(source), run(target))
