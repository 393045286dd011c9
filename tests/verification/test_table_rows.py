"""Some case selects a changed row of a table, wherever the row is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.verification import VerifyOptions, verify
from onnxopt.verification.inputs.sizes import Side, other_rows, other_size
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.two_files import compare_files

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


def side(path: Path) -> Side:
    return Side(Skeleton(path))


def test_rows_that_differ(tmp_path: Path) -> None:
    other, every = table(), table() * 2
    other[5:105] += 1
    a = side(save(tmp_path / "a.onnx", PLAIN, table()))
    assert other_rows(a, side(save(tmp_path / "b.onnx", PLAIN, other))) == {"ids": (5, 30, 55, 80)}
    assert other_rows(a, side(save(tmp_path / "c.onnx", PLAIN, every))) == {}, "any row shows it"
    assert other_rows(a, side(save(tmp_path / "d.onnx", PLAIN, table()[1:]))) == {}, "another table"
    assert other_rows(a, a) == {}
    columns = PLAIN.replace("Gather", "Gather <axis = 1>")
    assert other_rows(a, side(save(tmp_path / "e.onnx", columns, other))) == {}


POSITIONS = """s = Shape (x) l = Gather (s, one) """
READ = {
    "picked": POSITIONS + "r = Range (zero, l, one) p = Gather (table, r) y = Add (x, p)",
    "cut off": POSITIONS + "e = Unsqueeze (l, axis) p = Slice (table, axis, e, axis) y = Add (x, p)",
}


def placed(path: Path, body: str, table: np.ndarray) -> Path:
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, t, 4] x) => (float[n, t, 4] y) '
    model = parser.parse_model(f"{head} <int64 zero = {{0}}, int64 one = {{1}}, int64[1] axis = {{0}}> {{ {body} }}")
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("body", READ.values(), ids=READ)
@pytest.mark.parametrize("row", [0, 37, 511])
def test_a_changed_position_of_long_texts_is_found(row: int, body: str, tmp_path: Path) -> None:
    positions, other = table()[:512], table()[:512]
    other[row, 2] *= 1.5
    a, b = placed(tmp_path / "a.onnx", body, positions), placed(tmp_path / "b.onnx", body, other)
    x, y = side(a), side(b)
    assert other_size(x, y) == row + 1
    assert other_size(x, x) == 0
    found = compare_files(str(a), str(b), VerifyOptions(cases=("all",)))
    assert found.status == "different", found.message
    assert compare_files(str(a), str(a), VerifyOptions(cases=("all",))).status == "equal"
