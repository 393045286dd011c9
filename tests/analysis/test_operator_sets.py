"""Sets of operators of the analyses, derived from traits of operators."""

from __future__ import annotations

from onnxopt.analysis import constants, score_masks
from onnxopt.io import from_proto
from onnxopt.operators import CONTROL_FLOW
from tests.samples import build_text


def test_operators_that_are_not_computed_ahead() -> None:
    assert CONTROL_FLOW | {"DequantizeLinear", "DynamicQuantizeLinear", "Dropout"} == constants._KEPT


def test_operators_with_results_between_minus_one_and_one() -> None:
    assert {"Sigmoid", "HardSigmoid", "Tanh", "Erf"} == score_masks._UNIT


def test_a_softmax_has_no_bounds() -> None:
    """A row of minus infinity becomes NaN, although the scores have none."""
    body = " (float[2, 3] y, float[2, 3] z) { y = Softmax (x) z = HardSigmoid (x) }"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) =>' + body
    graph = from_proto(build_text(text)).graph
    softmax, sigmoid = (node.output for node in graph)
    assert score_masks.bounds(softmax) is None
    assert score_masks.bounds(sigmoid) == score_masks.Bounds(-1.0, 1.0)
