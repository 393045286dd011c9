"""Reports of large models cost constant work per node, and compute nothing for hidden parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from onnxopt.comparison import compare as comparing
from onnxopt.comparison import compare_files, drawing
from onnxopt.comparison.history import repeat
from onnxopt.comparison.records import History, graph_record
from onnxopt.graph.node import Node
from onnxopt.io import load, save
from onnxopt.optimizer import OptimizeOptions, optimize_model
from onnxopt.reporting.html import page
from tests.steps import lines_executed


def saved(path: Path, nodes: list[onnx.NodeProto], last: str) -> Path:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", last)]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [ends[0], condition], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def chain(path: Path, count: int, name: str = "v") -> Path:
    values = ["x", *(f"{name}{i}" for i in range(count))]
    ops = ("Neg", "Identity", "Sin")
    nodes = [helper.make_node(ops[i % 3], [values[i]], [values[i + 1]], values[i + 1]) for i in range(count)]
    return saved(path, nodes, values[-1])


def branches(path: Path, count: int) -> Path:
    nodes, x = [], "x"
    for i in range(count):
        bodies = {}
        for key, op in (("then_branch", "Neg"), ("else_branch", "Sin")):
            made = helper.make_tensor_value_info(f"{op}{i}", TensorProto.FLOAT, [4])
            bodies[key] = helper.make_graph([helper.make_node(op, [x], [made.name])], key, [], [made])
        nodes.append(helper.make_node("If", ["c"], [f"v{i}"], f"v{i}", **bodies))
        x = f"v{i}"
    return saved(path, nodes, x)


def optimized(source: Path) -> Path:
    model, result = load(source), source.with_suffix(".out.onnx")
    optimize_model(model, OptimizeOptions())
    save(model, result)
    return result


def compared(source: Path) -> dict[str, Any]:
    return compare_files(source, optimized(source), repeat(source)).to_dict()


@pytest.mark.parametrize("family", [chain, branches])
def test_a_report_costs_the_same_for_each_node(
    family: Callable[[Path, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (comparing, drawing):
        monkeypatch.setattr(module, "LARGE", 20)
    counted = []
    for count in (40, 400):
        source = family(tmp_path / f"{count}.onnx", count)
        result, history = optimized(source), repeat(source)

        def told(source: Path = source, result: Path = result, history: History = history) -> None:
            assert "large" in str(compare_files(source, result, history).to_dict()["notes"])

        counted.append(lines_executed(told))
    assert counted[1] / counted[0] < 15


def test_nothing_is_inferred_for_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (comparing, drawing):
        monkeypatch.setattr(module, "LARGE", 50)
    monkeypatch.setattr(comparing, "infer", None)
    data = compared(chain(tmp_path / "m.onnx", 2000))
    before = data["graphs"][0]
    assert ["x", "float[4]"] in before["values"], "what the file says is shown"
    assert len(before["nodes"]) < 1000


def test_a_page_stays_below_5_mb_whatever_the_names(tmp_path: Path) -> None:
    data = compared(chain(tmp_path / "m.onnx", 1000, name="v" * 1200))
    assert "a box stands for a block" in str(data["notes"])
    assert len(page(data | {"times": False, "version": ""})) < 5_000_000


def test_a_record_reads_only_the_position_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(chain(tmp_path / "m.onnx", 5))
    with monkeypatch.context() as m:
        m.setattr(Node, "__repr__", None)
        m.setattr(Node, "name", None)
        record = graph_record(model)
    assert record.nodes[0].text == 'Neg "v0" -> v0'
    assert record.nodes[0].attributes == ()
    assert record.signature() == graph_record(load(tmp_path / "m.onnx")).signature()
    assert record.signature() != graph_record(load(chain(tmp_path / "n.onnx", 5, "w"))).signature()
