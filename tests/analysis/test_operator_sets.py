"""Sets of operators of the analyses, derived from traits of operators."""

from __future__ import annotations

from onnxopt.analysis import constants, score_masks
from onnxopt.operators import CONTROL_FLOW


def test_operators_that_are_not_computed_ahead() -> None:
    assert CONTROL_FLOW | {"DequantizeLinear", "DynamicQuantizeLinear", "Dropout"} == constants._KEPT


def test_operators_with_results_between_minus_one_and_one() -> None:
    assert {"Sigmoid", "HardSigmoid", "Softmax", "Tanh", "Erf"} == score_masks._UNIT
