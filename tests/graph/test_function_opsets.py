"""Functions of another opset than the model: only operators common to both enter."""

from __future__ import annotations

import onnx
import pytest
from onnx import ModelProto, checker, parser

from onnxopt import OptimizeOptions, optimize_model
from onnxopt.graph import read_model, write_model


def model(opset: int, own: int, body: str) -> ModelProto:
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : {opset}, "local" : 1]>
        g (float[2, 3, 4] x) => (float[A, B, C] y) {{ y = local.F (x) }}
        <domain: "local", opset_import: ["" : {own}]> F (x) => (y) {{ {body} }}"""
    )


def optimized(proto: ModelProto) -> ModelProto:
    index = read_model(proto)
    optimize_model(index, OptimizeOptions(level=2))
    return write_model(index)


@pytest.mark.parametrize(("opset", "own"), [(21, 17), (17, 21)])
def test_what_is_made_in_it_is_what_the_model_imports(opset: int, own: int) -> None:
    proto = model(opset, own, 'y = Einsum <equation = "ijk->kij"> (x)')
    checker.check_model(proto, full_check=True)
    result = optimized(proto)
    assert [n.op_type for n in result.functions[0].node] == ["Transpose"]  # which is another one in opset 21
    assert result.functions[0].opset_import[0].version == opset
    checker.check_model(result, full_check=True)


def test_one_that_calls_what_differs_keeps_its_opset() -> None:
    proto = model(21, 17, 'a = Identity (x)  b = Cast <to = 1> (a)  y = Einsum <equation = "ijk->kij"> (b)')
    result = optimized(proto)
    assert [n.op_type for n in result.functions[0].node] == ["Cast", "Transpose"]
    assert result.functions[0].opset_import[0].version == 17


def test_one_that_nothing_is_done_to_is_written_as_it_was() -> None:
    proto = model(21, 17, "y = Tanh (x)")
    before = proto.SerializeToString(deterministic=True)
    assert optimized(proto).SerializeToString(deterministic=True) == before


def test_an_opset_that_nobody_knows_yet_is_another_one() -> None:
    newer = onnx.defs.onnx_opset_version() + 1
    proto = model(newer, 17, 'y = Einsum <equation = "ijk->kij"> (x)')
    assert optimized(proto).functions[0].opset_import[0].version == 17
