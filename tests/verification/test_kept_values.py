"""Values of the original kept by verification in pieces: requested ones, or all if only runs give the types."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification.pieces.replay import Found, Replay
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs import stream
from onnxopt.verification.run import Failed
from tests.verification.pairs import opened

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[2, 3] x) => (float[2, 3] y)'
LONG = f"{HEAD} {{ a = Exp (x)  h = Sin (a)  n = Neg (h)  r = Relu (n)  s = Sqrt (r)  y = Abs (s) }}"
SHORT = f"{HEAD} {{ a = Exp (x)  k = Sin (a)  t = Neg (k)  u = Relu (t)  v = Sqrt (u)  y = Abs (v) }}"


def walk(tmp_path: Path, a: str, b: str) -> Walk:
    for name, text in (("a", a), ("b", b)):
        onnx.save(parser.parse_model(text), tmp_path / name)
    first, second = (opened(str(tmp_path / name), name) for name in ("a", "b"))
    feeds = {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
    found = Walk(first, second, [feeds], {"x": "tensor(float)"})
    found.run()
    return found


def test_unpaired_values_are_not_kept(tmp_path: Path) -> None:
    found = walk(tmp_path, LONG, SHORT)
    assert found.pieces.cuts == found.pieces.shared == 2
    assert not found.unsettled
    assert set(found.original.values[0]) == {"x", "a", "y"}


def test_the_type_of_an_unpaired_value_sets_the_rounding(tmp_path: Path) -> None:
    text = f"{HEAD} {{ a = Exp (x)  h = Cast <to = 10> (a)  n = Exp (h)  y = Cast <to = 1> (n) }}"
    found = walk(
        tmp_path, text.replace("h = ", "k = ").replace("(h)", "(k)"), text.replace("n =", "m =").replace("(n)", "(m)")
    )
    assert found.original.types["n"] == "tensor(float16)"
    assert found._paths(["y"], {"a"})["y"].coarsest > 1e-4


def test_values_of_unknown_type_are_run(tmp_path: Path) -> None:
    text = f"{HEAD} {{ a = Exp (x)  n = com.microsoft.QuickGelu (a)  m = Neg (n)  y = Abs (m) }}"
    found = walk(
        tmp_path, text, text.replace("n =", "i =").replace("(n)", "(i)").replace("m =", "o =").replace("(m)", "(o)")
    )
    assert {"x", "a", "n", "m", "y"} == set(found.original.values[0])
    assert not found.unsettled


def test_a_differing_value_is_not_run_again_in_each_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = 40
    text = "".join(f"s{i} = Mul (x{i or ''}, two)  x{i + 1} = Mul (s{i}, half)  " for i in range(layers))
    head = HEAD.replace("y)", f"x{layers})")
    parts = f"{head} <float two = {{2}}, float half = {{0.5}}> {{ {text} }}"
    run: list[int] = []
    run_each = Replay.run_each

    def counting(self: Replay, wanted: Sequence[str], fed: Collection[str]) -> Found:
        run.append(len(wanted))
        return run_each(self, wanted, fed)

    monkeypatch.setattr(Replay, "run_each", counting)
    monkeypatch.setattr(stream, "NODES", 8)
    found = walk(tmp_path, parts, parts.replace("{2}", "{4}").replace("{0.5}", "{0.25}"))
    assert (found.pieces.shared, found.pieces.cuts) == (2 * layers, layers)
    assert not found.faults
    assert len(run) >= layers // 4
    assert sum(run) <= 3 * layers


def test_a_failure_is_kept_without_its_session(tmp_path: Path) -> None:
    text = f"{HEAD} {{ a = Exp (x)  t = Transpose (a)  y = Add (a, a) }}"
    found = walk(tmp_path, text, text.replace("Add (a, a)", "Add (a, t)"))
    why = found.replay.run_each(["y"], {"a"})["y"]
    assert isinstance(why, Failed) and "Add" in str(why)
    assert why.__traceback__ is None and why.__cause__ is None
