"""Right folds are not accused in networks that amplify rounding, or rank near ties."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxopt
from tests.samples import ROOT

ZOO = ROOT.parent / "shared" / "zoo"
SMALL = [(model, nodes, level) for model, nodes in (("ts/levit_128s", 369), ("ts/ssd_nms", 67)) for level in (1, 2, 3)]


@pytest.mark.parametrize(("model", "nodes", "level"), [*SMALL, ("ts/ssdlite320", 482, 3)])
def test_right_folds_are_not_accused(model: str, nodes: int, level: int, tmp_path: Path) -> None:
    source = ZOO / f"{model}.onnx"
    if not source.is_file():
        pytest.skip("the zoo is not here")
    report = onnxopt.optimize_file(source, tmp_path / "out.onnx", level=level)
    assert report.verification is not None
    assert report.verification.agrees
    assert report.verification.status in ("equal", "verified", "verified in pieces")
    if level > 1:
        assert report.pipeline.nodes_after <= nodes
