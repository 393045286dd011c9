"""The table of signatures, held against onnx's schemas."""

from __future__ import annotations

from dataclasses import astuple

import onnx
import pytest

from onnxopt.graph.schema import find_schema, signature_of
from onnxopt.operators.signatures import _entries, tabled

NEWEST = onnx.defs.onnx_opset_version()


@pytest.mark.parametrize("op", _entries())
def test_the_table_says_what_schemas_say(op: str) -> None:
    known = {opset: found for opset in range(1, NEWEST + 1) if (found := tabled(op, opset)) is not None}
    assert known
    for opset, found in known.items():
        schema = find_schema(op, opset)
        assert schema is not None
        assert astuple(found) == astuple(signature_of(schema)), opset


def test_opsets_without_an_entry_are_left_to_onnx() -> None:
    assert tabled("Unsqueeze", 10) is None  # the axes are not negative
    assert tabled("Add", 7) is not tabled("Add", 6) is None
    assert tabled("Relu", 1000) is None
    assert tabled("Loop", 17) is None
