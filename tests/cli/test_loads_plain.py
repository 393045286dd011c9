"""A result computes the same, and onnxruntime loads it without its default optimizations only.

The optimizations fuse b into a LayerNormalization with a float16 scale and a float32 input. No kernel has two types,
so an ordinary session fails.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.api.optimizing import optimize_file
from onnxopt.bisection import bisect
from onnxopt.optimizer import DifferentResult, OptimizeOptions
from onnxopt.verification import LOADS_PLAIN, VerifyOptions, verify
from tests.cli.conftest import Run

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float16[N, 4] y)
<float16[4] scale = {1, 2, 1, 2}, float16[4] bias = {1, 0, 1, 0}, float epsilon = {0.00001}, float two = {2}> {
    m = ReduceMean <axes = [-1]> (x)  d = Sub (x, m)  p = Pow (d, two)  v = ReduceMean <axes = [-1]> (p)
    s = Add (v, epsilon)  q = Sqrt (s)  QUOTIENT  h = Cast <to = 10> (n)  w = Mul (h, scale)  y = Add (w, bias) }"""
A = TEXT.replace("QUOTIENT", "r = Reciprocal (q)  n = Mul (d, r)")  # onnxruntime does not recognize this form
B = TEXT.replace("QUOTIENT", "n = Div (d, q)")
SAYS = "onnxruntime with its default optimizations loads {} and not {}: "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"a": A, "b": B}.items():
        onnx.save(parser.parse_model(text), tmp_path / f"{name}.onnx")
    return tmp_path


@pytest.mark.parametrize("options", [None, VerifyOptions(cases=("random",))])
def test_a_result_loaded_without_optimizations_only_is_refused(options: VerifyOptions | None, folder: Path) -> None:
    a, b = folder / "a.onnx", folder / "b.onnx"
    found = verify(a, b, options)
    assert (found.status, found.agrees, found.is_refused) == (LOADS_PLAIN, False, True)
    assert found.message.startswith(SAYS.format(*(("A", "B") if options else ("the original", "the result"))))
    assert "different types (tensor(float) and tensor(float16)" in found.message
    assert "; without them it is equal: bit for bit the same, " in found.message
    assert not found.places, "nothing differs anywhere"
    assert verify(b, a, options).agrees, "what the original cannot do is not asked of the result"
    same = verify(b, b, options)
    assert same.status == "equal"
    assert same.hint.startswith("onnxruntime with its default optimizations loads neither ")


def test_verify_fails_with_the_reason(run: Run, folder: Path) -> None:
    r = run("verify", "a.onnx", "b.onnx", "--format", "json")
    assert r.returncode == 1
    assert json.loads(r.stdout)["status"] == "loads without optimizations only"
    r = run("verify", "a.onnx", "b.onnx", "-q")
    assert (r.returncode, r.stdout.startswith(f"✗ loads without optimizations only: {SAYS.format('A', 'B')}")) == (
        1,
        True,
    )
    r = run("report", "a.onnx", "b.onnx", "-o", "p.html")
    assert r.returncode == 0
    assert 'class="verdict bad"' in (folder / "p.html").read_text()


def test_the_responsible_rewrite_is_left_out(run: Run, folder: Path) -> None:
    """Mul(d, Reciprocal(q)) = Div(d, q) is left out: the rewrite is right, and makes onnxruntime fuse the formula."""
    chosen = ("--pipeline", "simplify-arithmetic")
    r = run("optimize", "a.onnx", "out.onnx", *chosen)
    assert r.returncode == 3
    assert "rule multiply_by_reciprocal at value `n` was left out, it kept the result from being loaded: " in r.stderr
    assert SAYS.format("the original", "the result") in r.stderr
    assert [n.op_type for n in onnx.load(folder / "out.onnx").graph.node][6:8] == ["Reciprocal", "Mul"]
    (folder / "out.onnx").unlink()
    r = run("optimize", "a.onnx", "out.onnx", *chosen, "--strict")
    assert (r.returncode, (folder / "out.onnx").exists()) == (1, False)
    assert "the result loads without optimizations only: onnxruntime with its default" in r.stderr
    r = run("optimize", "a.onnx", "out.onnx", *chosen, "--verify-each")
    assert "the result loads without optimizations only" in r.stderr


def test_strict_writes_nothing_and_bisect_finds_the_rewrite(folder: Path) -> None:
    a, options = folder / "a.onnx", OptimizeOptions(pipeline="simplify-arithmetic")
    with pytest.raises(DifferentResult, match="loads without optimizations only"):
        optimize_file(a, folder / "out.onnx", pipeline="simplify-arithmetic", strict=True)
    assert not (folder / "out.onnx").exists()
    told: list[str] = []
    assert bisect(a, options, tell=told.append).rule == "multiply_by_reciprocal"
    assert told[0].startswith("the result loads without optimizations only after 1 run of passes")
