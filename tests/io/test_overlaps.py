"""Tensors that overlap in a data file overlap in the written file: 3 KiB never become terabytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxopt import optimize_file
from onnxopt.io.layout import spans

pytestmark = pytest.mark.usefixtures("kept_judge")
SIZE = 4 * 5000


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([], []),
        ([(0, 4), (4, 4)], [(0, 4), (4, 8)]),
        ([(0, 4), (2, 4), (5, 2), (7, 1)], [(0, 7), (0, 7), (0, 7), (7, 8)]),
        ([(9, 1), (0, 10), (2, 3)], [(0, 10), (0, 10), (0, 10)]),
        ([(0, 0), (0, 4), (4, 0)], [(0, 0), (0, 4), (4, 4)]),
        ([(8, 4), (0, 4), (8, 4)], [(8, 12), (0, 4), (8, 12)]),
    ],
)
def test_what_is_read_together(parts: list[tuple[int, int]], found: list[tuple[int, int]]) -> None:
    known = spans(("f", *part) for part in parts)
    assert [known["f", start, length] for start, length in parts] == found


def overlapping(folder: Path, places: list[tuple[int, int]]) -> Path:
    """A sum of the largest number of each tensor, which read so many numbers from there on."""
    np.random.default_rng(0).random(SIZE // 4, np.float32).tofile(folder / "w.bin")
    weights, nodes = [], [helper.make_node("Identity", ["x"], ["s0"])]
    for i, (start, count) in enumerate(places):
        tensor = TensorProto(name=f"w{i}", data_type=1, dims=[count], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", str(4 * start)), ("length", str(4 * count))):
            tensor.external_data.add(key=key, value=value)
        weights.append(tensor)
        nodes.append(helper.make_node("Mul", [f"w{i}", "x"], [f"m{i}"]))
        nodes.append(helper.make_node("ReduceMax", [f"m{i}"], [f"r{i}"], keepdims=0))
        nodes.append(helper.make_node("Add", [f"s{i}", f"r{i}"], [f"s{i + 1}"]))
    infos = helper.make_tensor_value_info("x", 1, [1]), helper.make_tensor_value_info(f"s{len(places)}", 1, [1])
    graph = helper.make_graph(nodes, "g", [infos[0]], [infos[1]], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize("external", ["auto", "copy"])
@pytest.mark.parametrize(
    "places",
    [
        [(i, 4900) for i in range(64)],
        [(0, 1000), (500, 1000), (3000, 400), (1200, 10), (3000, 400), (500, 1000)],
        [(4000, 1000), (0, 1000), (3999, 2), (998, 3)],
    ],
    ids=["all", "some", "backwards"],
)
def test_what_overlaps_is_written_once(places: list[tuple[int, int]], external: str, tmp_path: Path) -> None:
    source, result = overlapping(tmp_path, places), tmp_path / "out" / "o.onnx"
    result.parent.mkdir()
    report = optimize_file(source, result, external=external, pipeline="elim-identity")
    assert report.verification is not None and report.verification.agrees
    (data,) = result.parent.glob("*.data")
    few = len(places) < 10
    assert data.stat().st_size <= SIZE + few * len(places) * (1 << 12)  # what begins anew does so at a page
    before, after = (
        {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer} for path in (source, result)
    )
    assert before.keys() == after.keys()
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name])
    again = tmp_path / "again" / "o.onnx"
    again.parent.mkdir()
    optimize_file(result, again, external="copy", pipeline="elim-identity")
    assert {f.name: f.read_bytes() for f in again.parent.iterdir()} == {
        f.name: f.read_bytes() for f in result.parent.iterdir()
    }
