"""Operands of unusual rank, size and axes at the anchor of every rule.

A rule may take for granted what onnx's checker asks for: what it raises on other models is said of the model. What the
checker lets pass, rules have to decline. `make fuzz` asks all cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from onnxopt import optimize
from onnxopt.errors import ModelError, OnnxOptError
from onnxopt.proto.messages import Array
from tests.cases.test_cases import CASES, turn

EVERY: Final = 1 if int(os.environ.get("ONNXOPT_FUZZ", "0")) > 300 else 12
Change = Callable[[ModelProto], None]


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for attribute in (a for node in graph.node for a in node.attribute):
        for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            yield from graphs(body)


def nodes(model: ModelProto) -> Iterator[NodeProto]:
    for graph in graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def inputs_of_rank(rank: int) -> Change:
    def change(model: ModelProto) -> None:
        for value in (v for graph in graphs(model.graph) for v in graph.input if v.type.HasField("tensor_type")):
            value.type.tensor_type.shape.SetInParent()
            del value.type.tensor_type.shape.dim[rank:]

    return change


def constants(new: Callable[[Array], Array], integers: bool | None = None) -> Change:
    def change(model: ModelProto) -> None:
        stored = [t for graph in graphs(model.graph) for t in graph.initializer]
        for tensor in [*stored, *(a.t for n in nodes(model) for a in n.attribute if a.HasField("t"))]:
            array = numpy_helper.to_array(tensor) if tensor.data_type != TensorProto.STRING else np.zeros(0)
            if array.size and integers in (None, array.dtype == np.int64):
                tensor.CopyFrom(numpy_helper.from_array(new(array), tensor.name))

    return change


def attributes(number: int) -> Change:
    def change(model: ModelProto) -> None:
        for attribute in (a for node in nodes(model) for a in node.attribute if a.name != "to"):
            if attribute.type == onnx.AttributeProto.INT:
                attribute.i = number
            attribute.ints[:] = [number] * len(attribute.ints)

    return change


def first(array: Array) -> Array:
    return array.reshape(-1)[0].reshape(())


def empty_from(at: int, step: int) -> Change:
    """Returns empty constants from one on, at intervals: operands of an operator beside them have elements."""

    def change(model: ModelProto) -> None:
        turns = count()
        constants(lambda a: a.reshape(-1)[:0] if next(turns) % step == at else a)(model)

    return change


def everything_a_scalar(model: ModelProto) -> None:
    inputs_of_rank(0)(model)
    constants(first)(model)


def no_attributes(model: ModelProto) -> None:
    for node in nodes(model):
        kept = [a for a in node.attribute if a.HasField("g") or a.graphs]
        del node.attribute[:]
        node.attribute.extend(kept)


def first_operand_only(model: ModelProto) -> None:
    for node in nodes(model):
        del node.input[1:]


CHANGES: Final[dict[str, Change]] = {
    "inputs are scalars": inputs_of_rank(0),
    "inputs are vectors": inputs_of_rank(1),
    "constants are scalars": constants(first),
    "all are scalars": everything_a_scalar,
    "constants are empty": constants(lambda a: a.reshape(-1)[:0]),
    **{f"of {step} constants one is empty, from {at}": empty_from(at, step) for step in (2, 3) for at in range(step)},
    "integers are none": constants(lambda a: a[:0] if a.ndim else a, True),
    "integers are a table": constants(lambda a: a.reshape(1, *a.shape), True),
    "an axis in front": constants(lambda a: a.reshape(1, *a.shape), False),
    "integers are 99": constants(lambda a: np.full_like(a, 99), True),
    "integers are -1": constants(lambda a: np.full_like(a, -1), True),
    "attributes are 0": attributes(0),
    "attributes are -1": attributes(-1),
    "attributes are 99": attributes(99),
    "no attributes": no_attributes,
    "one operand": first_operand_only,
}


@pytest.mark.usefixtures("kept_worker")
@pytest.mark.parametrize("name", CHANGES)
def test_no_rule_fails(name: str) -> None:
    change, at = CHANGES[name], list(CHANGES).index(name)
    asked = refused = 0
    for case in (c for c in CASES if turn(c) % EVERY == at % EVERY):
        model = case.build()
        change(model)
        asked += 1
        try:
            optimize(model, pipeline=f"fixpoint({','.join(case.passes)})", verify=False)
        except ModelError:
            refused += 1
        except OnnxOptError as e:
            raise AssertionError(case.name) from e
    assert asked > refused, "no rule was asked"
