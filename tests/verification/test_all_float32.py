"""A model whose floats are all float32 needs no search for the types of values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.pieces.paths import is_single
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program
from tests.verification.pairs import opened

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g '
X = "(float[2, 3] x) => (float[2, 3] y) "


def single(tmp_path: Path, model: onnx.ModelProto) -> bool:
    onnx.save(model, tmp_path / "m.onnx")
    return is_single(Program(Skeleton(tmp_path / "m.onnx")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X + "{ y = Exp (x) }", True),
        ("(float[2, 3] x, int64[N] i, bool c) => (float[2, 3] y) { y = Exp (x) }", True),
        ("(double[2, 3] x) => (double[2, 3] y) { y = Exp (x) }", False),
        ("(seq(float[2]) x) => (float[N] y) <int64 i = {0}> { y = SequenceAt (x, i) }", False),
        (X + "{ h = Cast <to = 10> (x) k = Exp (h) y = Cast <to = 1> (k) }", False),
        (X + "{ i = Cast <to = 7> (x) y = Cast <to = 1> (i) }", True),
        (X + "<double d = {2}> { f = Cast <to = 1> (d) y = Mul (x, f) }", True),  # constants are not run
        (X + "<double d = {2}> { e = Cast <to = 11> (x) m = Mul (e, d) y = Cast <to = 1> (m) }", False),
        (X + "<float16 d = {2}> { i = Cast <to = 7> (x) e = CastLike (i, d) y = Cast <to = 1> (e) }", False),
        (X + "{ d = Constant <value = double {2.0}> () f = Cast <to = 1> (d) y = Mul (x, f) }", True),
        (X + "{ n = com.microsoft.QuickGelu (x) y = Abs (n) }", False),  # a foreign operator may have any type inside
        ("(float[1, 10, 4] x) => (float[1, 10, 4] y) <float[10, 1, 1] w> { y = Conv <group = 10> (x, w) }", True),
        (X + "{ k, i = TopK <axis = 1> (x, n) y = RandomNormalLike <dtype = 11> (x) }", False),
        (X + "<bool c = {1}> { y = If (c) <then_branch = t () => (float[2, 3] a) { a = Exp (x) },"
         " else_branch = e () => (float[2, 3] b) { b = Abs (x) }> }", True),
        (X + "<bool c = {1}> { y = If (c) <then_branch = t () => (float[2, 3] a) { a = Exp (x) },"
         " else_branch = e () => (float[2, 3] b) { d = Cast <to = 11> (x) b = Cast <to = 1> (d) }> }", False),
        (X + "<bool c = {1}> { y = If (c) <then_branch = t () => (float[2, 3] a) <double d = {2}> { a = Exp (x) },"
         " else_branch = e () => (float[2, 3] b) { b = Abs (x) }> }", False),
    ],
)  # fmt: skip
def test_are_all_floats_single(text: str, expected: bool, tmp_path: Path) -> None:
    assert single(tmp_path, parser.parse_model(HEAD + text)) is expected


def test_functions_named_like_operators(tmp_path: Path) -> None:
    text = (
        HEAD
        + X
        + """{ y = Exp (x) }
        <domain: "%s", opset_import: ["" : 17]> Exp (u) => (w) { d = Cast <to = 11> (u) w = Cast <to = 1> (d) }"""
    )
    assert single(tmp_path, parser.parse_model(text % "own"))
    assert not single(tmp_path, parser.parse_model(text % "ai.onnx"))


def test_sparse_doubles(tmp_path: Path) -> None:
    model = parser.parse_model(HEAD + X + "{ y = Exp (x) }")
    values = helper.make_tensor("d", TensorProto.DOUBLE, [1], [2.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    sparse = helper.make_sparse_tensor(values, indices, [3])
    constant = model.graph.node.add(op_type="Constant", output=["c"])
    constant.attribute.append(helper.make_attribute("sparse_value", sparse))
    model.graph.node.add(op_type="Cast", input=["c"], output=["f"]).attribute.append(helper.make_attribute("to", 1))
    assert single(tmp_path, model)
    model.graph.node.add(op_type="Add", input=["c", "c"], output=["g"])
    model.graph.node.add(op_type="Where", input=["m", "g", "g"], output=["h"])
    model.graph.input.add(name="m").type.tensor_type.elem_type = TensorProto.BOOL
    assert not single(tmp_path, model)
    model = parser.parse_model(HEAD + X + "{ y = Exp (x) }")
    model.graph.sparse_initializer.append(sparse)
    model.graph.node.add(op_type="Where", input=["m", "d", "d"], output=["h"])
    model.graph.input.add(name="m").type.tensor_type.elem_type = TensorProto.BOOL
    assert not single(tmp_path, model)


@pytest.mark.parametrize(
    ("between", "told"), [("a = Neg (x)", False), ("d = Cast <to = 11> (x) a = Cast <to = 1> (d)", True)]
)
def test_types_of_unpaired_values_are_queried_unless_surely_float32(between: str, told: bool, tmp_path: Path) -> None:
    """Values of A without a counterpart become outputs if their type may differ from float32."""
    for name, inside in (("a", f"{between} y = Abs (a)"), ("b", "y = Abs (x)")):
        onnx.save(parser.parse_model(f"{HEAD} {X} {{ {inside} }}"), tmp_path / f"{name}.onnx")
    a, b = (opened(str(tmp_path / f"{label}.onnx"), label) for label in "ab")
    walk = Walk(a, b, [{"x": np.ones((2, 3), np.float32)}], {"x": "tensor(float)"})
    found = walk.run()
    assert found.pieces.cuts == found.pieces.shared == 1
    assert walk.original.types == {"x": "tensor(float)", "y": "tensor(float)"} | (
        {"d": "tensor(double)", "a": "tensor(float)"} if told else {}
    )
