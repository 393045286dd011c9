"""Output without a terminal, as under pythonw on Windows."""

from __future__ import annotations

import sys

import pytest

import onnxopt
from onnxopt.reporting.console import print_report
from onnxopt.reporting.progress import Board, Progress
from onnxopt.reporting.terminal import Terminal
from tests.samples import parsed

_MODEL = """g (float[2] x) => (float[2] y) { a = Identity(x) y = Relu(a) }"""


def test_without_streams_what_is_printed_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    report = onnxopt.optimize(parsed(_MODEL), verify=False).report.to_dict()
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    print_report(report, 2)
    Terminal(stderr=True).print("text")
    with Progress() as shown:
        shown.phase("passes")
    with Board(2) as board:
        board.show("a.onnx", "passes")
