"""Counts of `onnxopt stats`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from rich.console import Console

import onnxopt
from onnxopt.analysis.stats import ModelStats, model_stats, model_work
from onnxopt.graph import read_model
from onnxopt.reporting import stats_table, stats_text
from tests.samples import parsed


def stats(source: str) -> ModelStats:
    return model_stats(read_model(parsed(source)))


def shown(found: ModelStats, width: int = 100) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(stats_table.one(found))
    return capture.get()


def test_bytes_and_parameters_by_hand() -> None:
    found = stats(
        "g (float[2] x) => (float[2] y)"
        "<float[2] w = {1, 2}, int64[3] k = {1, 2, 3}>"
        "{ c = Constant <value = float[2] {1, 2}> () a = Add (x, w) b = Add (a, c) y = Identity (b) }"
    )
    assert (found.nodes, found.initializers, found.parameters) == (4, 2, 2 + 3 + 2)
    assert found.bytes_by_type == {"int64": 24, "float": 16}


def test_a_constant_that_the_caller_of_a_function_decides_has_no_parameters() -> None:
    found = stats(
        '<ir_version: 8, opset_import: ["" : 17, "l" : 1]> g (float[2] x) => (float[2] y) { y = l.f <v = 3.0> (x) }'
        '<domain: "l", opset_import: ["" : 17]> f <v> (x) => (y) { c = Constant <value_float: float = @v> () '
        "y = Add (x, c) }"
    )
    assert (found.nodes, found.parameters) == (3, 0)


def test_sparse_initializers_count_with_what_they_store() -> None:
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "s"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
            sparse_initializer=[
                helper.make_sparse_tensor(
                    numpy_helper.from_array(np.ones(2, np.float32), "s"),
                    numpy_helper.from_array(np.array([0, 4], np.int64), "s_indices"),
                    [2, 3],
                )
            ],
        )
    )
    found = model_stats(read_model(proto))
    assert (found.initializers, found.parameters) == (1, 2)


def test_data_files_of_any_attribute_are_on_disk(tmp_path: Path) -> None:
    (tmp_path / "more.bin").write_bytes(b"\0" * 400)
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[100], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="more.bin")
    node = helper.make_node("Opaque", ["x"], ["y"], domain="local")
    node.attribute.append(AttributeProto(name="table", type=AttributeProto.TENSOR, t=tensor))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets), tmp_path / "m.onnx")
    assert onnxopt.stats(tmp_path / "m.onnx").file_bytes == (tmp_path / "m.onnx").stat().st_size + 400


def test_scopes_of_unnamed_owners_are_told_apart() -> None:
    branch = "then_branch = t () => (float[2] r) { r = Relu (x) }, else_branch = e () => (float[2] s) { s = Neg (x) }"
    found = stats(
        f"g (bool b, float[2] x) => (float[2] y, float[2] z) {{ y = If <{branch}> (b) z = If <{branch}> (b) }}"
    )
    assert sorted(found.nodes_by_scope) == [
        "main",
        "main / If / else_branch",
        "main / If / else_branch (2)",
        "main / If / then_branch",
        "main / If / then_branch (2)",
    ]


def test_names_are_not_markup() -> None:
    node = helper.make_node("Q", ["x"], ["y"], domain="[red]a")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    proto = helper.make_model(
        helper.make_graph([node], "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("[red]a", 1)],
    )
    found = model_stats(read_model(proto))
    assert "[red]a::Q" in shown(found)
    assert "\\[red]a::Q" in stats_text.markdown(found)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (10, 10, ""),
        (0, 3, "new"),
        (100, 30, "-70%"),
        (1, 42, "×42"),
        (100_000, 1, "-99.9%"),
        (100_000, 99_999, "-0.0%"),
    ],
)
def test_shares_say_that_something_changed_and_that_something_is_left(before: int, after: int, text: str) -> None:
    assert stats_text.share(before, after) == text


@pytest.mark.parametrize(
    ("signature", "note"),
    [
        ("(float[N] x) => (float[N] y)", "MACs, FLOPs and memory are a lower bound: the sizes of 1 node are not known"),
        ("(float[4] x) => (float[4] y)", ""),
    ],
)
def test_a_note_is_whole_by_itself(signature: str, note: str) -> None:
    text = f"g {signature} {{ y = Sin (x) }}"
    model = read_model(parsed(text))
    found = stats_text.notes(replace(model_stats(model), work=model_work(model)))
    assert [line for line in found if "bound" in line] == ([f"{note} (--dim, --shape)"] if note else [])
