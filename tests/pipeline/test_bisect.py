"""A wrong result is traced to one rewrite, proven on deliberately broken passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt import OptimizeOptions
from onnxopt.bisect import Finding, bisect
from onnxopt.errors import UsageError
from onnxopt.pipeline import Sequential
from onnxopt.pipeline.registry import load_module
from onnxopt.pipeline.site import Site
from onnxopt.verification import Verifier
from tests.plugins import places
from tests.samples import ROOT

BROKEN = str(ROOT / "tests" / "plugins" / "broken.py")


def chain(path: Path, factors: list[float], tail: str = "y = Relu (v{n})") -> Path:
    """x * k0 * k1 * …, with identities in between; every k has two elements."""
    nodes, weights = [], []
    for i, k in enumerate(factors):
        nodes.append(f"i{i} = Identity (v{i}) v{i + 1} = Mul (i{i}, k{i})")
        weights.append(f"float[2] k{i} = {{{k}, {abs(k)}}}")
    body = " ".join(nodes).replace("(v0)", "(x)") + " " + tail.format(n=len(factors))
    header = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)'
    onnx.save(parser.parse_model(f"{header} <{', '.join(weights)}> {{ {body} }}"), path)
    return path


@pytest.fixture(autouse=True)
def _broken() -> None:
    load_module(BROKEN)


@pytest.fixture
def _places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once verification names places itself, this goes, and so do the tests without them."""
    monkeypatch.setattr(Verifier, "submit", places.submit)
    monkeypatch.setattr(Verifier, "finish", places.finish)


def find(path: Path, **options: object) -> tuple[Finding, list[str]]:
    lines: list[str] = []
    found = bisect(path, OptimizeOptions(**options), tell=lines.append)  # type: ignore[arg-type]
    return found, lines


@pytest.mark.parametrize("bad", [0, 4, 11])
def test_the_single_rewrite_is_found(bad: int, tmp_path: Path) -> None:
    factors = [1.0 + i / 10 for i in range(12)]
    factors[bad] *= -1
    path = chain(tmp_path / "m.onnx", factors)
    found, lines = find(path, extra=("wrong-rule",), disable=("simplify-arithmetic",))
    assert (found.pass_text, found.rule, found.scope) == ("wrong-rule", "wrong_for_negative_factors", "main")
    assert found.equation == "x * k = x / (1 / |k|), which is wrong where k is negative."
    (line,) = found.match
    assert line.startswith(f"v{bad + 1}: float[N,2] = Mul(")
    assert f"{{{factors[bad]:.6g},{-factors[bad]:.6g}}}" in line
    assert "output `y`" in found.message
    assert len(lines) < 16, "a binary search"
    assert found.submodel is not None
    onnx.checker.check_model(found.submodel, full_check=True)
    assert [n.op_type for n in found.submodel.graph.node] == ["Mul"]
    assert np.array_equal(onnx.numpy_helper.to_array(found.submodel.graph.initializer[0])[0], np.float32(factors[bad]))
    assert found.site == Site("wrong_for_negative_factors", f"v{bad + 1}", "main")
    assert found.runs == 11


@pytest.mark.parametrize("bad", [[4], [11], [4, 7, 9]])
@pytest.mark.usefixtures("_places")
def test_at_a_place_few_results_are_verified(bad: list[int], tmp_path: Path) -> None:
    factors = [-1.0 - i / 10 if i in bad else 1.0 + i / 10 for i in range(12)]
    path = chain(tmp_path / "m.onnx", factors)
    found, lines = find(path, extra=("wrong-rule",), disable=("simplify-arithmetic",))
    assert found.site == Site("wrong_for_negative_factors", f"v{min(bad) + 1}", "main")
    assert (found.pass_text, found.pass_run, found.rewrite) == ("wrong-rule", 29, 13 + min(bad))
    assert found.runs == 4, "the whole, one of two that happened there, and the one before"
    assert lines[1] == f"2 of them happened at `v{min(bad) + 1}`"
    assert found.submodel is not None
    assert [n.op_type for n in found.submodel.graph.node] == ["Mul"]


@pytest.mark.usefixtures("_places")
def test_where_something_else_is_wrong_before_the_search_goes_on(tmp_path: Path) -> None:
    """The first place is that of the last rewrite."""
    header = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y) <float[2] k = {-1, 1}>'
    onnx.save(parser.parse_model(f"{header} {{ a = Abs (x) b = Sin (a) c = Mul (b, k) y = Exp (c) }}"), tmp_path / "m")
    found, lines = find(tmp_path / "m", pipeline="wrong-rule,wrong-at")
    assert "but it is none of them" in lines
    assert (found.rewrite, found.rule) == (1, "wrong_for_negative_factors")


@pytest.mark.usefixtures("_places")
def test_a_pass_without_rules_is_found_at_a_place(tmp_path: Path) -> None:
    tail = "p = Relu (v1) q = Abs (p) s = Neg (q) u = Abs (s) y = Exp (u)"
    path = chain(tmp_path / "m.onnx", [2.0], tail)
    found, lines = find(path, pipeline="elim-identity,wrong-at,dead-code")
    assert (found.pass_text, found.pass_run, found.rule, found.rewrite) == ("wrong-at", 2, "", 3)
    assert found.site == Site("wrong-at", "u", "main")
    assert found.match == ["u: float[N,2] = Abs(s)"] or found.match == ["u = Abs(s)"]
    assert found.runs <= 4
    assert lines[1] == "1 of them happened at `y`"


@pytest.mark.usefixtures("_places")
def test_a_pass_that_does_not_say_where_is_found_by_what_it_took(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", [2.0], "t = Tanh (v1) s = Sin (t) u = Tanh (s) y = Cos (u)")
    found, _ = find(path, pipeline="elim-identity,wrong-pass{keep=1},dead-code")
    assert (found.pass_text, found.pass_run, found.rewrite, found.site) == ("wrong-pass{keep=1}", 2, 2, None)
    assert found.runs == 3


def test_a_pass_without_rules_is_found_by_its_fuel(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", [2.0], "t = Tanh (v1) s = Sin (t) u = Tanh (s) y = Cos (u)")
    found, _ = find(path, pipeline="elim-identity,wrong-pass{keep=1},dead-code")
    assert (found.pass_text, found.pass_run, found.rule) == ("wrong-pass{keep=1}", 2, "")
    assert found.rewrite == 2, "one Identity went before"
    assert found.submodel is None


def test_a_part_grows_until_it_shows_the_difference(tmp_path: Path) -> None:
    """The rule fires behind a Sin only: the Mul alone shows nothing."""
    header = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y) <float[2] k = {-1, 1}>'
    onnx.save(parser.parse_model(f"{header} {{ a = Sin (x) c = Mul (a, k) y = Exp (c) }}"), tmp_path / "m.onnx")
    found, lines = find(tmp_path / "m.onnx", pipeline="sin-rule")
    assert found.submodel is not None
    assert [n.op_type for n in found.submodel.graph.node] == ["Sin", "Mul", "Exp"]
    assert lines[-2:] == ["  a part of 1 nodes: equal", "  a part of 3 nodes: differs"]


def test_in_bodies_the_scope_is_named(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]> g (bool b, float[N, 2] x) => (float[N, 2] y)'
    header += "<float[2] k = {-1, 1}>"
    branch = "then_branch = t () => (float[N, 2] r) { r = Mul (x, k) }, "
    branch += "else_branch = e () => (float[N, 2] s) { s = Neg (x) }"
    onnx.save(parser.parse_model(f"{header} {{ y = If <{branch}> (b) }}"), tmp_path / "m.onnx")
    found, _ = find(tmp_path / "m.onnx", extra=("wrong-rule",))
    assert found.scope == "main / If / then_branch"
    assert found.submodel is not None
    request.getfixturevalue("_places")
    again, _ = find(tmp_path / "m.onnx", extra=("wrong-rule",))
    assert (again.site, again.match) == (Site("wrong_for_negative_factors", "r", found.scope), found.match)
    assert again.runs < found.runs


def test_nothing_to_find(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", [2.0, 3.0])
    with pytest.raises(UsageError, match="does not differ"):
        bisect(path, OptimizeOptions(extra=("wrong-rule",)))


def test_options_of_the_pass_are_kept(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", [1.0, -1.0])
    found, _ = find(path, pipeline="fixpoint(elim-identity,wrong-rule)")
    assert found.pass_text == "wrong-rule"
    assert isinstance(OptimizeOptions(pipeline=found.pass_text).passes(), Sequential)
