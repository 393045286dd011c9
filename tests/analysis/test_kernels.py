"""The numpy kernels against onnxruntime, bit for bit."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxopt.analysis import kernels
from onnxopt.graph import read_model
from onnxopt.proto.messages import element_type
from tests.runtime import plain_session

F = np.array([[1.5, -0.0, 3.25], [np.inf, -2.0, 1e-40]], np.float32)
I = np.array([[7, -7, 0], [3, 5, -(2**40)]], np.int64)
U = np.array([0, 1, 200], np.uint8)
B = np.array([[True, False, True]])


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    *((op, [F, F[:, :1] + 2], {}) for op in ("Add", "Sub", "Mul", "Div", "Less", "Greater", "Equal", "LessOrEqual")),
    *((op, [I, ints(2, -2, 3)], {}) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "GreaterOrEqual")),
    *((op, [U, U[::-1].copy()], {}) for op in ("Add", "Sub", "Mul")),
    *((op, [F.astype(np.float16), F.astype(np.float16)], {}) for op in ("Add", "Mul", "Div")),
    *((op, [np.abs(F)], {}) for op in ("Neg", "Abs", "Sqrt", "Floor", "Ceil", "Reciprocal")),
    *((op, [B, ~B], {}) for op in ("And", "Or", "Xor")),
    ("Not", [B], {}),
    ("Where", [B, F, F + 1], {}),
    ("Identity", [F], {}),
    *(("Cast", [F[:, :1]], {"to": to}) for to in (1, 10, 11, 9)),
    ("Cast", [np.array([1.9, -1.9, 100.0], np.float32)], {"to": 7}),
    ("Cast", [I], {"to": 1}),
    ("Cast", [I], {"to": 6}),
    ("Cast", [I], {"to": 3}),
    ("Cast", [B], {"to": 7}),
    ("Shape", [F], {"start": -1}),
    ("Size", [F], {}),
    ("Reshape", [F, ints(-1, 2)], {}),
    ("Reshape", [F, ints(0, 3, 1)], {}),
    ("Flatten", [F.reshape(1, 2, 3)], {"axis": -1}),
    ("Squeeze", [F.reshape(1, 2, 1, 3)], {}),
    ("Squeeze", [F.reshape(1, 2, 1, 3), ints(-2)], {}),
    ("Unsqueeze", [F, ints(0, -1)], {}),
    ("Transpose", [F], {}),
    ("Transpose", [F.reshape(1, 2, 3)], {"perm": [2, 0, 1]}),
    ("Concat", [F, F], {"axis": -1}),
    ("Gather", [F, np.array([[0, -1]], np.int64)], {"axis": 1}),
    ("Gather", [F, np.array(1, np.int64)], {}),
    ("Slice", [F, ints(-1), ints(-(2**63)), ints(1), ints(-2)], {}),
    ("Slice", [F, ints(2**40), ints(-(2**40)), ints(1), ints(-1)], {}),
    ("Slice", [F, ints(1, 0), ints(2**63 - 1, -1)], {}),
    ("Slice", [F, ints(-10), ints(-20), ints(1), ints(-1)], {}),
    ("Expand", [F[:, :1], ints(3, 1, 4)], {}),
    ("Tile", [F, ints(2, 3)], {}),
    ("Tile", [B, ints(0, 1)], {}),
    ("ConstantOfShape", [ints(2, 0, 3)], {}),
    ("Range", [np.array(5, np.int64), np.array(-4, np.int64), np.array(-2, np.int64)], {}),
    ("Range", [np.array(0, np.int64), ints(4), np.array(1, np.int64)], {}),
]


def model(op: str, arrays: list[np.ndarray], attributes: dict[str, Any], outputs: int = 1) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    inputs = [helper.make_tensor_value_info(n, element_type(a), a.shape) for n, a in zip(names, arrays, strict=True)]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=o) for o in node.output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ours(proto: onnx.ModelProto, arrays: list[np.ndarray]) -> list[np.ndarray] | None:
    node = read_model(proto).graph.first
    assert node is not None
    return kernels.evaluate(node, arrays, 17)


@pytest.mark.parametrize(("op", "arrays", "attributes"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_the_same_bits(op: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> None:
    proto = model(op, arrays, attributes)
    (expected,) = plain_session(proto).run(None, {f"x{i}": a for i, a in enumerate(arrays)})
    found = ours(proto, arrays)
    assert found is not None, "the kernel did not answer"
    assert found[0].dtype == expected.dtype
    assert found[0].shape == expected.shape
    if expected.dtype.kind == "f":
        same = (expected == found[0]) & (np.signbit(expected) == np.signbit(found[0]))
        assert (same | np.isnan(expected) & np.isnan(found[0])).all()
    else:
        assert np.array_equal(found[0], expected)


def test_split_gives_all_parts() -> None:
    found = ours(model("Split", [I, ints(1, 2)], {"axis": 1}, outputs=2), [I, ints(1, 2)])
    assert found is not None
    assert [f.shape for f in found] == [(2, 1), (2, 2)]


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("Cast", [np.array([np.nan, 1e30], np.float32)], {"to": 7}),  # undefined in C
        ("Cast", [np.array([1e-8], np.float64)], {"to": 10}),  # some round twice
        ("Max", [F, F], {}),  # which NaN wins
        ("ReduceSum", [F, ints(0)], {}),  # the order of a float sum
        ("Where", [B, F + 1, -np.zeros_like(F)], {}),  # whether -0.0 is 0.0
        ("Gather", [F, ints(9)], {}),
        ("Slice", [F, ints(2), ints(2**63 - 1), ints(1), ints(-1)], {}),  # nothing, or everything
        ("Slice", [F, ints(0), ints(1), ints(0, 1)], {}),
        ("Slice", [F, ints(0, 0), ints(1, 1), ints(0, -2)], {}),
        ("Reshape", [F, ints(4, 2)], {}),
        ("Tile", [F, ints(2)], {}),
        ("Exp", [F], {}),
    ],
)
def test_what_is_left_to_a_runtime(op: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> None:
    assert ours(model(op, arrays, attributes), arrays) is None


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_division_by_zero_is_nobodys_to_try(op: str) -> None:
    with pytest.raises(kernels.Invalid):
        ours(model(op, [I, ints(1, 0, 1)], {}), [I, ints(1, 0, 1)])


def test_fills_take_no_memory() -> None:
    found = ours(model("ConstantOfShape", [ints(10**6, 10**6)], {}), [ints(10**6, 10**6)])
    assert found is not None
    assert set(found[0].strides) == {0}


FILL = np.broadcast_to(np.array(7, np.int32), (1 << 24,))


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("Gather", [np.broadcast_to(F[0, 0], (3, 1 << 40)), ints(5, -1)], {"axis": -1}),
        ("Gather", [np.broadcast_to(F[0, 0], (1 << 40,)), np.array(1 << 39)], {"axis": 0}),
        ("Slice", [np.broadcast_to(F[0, 0], (1 << 40,)), ints(3), ints(1 << 39), ints(0), ints(1 << 38)], {}),
        ("Cast", [np.broadcast_to(F[0, 0], (1 << 24,))], {"to": TensorProto.INT8}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_fills_are_not_written_out(op: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> None:
    """A file of a few bytes may say any size."""
    proto = model(op, [a[..., :1] if a.ndim else a for a in arrays], attributes)
    tracemalloc.start()
    found = ours(proto, arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None, "the kernel did not answer"
    assert found[0].min() == found[0].max()
    node = read_model(proto).graph.first
    assert node is not None
    assert peak < 1.1 * kernels.result_bytes(node, arrays) + (1 << 20)
