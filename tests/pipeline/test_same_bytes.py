"""The result depends on the model alone: not on addresses in memory, which order sets."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxopt
from onnxopt.graph import Node, Value
from tests.samples import ROOT, sample

SAMPLES = sorted(p.stem for p in (ROOT / "models").glob("*.onnxtxt"))
_ODD = 0x9E3779B97F4A7C15
_LARGE = (1 << 61) - 1


def shuffle_sets(monkeypatch: pytest.MonkeyPatch, salt: int) -> None:
    for kind in (Node, Value):
        monkeypatch.setattr(kind, "__hash__", lambda self: (id(self) + salt) * _ODD % _LARGE)


@pytest.mark.parametrize("dtype", ["", "float16"])
@pytest.mark.parametrize("name", SAMPLES)
def test_whatever_the_order_of_sets(name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(sample(name), source)
    found = set()
    for salt in range(4):
        shuffle_sets(monkeypatch, salt * 7919)
        onnxopt.optimize_file(source, target, level=3, dtype=dtype, verify=False)
        found.add(target.read_bytes())
    assert len(found) == 1
