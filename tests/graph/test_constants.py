"""What a Constant holds is said by the attributes that the standard gives it; others say nothing. A constant that
nobody reads is not kept decoded."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

from onnxopt.errors import ModelError
from onnxopt.graph import read_model
from onnxopt.graph.node import Node

FORMS: list[tuple[str, Any, Any]] = [
    ("value", numpy_helper.from_array(np.array([1, 2], np.int8)), np.array([1, 2], np.int8)),
    ("value_float", 0.5, np.float32(0.5)),
    ("value_floats", [0.5, 1.0], np.array([0.5, 1.0], np.float32)),
    ("value_int", 3, np.int64(3)),
    ("value_ints", [3, 4], np.array([3, 4])),
    ("value_string", "a", np.array("a", object)),
    ("value_strings", ["a", "b"], np.array(["a", "b"], object)),
]

READ_TWICE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Add (x, w) y = Mul (a, w) }"""


def constant(*attributes: tuple[str, Any]) -> Node:
    made = helper.make_node("Constant", [], ["y"])
    made.attribute.extend(helper.make_attribute(name, value) for name, value in attributes)
    graph = helper.make_graph([made], "g", [], [helper.make_tensor_value_info("y", 0, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return next(iter(read_model(model).graph))


@pytest.mark.parametrize(("name", "value", "held"), FORMS, ids=[name for name, _, _ in FORMS])
def test_an_unknown_attribute_says_nothing(name: str, value: Any, held: Any) -> None:
    for order in ([("foo", 7), (name, value)], [(name, value), ("foo", 7)]):
        node = constant(*order)
        assert node.holds_array
        found = node.constant_array()
        assert found.dtype == held.dtype and np.array_equal(found, held) and not found.flags.writeable


@pytest.mark.parametrize("attributes", [(), (("foo", 7),), (("value_float", 7),)])
def test_without_one_that_is_known_it_is_refused(attributes: Sequence[tuple[str, Any]]) -> None:
    with pytest.raises(ModelError, match="has no value"):
        constant(*attributes)


def test_an_attribute_of_another_type_says_nothing() -> None:
    assert constant(("value_float", 7), ("value_int", 3)).constant_array() == 3


def test_what_nobody_reads_any_more_is_not_kept_and_can_be_read_again() -> None:
    model = read_model(parser.parse_model(READ_TWICE))
    weights = model.graph.initializers["w"]
    first, second = list(model.graph)
    held = weights.array
    second.set_input(1, second.inputs[0])
    assert weights.array is held, "one still reads it"
    first.set_input(1, first.inputs[0])
    gone = weakref.ref(held)
    del held
    assert gone() is None
    assert weights.array.tolist() == [1, 2]


def test_a_constant_is_made_of_what_numpy_takes() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) { y = Relu (x) }'
    graph = read_model(parser.parse_model(text)).graph
    for given, kind, shape in (
        ([0, -1], "int64", (2,)),
        (3, "int64", ()),
        (np.float32(3), "float32", ()),
        (0.5, "float64", ()),
    ):
        made = graph.constant(given).array
        assert (str(made.dtype), made.shape) == (kind, shape)
