"""A row of a table that another model has otherwise is picked, wherever it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.verification import VerifyOptions, verify
from onnxopt.verification.inputs.rows import other_rows
from onnxopt.verification.model.skeleton import Skeleton

ROWS = 3000
HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (int64[n, t] ids) => (float[n, t, 4] y) '
PLAIN = "{ y = Gather (table, ids) }"
MOVED = "{ i = Cast <to = 6> (ids) e = Gather (table, i) k = Constant <value_float = 2> () y = Mul (e, k) }"


def save(path: Path, body: str, table: np.ndarray) -> Path:
    model = parser.parse_model(HEAD + body)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    onnx.save(model, path)
    return path


def table() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32)


@pytest.mark.parametrize("cases", [("random",), ("all",)])
@pytest.mark.parametrize("body", [PLAIN, MOVED])
@pytest.mark.parametrize("row", [0, 1234, ROWS - 1])
def test_one_element_of_one_row(row: int, body: str, cases: tuple[str, ...], tmp_path: Path) -> None:
    other = table()
    other[row, 2] *= 1.01
    a, b = save(tmp_path / "a.onnx", body, table()), save(tmp_path / "b.onnx", body, other)
    found = verify(a, b, VerifyOptions(cases=cases))
    assert found.status == "different", found.message
    assert verify(a, a, VerifyOptions(cases=cases)).status == "equal"


def test_which_rows(tmp_path: Path) -> None:
    other, every = table(), table() * 2
    other[5:105] += 1
    a = Skeleton(save(tmp_path / "a.onnx", PLAIN, table()))
    assert other_rows(a, Skeleton(save(tmp_path / "b.onnx", PLAIN, other))) == {"ids": (5, 30, 55, 80)}
    assert other_rows(a, Skeleton(save(tmp_path / "c.onnx", PLAIN, every))) == {"ids": ()}, "any row shows it"
    assert other_rows(a, Skeleton(save(tmp_path / "d.onnx", PLAIN, table()[1:]))) == {}, "another table"
    assert other_rows(a, a) == {"ids": ()}
    columns = PLAIN.replace("Gather", "Gather <axis = 1>")
    assert other_rows(a, Skeleton(save(tmp_path / "e.onnx", columns, other))) == {}
