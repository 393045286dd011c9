"""The verifier's table of operators agrees with onnxruntime on the node tests of ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.defs
import pytest

from onnxopt.verification.model.operators import (
    BOUND,
    DATA,
    END,
    INDEX,
    LENGTH,
    OPERATORS,
    SETTING,
    SINKS,
    SIZE,
    WEIGHTS,
    having,
)
from tests import node_cases
from tests.runtime import plain_session

ROLES = {DATA, INDEX, LENGTH, END, SIZE, SETTING, BOUND}
OTHERS = {"BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch", "FusedConv"}  # of domain com.microsoft
NO_VALUES = {
    "Constant",
    "SequenceEmpty",
    "ImageDecoder",
    "Optional",
    "OptionalHasElement",
    "OptionalGetElement",
    "Adagrad",
    "Adam",
}
NO_VALUES |= {"Momentum", "Gradient"}
NEW = {"FlexAttention", "SwiGLU", "BitCast", "CumProd", "LinearAttention", "CausalConvWithState"}


def test_each_operator_has_a_row_and_each_row_is_an_operator() -> None:
    schemas = {s.name for s in onnx.defs.get_all_schemas() if s.domain in ("", "ai.onnx.ml")}
    standard = {s.name for s in onnx.defs.get_all_schemas() if not s.domain} - NO_VALUES - NEW
    assert standard <= OPERATORS.keys()
    assert OPERATORS.keys() - schemas - OTHERS <= NEW | {"Scatter", "Upsample"}
    assert {r for row in OPERATORS.values() for r in row.roles} == ROLES
    assert not having("forgets") & having("moves", "bends", "affine")
    assert having("whole") <= having("moves") and having("mutes") <= having("flat") <= having("levels")


def test_roles_of_operands_beside_data() -> None:
    assert SINKS["Slice"] == {1: INDEX, 2: INDEX, 3: SIZE, 4: SIZE}
    assert SINKS["Resize"] == {1: SIZE, 2: SIZE, 3: SIZE}, "a picture is no size"
    assert SINKS["RoiAlign"] == {2: INDEX}
    assert "Add" not in SINKS
    assert WEIGHTS["ConvTranspose"] == (1, 1, 0)


def _results() -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """Yield (operator, inputs, outputs) of each single-node test that onnxruntime runs."""
    for case in node_cases.cases():
        node = case.model.graph.node[0]
        if len(case.model.graph.node) > 1 or node.domain or node.op_type not in OPERATORS:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = plain_session(case.model).run(None, case.feeds)
        except Exception:
            continue
        yield node.op_type, {n: case.feeds[n] for n in node.input if n in case.feeds}, made


@pytest.fixture(scope="module")
def results() -> list[tuple[str, dict[str, Any], list[Any]]]:
    return list(_results())


def _arrays(values: Any) -> list[Any]:
    return [v for v in values if isinstance(v, np.ndarray) and v.dtype.kind in "fiub"]


def test_results_have_the_shape_of_the_table(results: list[Any]) -> None:
    seen = set[str]()
    for kind, given, made in results:
        known = [v.shape for v in given.values() if isinstance(v, np.ndarray)]
        if kind in having("like") and kind != "Dropout" and known and isinstance(made[0], np.ndarray):
            assert made[0].shape == known[0], kind
            seen.add(kind)
        elif kind in having("broadcast") and isinstance(made[0], np.ndarray):
            assert made[0].shape == np.broadcast_shapes(*known), kind
            seen.add(kind)
    assert len(seen) > 60


def test_results_are_in_the_range_of_the_table(results: list[Any]) -> None:
    seen = set[str]()
    for kind, _, made in results:
        row = OPERATORS[kind]
        for value in _arrays(made[:1]):
            finite = value[np.isfinite(value)].astype(np.float64)
            assert ((finite >= row.low) & (finite <= row.high)).all(), kind
            assert not row.integer or (finite == np.round(finite)).all(), kind
            seen.add(kind)
    assert len(seen & {k for k, row in OPERATORS.items() if row.integer or row.low > -np.inf}) > 25


def test_moving_operators_make_no_new_numbers(results: list[Any]) -> None:
    seen = set[str]()
    for kind, given, made in results:
        if kind not in having("moves") or kind in ("Cast", "CastLike", "Pad", "Dropout"):
            continue
        known = {x for v in _arrays(given.values()) for x in v.reshape(-1).tolist()}
        for value in _arrays(made):
            found = value.reshape(-1).tolist()
            assert known.issuperset(found), kind
            assert kind not in having("whole") or len(found) == next(iter(given.values())).size, kind
            seen.add(kind)
    assert len(seen) > 12


def test_results_within_the_first_operand() -> None:
    """Traits `within` and `signed` hold for the results of a runtime."""
    checked = set()
    for op, fed, made in _results():
        reads = [*fed.values()]
        if not all(isinstance(x, np.ndarray) and x.dtype.kind in "fiu" and x.size for x in (*reads[:1], made[0])):
            continue
        if op in having("within"):
            ends = reads[0].min() - 1e-5, reads[0].max() + 1e-5
            assert ends[0] <= made[0].min() <= made[0].max() <= ends[1], op
            checked.add(op)
        if op in having("signed") and all(x.min(initial=0) >= 0 for x in reads):
            assert made[0].min() >= 0, op
    assert checked >= having("within") - {"Upsample"}
