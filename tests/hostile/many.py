# ruff: noqa: E501
"""Models with very many of one kind of element, against algorithms of quadratic cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.hostile.bases import base

Change = Callable[[ModelProto, int], None]
COUNT = 20_000


def many(count: int = COUNT) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield (name, function that fills the folder). The large models are made at the call."""
    for change in CHANGES:
        yield f"many: {change.__name__.replace('_', ' ')}", partial(_fill, change, count)


def _fill(change: Change, count: int, here: Path) -> None:
    model = base("calls" if "function" in change.__name__ else "chain")
    change(model, count)
    (here / "m.onnx").write_bytes(model.SerializeToString())


def attributes(model: ModelProto, n: int) -> None:
    model.graph.node[0].attribute.extend(helper.make_attribute(f"a{i}", i) for i in range(n))


def attributes_of_one_name(model: ModelProto, n: int) -> None:
    model.graph.node[0].attribute.extend(helper.make_attribute("a", i) for i in range(n))


def numbers_of_an_attribute(model: ModelProto, n: int) -> None:
    model.graph.node.append(helper.make_node("Foreign", ["x"], ["f"], domain="l", a=list(range(20 * n))))


def texts_of_an_attribute(model: ModelProto, n: int) -> None:
    model.graph.node.append(helper.make_node("Constant", [], ["f"], value_strings=[f"t{i}" for i in range(n)]))


def bodies_of_a_node(model: ModelProto, n: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["o"])], "b", [], [helper.make_tensor_value_info("o", 1, None)]
    )
    model.graph.node.append(helper.make_node("Foreign", ["x"], ["f"], domain="l", bodies=[body] * (n // 10)))


def inputs_of_a_node(model: ModelProto, n: int) -> None:
    model.graph.node.append(helper.make_node("Sum", ["x"] * n, ["f"]))
    model.graph.node.append(helper.make_node("Concat", ["x", "f"] * (n // 2), ["g"], axis=0))


def constants_of_a_node(model: ModelProto, n: int) -> None:
    model.graph.initializer.extend(numpy_helper.from_array(np.full(1, i, np.float32), f"c{i}") for i in range(n))
    model.graph.node.append(helper.make_node("Concat", [f"c{i}" for i in range(n)], ["g"], axis=0))
    model.graph.node.append(helper.make_node("Add", ["g", "x"], ["h"]))


def outputs_of_a_node(model: ModelProto, n: int) -> None:
    model.graph.node.append(helper.make_node("Split", ["w"], [f"s{i}" for i in range(n)], axis=0))
    model.graph.node.append(helper.make_node("Concat", [f"s{i}" for i in range(n)], ["g"], axis=0))


def readers_of_a_value(model: ModelProto, n: int) -> None:
    model.graph.node.extend(helper.make_node(("Relu", "Neg", "Abs")[i % 3], ["x"], [f"r{i}"]) for i in range(n))
    model.graph.output.extend(helper.make_tensor_value_info(f"r{i}", 1, ["N", 4]) for i in range(n))


def readers_of_a_constant(model: ModelProto, n: int) -> None:
    model.graph.node.extend(helper.make_node("Add", [f"r{i - 1}" if i else "x", "b"], [f"r{i}"]) for i in range(n))
    model.graph.output.append(helper.make_tensor_value_info(f"r{n - 1}", 1, ["N", 4]))


def the_same_node(model: ModelProto, n: int) -> None:
    model.graph.node.extend(helper.make_node("MatMul", ["x", "w"], [f"r{i}"]) for i in range(n))
    model.graph.output.extend(helper.make_tensor_value_info(f"r{i}", 1, ["N", 4]) for i in range(n))


def inputs(model: ModelProto, n: int) -> None:
    model.graph.input.extend(helper.make_tensor_value_info(f"i{k}", 1, [f"d{k}"]) for k in range(n))


def outputs_of_one_name(model: ModelProto, n: int) -> None:
    model.graph.output.extend(list(model.graph.output) * n)


def inputs_of_one_name(model: ModelProto, n: int) -> None:
    model.graph.input.extend(list(model.graph.input) * n)


def notes_on_types(model: ModelProto, n: int) -> None:
    model.graph.value_info.extend(helper.make_tensor_value_info(f"i{k % (n // 2)}", 1, [k]) for k in range(n))


def equal_weights(model: ModelProto, n: int) -> None:
    model.graph.initializer.extend(numpy_helper.from_array(np.ones(3, np.float32), f"c{i}") for i in range(n))
    model.graph.node.append(helper.make_node("Max", [f"c{i}" for i in range(n)], ["g"]))
    model.graph.node.append(helper.make_node("Identity", ["g"], ["h"]))


def weights_of_one_name(model: ModelProto, n: int) -> None:
    model.graph.initializer.extend(numpy_helper.from_array(np.ones(3, np.float32), "c") for i in range(n))


def opsets(model: ModelProto, n: int) -> None:
    model.opset_import.extend(helper.make_opsetid(f"d{i}", 1) for i in range(n))


def opsets_of_one_domain(model: ModelProto, n: int) -> None:
    model.opset_import.extend(helper.make_opsetid("d", 1 + i % 3) for i in range(n))


def metadata(model: ModelProto, n: int) -> None:
    for place in (model, model.graph, model.graph.node[0]):
        for i in range(n):
            place.metadata_props.add(key=f"k{i % (n // 2)}", value="v")


def quantization_notes(model: ModelProto, n: int) -> None:
    for _ in range(n):
        model.graph.quantization_annotation.add(tensor_name="w").quant_parameter_tensor_names.add(key="k", value="b")


def training_steps(model: ModelProto, n: int) -> None:
    for _ in range(n // 10):
        step = model.training_info.add()
        step.algorithm.node.add(op_type="Identity", input=["w"], output=["w2"])
        step.update_binding.add(key="w", value="w2")


def dims_of_a_weight(model: ModelProto, n: int) -> None:
    model.graph.initializer[0].dims[:] = [*model.graph.initializer[0].dims, *[1] * n]


def places_of_a_weight(model: ModelProto, n: int) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    for i in range(n):
        tensor.external_data.add(
            key=("location", "offset", "length", "k")[i % 4], value=("w.bin", "0", "64", "v")[i % 4]
        )


def names_that_are_taken(model: ModelProto, n: int) -> None:
    for name in ("y", "m", "w", "a", "x"):
        for end in ("_", "_float16_", "/", "_const_", ""):
            model.graph.node.extend(helper.make_node("Relu", ["x"], [f"{name}{end}{i}"]) for i in range(n // 25))
    model.graph.output.extend(helper.make_tensor_value_info(f"y_{i}", 1, ["N", 4]) for i in range(n // 25))


def functions(model: ModelProto, n: int) -> None:
    model.functions.extend(
        helper.make_function(
            "l", f"n{i}", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 17)]
        )
        for i in range(n)
    )


def functions_that_call_the_next(model: ModelProto, n: int) -> None:
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    for i in range(n):
        node = (
            helper.make_node(f"n{i + 1}", ["a"], ["b"], domain="l")
            if i < n - 1
            else helper.make_node("Relu", ["a"], ["b"])
        )
        model.functions.append(helper.make_function("l", f"n{i}", ["a"], ["b"], [node], sets))
    model.graph.node.append(helper.make_node("n0", ["x"], ["z"], domain="l"))


def calls_of_a_function(model: ModelProto, n: int) -> None:
    model.graph.node.extend(helper.make_node("h", ["x"], [f"r{i}"], domain="l") for i in range(n))
    model.graph.output.extend(helper.make_tensor_value_info(f"r{i}", 1, [2]) for i in range(n))


def parameters_of_a_function(model: ModelProto, n: int) -> None:
    model.functions[0].attribute.extend(f"k{i}" for i in range(n))
    model.functions[0].input.extend(f"i{i}" for i in range(n))


def sizes_of_one_name(model: ModelProto, n: int) -> None:
    for i in range(n):
        model.graph.input.append(helper.make_tensor_value_info(f"i{i}", 1, [f"N + {i}", "N"]))


def texts(model: ModelProto, n: int) -> None:
    model.graph.initializer.append(helper.make_tensor("t", TensorProto.STRING, [10 * n], [b"t"] * (10 * n)))
    model.graph.node.append(helper.make_node("Identity", ["t"], ["u"]))
    model.graph.output.append(helper.make_tensor_value_info("u", TensorProto.STRING, [10 * n]))


def sparse_weights(model: ModelProto, n: int) -> None:
    for i in range(n // 4):
        values = numpy_helper.from_array(np.array([1, 2], np.float32), f"sp{i}")
        indices = numpy_helper.from_array(np.array([0, 3], np.int64), "")
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
        model.graph.node.append(helper.make_node("Add", [f"q{i - 1}" if i else "x", f"sp{i}"], [f"q{i}"]))


CHANGES: tuple[Change, ...] = (
    attributes, attributes_of_one_name, numbers_of_an_attribute, texts_of_an_attribute, bodies_of_a_node, inputs_of_a_node,
    constants_of_a_node, outputs_of_a_node, readers_of_a_value, readers_of_a_constant, the_same_node, inputs,
    outputs_of_one_name, inputs_of_one_name, notes_on_types, equal_weights, weights_of_one_name, opsets,
    opsets_of_one_domain, metadata, quantization_notes, training_steps, dims_of_a_weight, places_of_a_weight,
    names_that_are_taken, functions, functions_that_call_the_next, calls_of_a_function, parameters_of_a_function,
    sizes_of_one_name, texts, sparse_weights,
)  # fmt: skip
