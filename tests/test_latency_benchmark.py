"""`benchmarks/latency.py`: latency of results beside the original; measured times are not asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.comparison.latency import BenchOptions, Ratio
from tests.samples import ROOT

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64[B, S] ids, int64[B, S] token_type_ids, int64[B, S] attention_mask, int64[B, S] position_ids,
   float[B, 2, P, 4] past_0) => (float[B, 2, P, 4] y)
{ i = Add (ids, token_type_ids) a = Add (i, attention_mask)
  b = Add (a, position_ids) c = Cast <to = 1> (b) s = ReduceSum <keepdims = 0> (c)
  z = Identity (past_0) y = Add (z, s) }
"""


@pytest.fixture
def latency(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import latency

    return latency


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


DIMS = {"B": 1, "S": 3, "past_*:2": 5, "position": 7}


def test_inputs_have_the_sizes_that_are_given(latency: Any, model: Path) -> None:
    files = latency.drawn(model, DIMS, model.parent)
    arrays = {name: np.load(file) for name, file in files.items()}
    assert {name: a.shape for name, a in arrays.items()} == {
        **dict.fromkeys(("ids", "token_type_ids", "attention_mask", "position_ids"), (1, 3)),
        "past_0": (1, 2, 5, 4),
    }
    assert not arrays["token_type_ids"].any()
    assert arrays["attention_mask"].tolist() == [[1, 1, 1]]
    assert arrays["position_ids"].tolist() == [[7, 8, 9]]
    assert latency.drawn(model, {"B": 1}, model.parent) == {}, "the others are chosen by the measurement"


def test_what_stands_beside_a_model_goes_first(latency: Any, model: Path) -> None:
    model.with_suffix(".json").write_text(
        '{"inputs": [{"name": "ids", "shape": [2, 2], "low": 5, "high": 6},'
        '{"name": "past_0", "shape": [], "low": 0.5, "high": 1}]}'
    )
    files = latency.drawn(model, DIMS, model.parent)
    assert np.load(files["ids"]).tolist() == [[5, 5], [5, 5]]
    assert np.load(files["past_0"]).shape == ()


def test_each_result_is_measured(latency: Any, model: Path) -> None:
    inputs = latency.drawn(model, DIMS, model.parent)
    options = BenchOptions(runs=4, threads=1, clock="processor", inputs=inputs)
    row = latency.measure(model, model.parent / "kept", 60, options, latency.OURS)
    assert row.failure == ""
    assert list(row.ratios) == ["-O2", "-O3", "target"]
    assert row.peer == ""


def test_the_slowest_is_first(latency: Any) -> None:
    rows = [latency.Row(name, {"-O2": Ratio(v, v - 0.1, v + 0.1, "same")}) for name, v in (("a", 0.9), ("b", 1.3))]
    rows[0].slower = ["-O2 than onnxsim, 1.200 (1.100 to 1.300): Conv +1.000 ms"]
    header, _, first, second, told = latency.table(rows)
    assert header.startswith("| model | -O2 | -O3 | target | best other | -O2 over it")
    assert first.startswith("| b | 1.300 (1.200 to 1.400) |")
    assert second.startswith("| a | 0.900 ")
    assert told == "\na: slower: -O2 than onnxsim, 1.200 (1.100 to 1.300): Conv +1.000 ms"
