"""Operators whose output shapes depend on shapes alone, checked on the node tests of ONNX."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import ModelProto, parser

from onnxopt.verification.model.dataflow import Changing
from onnxopt.verification.model.operators import END, OPERATORS, SIZE, operands
from onnxopt.verification.model.shapes import UNKNOWN, Known, shapes_of
from tests import node_cases
from tests.runtime import plain_session

TEXT = """<ir_version: 8, opset_import: ["" : 18]> g (float[n, 4] x) => (float[a, b] y) {{
    v = {made} s = Shape (v) k = Size (s) zero = Constant <value_int = 0> () c = Equal (k, zero)
    y = If (c) <then_branch = t () => (p) {{ o = Constant <value_ints = [-1]> () p = Reshape (v, o) }},
                else_branch = e () => (q) {{ q = Identity (v) }}> }}"""


@pytest.mark.parametrize(
    ("made", "is_open"),
    [
        *((f"{op} (x)", False) for op in ("Elu", "Selu", "Celu", "Mish", "ThresholdedRelu", "Relu", "Softsign")),
        ("NonZero (x)", True),
        ("Squeeze (x)", True),
    ],
)
def test_a_condition_on_a_constant_rank_is_closed(made: str, is_open: bool) -> None:
    model = parser.parse_model(TEXT.format(made=made))
    assert Changing(model.graph).hides is is_open


def test_output_shapes_do_not_depend_on_elements() -> None:
    """Output shapes stay the same for reordered elements of operands that are not shapes."""
    seen = set[str]()
    for case in node_cases.cases():
        node = case.model.graph.node[0]
        known = node.op_type in OPERATORS and "open" not in OPERATORS[node.op_type].traits
        if len(case.model.graph.node) > 1 or not known or node.domain or node.op_type == "Dropout":
            continue
        told = {node.input[i] for i in operands(END, SIZE).get(node.op_type, ()) if i < len(node.input)}
        other = {n: v if n in told or not isinstance(v, np.ndarray) else np.flip(v) for n, v in case.feeds.items()}
        shapes = [_shapes(case.model, feeds) for feeds in (case.feeds, other)]
        if None not in shapes:
            assert shapes[0] == shapes[1], case.name
            seen.add(node.op_type)
    assert len(seen) > 120


def test_inferred_shapes_and_elements_agree_with_the_node_tests() -> None:
    seen = 0
    for case in node_cases.cases():
        facts = shapes_of(case.model.graph, case.model.functions)
        for info, value in zip(case.model.graph.output, case.outputs):
            shape, elements, *_ = facts.get(info.name, Known())
            if shape is not None and isinstance(value, np.ndarray):
                assert len(shape) == value.ndim, case.name
                assert all(d in (UNKNOWN, n) for d, n in zip(shape, value.shape)), case.name
                seen += 1
            if elements is not None:
                assert all(d in (UNKNOWN, n) for d, n in zip(elements, value.reshape(-1), strict=True)), case.name
    assert seen > 1000


def _shapes(model: ModelProto, feeds: dict[str, object]) -> list[tuple[int, ...]] | None:
    """Return the shapes of the outputs, None if no runtime runs the model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [np.shape(v) for v in plain_session(model).run(None, feeds) if isinstance(v, np.ndarray)]
    except Exception:
        return None
