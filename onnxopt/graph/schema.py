"""What the ONNX standard says of an operator at an opset, cached: attribute defaults, purity."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import onnx

from onnxopt.protos import attribute_value

# Results differ from run to run, or depend on state: never folded, never merged.
NONDETERMINISTIC: Final = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    }
)
CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan", "SequenceMap"})


@cache
def find_schema(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of a qualified operator at an opset version; None when the standard does not know it."""
    domain, _, op_type = op.rpartition("::")
    if opset <= 0:
        return None
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def _defaults(op: str, opset: int) -> dict[str, Any]:
    schema = find_schema(op, opset)
    if schema is None:
        return {}
    return {
        name: attribute_value(a.default_value)
        for name, a in schema.attributes.items()
        if a.default_value.type != onnx.AttributeProto.UNDEFINED
    }


def attribute_default(op: str, opset: int, name: str) -> Any:
    """The default of an attribute, or None."""
    return _defaults(op, opset).get(name)


def is_known(op: str, opset: int) -> bool:
    """Does the standard define this operator? What it does not define is opaque: kept, not merged, not folded."""
    return find_schema(op, opset) is not None


def is_deterministic(op: str) -> bool:
    return op not in NONDETERMINISTIC
