"""The original is opened once, with the conditions of its branches among the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification import VerifyOptions, original
from onnxopt.verification.inputs.cases import RECIPES
from onnxopt.verification.inputs.feeding import Data
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.job import Job
from onnxopt.verification.original import Original

HEAD = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g '
X = "(float[2] x) => (float[M] y) "
IF = "If (c) <then_branch = t () => (u) { u = Abs (x) }, else_branch = e () => (w) { w = Neg (x) }>"
DECIDED = "{ s = ReduceSum <keepdims = 0> (x) z = Sub (s, s) c = Less (s, z) y = " + IF + " }"


def save(path: Path, text: str) -> Path:
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return path


@pytest.mark.parametrize(
    ("text", "branches"),
    [
        (X + DECIDED, {"c": False}),
        (X + "<bool c = {1}> { y = " + IF + " }", {}),
        (X + "{ r = Shape (x) n = Size (r) k = Constant <value_int = 1> () c = Equal (n, k) y = " + IF + " }", {}),
    ],
)
def test_the_original_is_opened_once(
    text: str, branches: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original is opened once, with the conditions that inputs decide as outputs."""
    opened: list[tuple[str, ...]] = []
    real = original.open_original

    def spy(path: str, give: Sequence[str], *rest: Any) -> Any:
        opened.append(tuple(give))
        return real(path, give, *rest)

    monkeypatch.setattr(original, "open_original", spy)
    path = save(tmp_path / "m.onnx", text)
    judge = Original()
    judge.open(Job(str(path), VerifyOptions(), ("the original", "the result")))
    judge.plan(make_plan(onnx.load(path)))
    assert opened == [tuple(branches)]
    assert judge.outputs == ["y"]
    data = Data({"x": np.ones(2, np.float32)})
    assert judge.original(RECIPES["random"], data).branches == branches
