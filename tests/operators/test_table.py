"""The table of operators, held against onnx's schemas and against what onnxruntime computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as rt
import pytest

from onnxopt.operators import (
    BROADCASTING,
    COMMUTATIVE,
    FORMS,
    FRACTIONS,
    HOMOGENEOUS,
    IN_PLACE,
    IN_RANGE,
    LIKE_FIRST,
    LINEAR,
    MULTIDIRECTIONAL,
    NEAR_ZERO,
    NONNEGATIVE,
    PICKS,
    SAME_ORDER,
    TELLS_ZERO,
    UNARY,
    VARIADIC,
    broadcasts,
    of_form,
    with_trait,
)
from tests.node_cases import Case, cases
from tests.runtime import plain_session

Array = np.ndarray[Any, Any]
SCHEMAS = {s.name: s for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
FLOATS = (np.float32, np.float64)
NUMBERS = (*FLOATS, np.int64)
# Operators for which onnx has no test of floats that onnxruntime runs, and why.
UNTRIED = {
    "CumProd": "no kernel",
    "GlobalLpPool": "onnx has no test of it",
    "QuantizeLinear": "onnx's tests are of a newer opset",
    "Upsample": "no longer in the standard",
}


class Call(NamedTuple):
    """A test of onnx's for one operator: `run` gives the first result for another first operand."""

    x: Array
    run: Callable[[Array], Array]
    case: Case


def _started(case: Case) -> Call | None:
    """The call of a test; None where the operator's first operand has no numbers, or the runtime lacks a kernel."""
    graph = case.model.graph
    if len(graph.node) != 1 or not graph.node[0].input or graph.node[0].input[0] not in case.feeds:
        return None
    feeds = {name: np.asarray(value) for name, value in case.feeds.items() if not isinstance(value, list)}
    first = graph.node[0].input[0]
    x = feeds.get(first, np.empty(0, object))
    if x.dtype not in NUMBERS or not x.size or graph.output[0].name != graph.node[0].output[0]:
        return None
    made = graph.output[0].type.tensor_type.elem_type
    if made and onnx.helper.tensor_dtype_to_np_dtype(made).isbuiltin != 1:
        return None  # onnxruntime gives numpy none of these types
    try:
        session = plain_session(case.model)
    except (rt.capi.onnxruntime_pybind11_state.Fail, rt.capi.onnxruntime_pybind11_state.NotImplemented):
        return None
    except rt.capi.onnxruntime_pybind11_state.InvalidGraph:
        return None  # of an opset that this runtime does not know

    def run(value: Array) -> Array:
        found: Array = session.run(None, {**feeds, first: value.astype(x.dtype)})[0]
        return found

    return Call(np.asarray(x), run, case)


@cache
def _calls() -> dict[str, list[Call]]:
    found = defaultdict[str, list[Call]](list)
    for case in cases():
        op = case.model.graph.node[0].op_type
        if op in FORMS and len(found[op]) < 6 and (call := _started(case)) is not None:
            found[op].append(call)
    return found


def calls(op: str) -> Iterator[Call]:
    """Tests of an operator. Fails where there is none, and nobody says why."""
    found = _calls()[op]
    assert found or op in UNTRIED, op
    yield from found


def drawn(call: Call, seed: int = 0) -> Array:
    """Numbers of both signs, in the shape of the first operand, all different; floats have sizes about 1."""
    found = np.random.default_rng(seed).permutation(call.x.size).reshape(call.x.shape) - call.x.size // 2
    return 4 * found if call.x.dtype == np.int64 else (found + 0.25) / 8


def test_every_operator_is_one_of_the_standard() -> None:
    assert set(FORMS) <= set(SCHEMAS)
    # The rest: sequences, strings, images, losses, windows and what is new.
    assert len(FORMS) > 150


def test_operators_with_one_result_that_is_always_there() -> None:
    single, several = onnx.defs.OpSchema.FormalParameterOption.Single, set()
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and [o.option for o in schema.outputs] != [single]:
            several.add(schema.name)
    assert frozenset(FORMS) - several == frozenset(FORMS) - with_trait("results")


def test_forms_have_the_operands_that_schemas_say() -> None:
    for op in UNARY:
        assert SCHEMAS[op].max_input == 1, op
    for op in BROADCASTING:
        variadic = SCHEMAS[op].max_input > 3
        assert variadic == (op in VARIADIC), op
        assert variadic or SCHEMAS[op].min_input == (3 if op == "Where" else 2), op


@pytest.mark.parametrize("op", sorted(UNARY))
def test_unary_operators_compute_each_element_alone(op: str) -> None:
    for call in calls(op) if op not in ("BitwiseNot", "Not") else ():
        x = drawn(call)
        order = np.random.default_rng(1).permutation(x.size)
        moved = call.run(x.reshape(-1)[order].reshape(x.shape))
        np.testing.assert_array_equal(moved.reshape(-1), call.run(x).reshape(-1)[order], err_msg=call.case.name)


@pytest.mark.parametrize("op", sorted(PICKS))
def test_operators_that_pick_make_no_new_elements(op: str) -> None:
    for call in calls(op):
        x = drawn(call).astype(call.x.dtype)
        assert set(call.run(x).reshape(-1).tolist()) <= set(x.reshape(-1).tolist()), call.case.name


@pytest.mark.parametrize("op", [*SAME_ORDER, "Identity"])
def test_operators_that_keep_the_order(op: str) -> None:
    for call in calls(op):
        x = drawn(call).astype(call.x.dtype)
        np.testing.assert_array_equal(call.run(x).reshape(-1), x.reshape(-1), err_msg=call.case.name)


@pytest.mark.parametrize("op", sorted(LIKE_FIRST))
def test_results_that_have_the_shape_of_the_first_operand(op: str) -> None:
    for call in calls(op) if op not in _WITHOUT_FLOATS else ():
        assert call.run(call.x).shape == call.x.shape, call.case.name


_WITHOUT_FLOATS = {"BitwiseNot", "Not", "DequantizeLinear", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}


@pytest.mark.parametrize("op", sorted(HOMOGENEOUS))
def test_factors_pass(op: str) -> None:
    """By a power of two, which changes no digit: bit for bit."""
    for call in calls(op):
        if op == "Pad" or call.x.size == 0:
            continue
        for seed in range(3):
            x = drawn(call, seed)
            for c in (4.0, 0.5, *((-2.0,) if op in LINEAR else ())):
                np.testing.assert_array_equal(call.run(c * x), c * call.run(x), err_msg=f"{call.case.name} {c}")


@pytest.mark.parametrize("op", sorted(NONNEGATIVE))
def test_what_is_never_negative(op: str) -> None:
    for call in calls(op):
        for scale in (1.0, 1e-3, 1e3):
            found = call.run(scale * drawn(call))
            assert (found >= 0).all() and (op not in FRACTIONS or (found <= 1).all()), call.case.name


@pytest.mark.parametrize("op", sorted(NEAR_ZERO - BROADCASTING - of_form("update", "join") - {"Pad"}))
def test_small_numbers_stay_small(op: str) -> None:
    for call in calls(op):
        assert not call.run(np.zeros_like(call.x)).any(), call.case.name
        small = call.run(drawn(call) * 1e-12)
        assert np.nanmax(np.abs(small), initial=0) <= 1e-4, call.case.name  # NaN: the root of what is below zero


@pytest.mark.parametrize("op", sorted(IN_RANGE - BROADCASTING))
def test_results_in_the_range_of_what_is_read(op: str) -> None:
    for call in calls(op):
        others = [v for v in call.case.feeds.values() if isinstance(v, np.ndarray) and v.dtype in FLOATS]
        x = drawn(call) * 1e3
        largest = max(np.abs(v).max(initial=0) for v in (x, *others))
        assert np.abs(call.run(x)).max(initial=0) <= largest, call.case.name


@pytest.mark.parametrize("op", sorted(TELLS_ZERO & (UNARY | {"ArgMax", "ArgMin", "ReduceLogSum", "Hardmax"})))
def test_operators_that_tell_zero_from_a_small_number(op: str) -> None:
    for call in calls(op):
        x = np.zeros_like(call.x)
        x.reshape(-1)[-1] = 1e-30 if op != "Round" else 0.5
        y = np.zeros_like(call.x)
        y.reshape(-1)[-1] = -1e-30 if op != "Round" else 0.5001
        with np.errstate(all="ignore"):
            a, b = call.run(x).astype(np.float64), call.run(y).astype(np.float64)
            far = ~(np.abs(a - b) < 0.5)  # NaN and infinity, too
        assert far.any(), call.case.name


def _binary(op: str, a: Array, b: Array) -> Array:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, ["a", "b"] if op != "Where" else ["c", "a", "b"], ["y"])],
        "g",
        [
            onnx.helper.make_tensor_value_info("a", onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape),
            onnx.helper.make_tensor_value_info("b", onnx.helper.np_dtype_to_tensor_dtype(b.dtype), b.shape),
        ],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(np.array([[True], [False]]), "c")] if op == "Where" else [],
    )
    if op == "BitShift":
        graph.node[0].attribute.append(onnx.helper.make_attribute("direction", "LEFT"))
    graph.output[0].CopyFrom(_typed(op, a, b))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    found: Array = plain_session(model).run(None, {"a": a, "b": b})[0]
    return found


def _typed(op: str, a: Array, b: Array) -> onnx.ValueInfoProto:
    returns_bool = op in with_trait("comparison") or op in ("And", "Or", "Xor")
    kind = onnx.TensorProto.BOOL if returns_bool else onnx.helper.np_dtype_to_tensor_dtype(a.dtype)
    return onnx.helper.make_tensor_value_info("y", kind, np.broadcast_shapes(a.shape, b.shape))


def _operands(op: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    if op in ("And", "Or", "Xor"):
        return rng.integers(0, 2, (2, 3)).astype(bool), rng.integers(0, 2, 3).astype(bool)
    if op.startswith("Bit"):
        return rng.integers(0, 9, (2, 3)).astype(np.uint8), rng.integers(0, 4, 3).astype(np.uint8)
    if op == "Mod":
        return rng.integers(-9, 9, (2, 3)), rng.integers(1, 9, 3)
    return rng.standard_normal((2, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)


@pytest.mark.parametrize("op", sorted(BROADCASTING))
def test_operands_broadcast(op: str) -> None:
    a, b = _operands(op)
    wide = np.ascontiguousarray(np.broadcast_to(b, a.shape))
    np.testing.assert_array_equal(_binary(op, a, b), _binary(op, a, wide))
    if op in MULTIDIRECTIONAL:
        np.testing.assert_array_equal(_binary(op, b, a), _binary(op, wide, a))
    else:
        assert "unidirectional" in SCHEMAS[op].doc


@pytest.mark.parametrize("op", sorted(BROADCASTING))
def test_the_order_of_operands(op: str) -> None:
    a, b = _operands(op)
    b = np.ascontiguousarray(np.broadcast_to(b, a.shape))
    one, other = _binary(op, a, b), _binary(op, b, a)
    assert np.array_equal(one, other) == (op in COMMUTATIVE or op == "Mean")


def test_operators_broadcast_from_an_opset_on() -> None:
    assert broadcasts("Add", 7) and not broadcasts("Add", 6)
    assert broadcasts("Max", 8) and not broadcasts("Max", 7)
    assert not broadcasts("MatMul", 18)


def test_an_operator_has_the_traits_of_its_form() -> None:
    assert "Transpose" in HOMOGENEOUS, "what is linear has it, too"
    assert UNARY | {"Identity"} == IN_PLACE
