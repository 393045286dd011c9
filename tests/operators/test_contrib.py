"""The table of onnxruntime's own operators, held against the schemas of the one that is installed."""

from __future__ import annotations

import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from onnxopt.operators.operands import Contrib, contrib_types
from onnxopt.proto.messages import qualified

SCHEMAS = {qualified(s.name, s.domain): s for s in getattr(state, "get_all_operator_schema", list)()}
WIDE = "tensor(float)"
FEWER = ("GroupNorm", "QLinearConcat")  # gamma and beta are float32 in each kernel; a schema cannot repeat several


@pytest.mark.parametrize(
    ("op", "known"), [pytest.param(op, known, id=op) for op, known in contrib_types().items() if op in SCHEMAS]
)
def test_schemas_say_the_same(op: str, known: Contrib) -> None:
    schema = SCHEMAS[op]
    kinds = {c.type_param_str: {*c.allowed_type_strs} for c in schema.type_constraints}
    sides = (known.inputs, schema.inputs), (known.outputs, schema.outputs)
    assert all(len(symbols) <= len(formal) for symbols, formal in sides)
    assert len(known.inputs) == len(schema.inputs) or op.endswith(FEWER)
    alike: dict[str, set[str]] = {}
    for symbols, formal in sides:
        for symbol, parameter in zip(symbols, formal):
            allowed = kinds.get(parameter.typeStr, {parameter.typeStr})
            if symbol == "T":
                assert {WIDE, *(f"tensor({kind})" for kind in known.types)} <= allowed, parameter.name
                alike.setdefault(parameter.typeStr, allowed)
            elif symbol == "f":
                assert WIDE in allowed, parameter.name
            elif symbol == "-":
                assert WIDE not in allowed, parameter.name
    if alike:
        assert ("bfloat16" in known.types) == all("tensor(bfloat16)" in allowed for allowed in alike.values())


def test_all_that_is_exported_and_has_float16_is_there() -> None:
    """What onnxruntime's model builder, its optimizers and its quantizers write."""
    names = "MatMulNBits GroupQueryAttention SkipLayerNormalization FusedMatMul MultiHeadAttention QuickGelu Attention"
    assert {f"com.microsoft::{name}" for name in names.split()} <= contrib_types().keys()
    assert "SimplifiedLayerNormalization" in contrib_types()
