"""A wrong result is traced to one rewrite, proven on deliberately broken passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxopt import OptimizeOptions
from onnxopt.bisection import Finding, bisect
from onnxopt.errors import UsageError
from onnxopt.pipeline import Sequential
from onnxopt.pipeline.records import Site
from onnxopt.pipeline.registry import load_module
from tests.samples import ROOT, parsed

pytestmark = pytest.mark.usefixtures("kept_judge")

HEAD = "g (float[N, 2] x) => (float[N, 2] y) <float[2] k = {-1, 1}>"
BROKEN = str(ROOT / "tests" / "plugins" / "broken.py")


def chain(path: Path, factors: list[float], tail: str = "y = Relu (v{n})") -> Path:
    """x * k0 * k1 * …, with identities in between; every k has two elements."""
    nodes, weights = [], []
    for i, k in enumerate(factors):
        nodes.append(f"i{i} = Identity (v{i}) v{i + 1} = Mul (i{i}, k{i})")
        weights.append(f"float[2] k{i} = {{{k}, {abs(k)}}}")
    body = " ".join(nodes).replace("(v0)", "(x)") + " " + tail.format(n=len(factors))
    header = "g (float[N, 2] x) => (float[N, 2] y)"
    onnx.save(parsed(f"{header} <{', '.join(weights)}> {{ {body} }}"), path)
    return path


@pytest.fixture(autouse=True)
def _broken() -> None:
    load_module(BROKEN)


def find(path: Path, **options: object) -> tuple[Finding, list[str]]:
    lines: list[str] = []
    found = bisect(path, OptimizeOptions(**options), tell=lines.append)  # type: ignore[arg-type]
    return found, lines


@pytest.mark.parametrize(("bad", "runs"), [(0, 3), (4, 3), (11, 2)])
def test_the_single_rewrite_is_found(bad: int, runs: int, tmp_path: Path) -> None:
    factors = [1.5 + i / 10 for i in range(12)]  # one is none
    factors[bad] *= -1
    path = chain(tmp_path / "m.onnx", factors)
    found, lines = find(path, extra=("wrong-rule",), disable=("simplify-arithmetic",))
    assert (found.pass_text, found.rule, found.scope) == ("wrong-rule", "wrong_for_negative_factors", "main")
    assert (found.pass_run, found.rewrite) == (15, 13 + bad)
    assert found.equation == "x * k = x / (1 / |k|), which is wrong where k is negative."
    (line,) = found.match
    assert line.startswith(f"v{bad + 1}: float[N,2] = Mul(")
    assert f"{{{factors[bad]:.6g},{-factors[bad]:.6g}}}" in line
    assert "output `y`" in found.message
    assert found.submodel is not None
    onnx.checker.check_model(found.submodel, full_check=True)
    assert [n.op_type for n in found.submodel.graph.node] == ["Mul"]
    assert np.array_equal(onnx.numpy_helper.to_array(found.submodel.graph.initializer[0])[0], np.float32(factors[bad]))
    assert found.site == Site("wrong_for_negative_factors", f"v{bad + 1}", "main")
    assert found.runs == runs, "the whole, with this rewrite (if it is not the last), and without it"
    assert lines[1] == f"2 of them happened at `v{bad + 1}`", "an Identity is gone as well"


def test_of_several_places_the_first_is_found(tmp_path: Path) -> None:
    """Two signs that are lost one after the other are none: the third is wrong."""
    factors = [-1.0 - i / 10 if i in (4, 7, 9) else 1.0 + i / 10 for i in range(12)]
    found, lines = find(
        chain(tmp_path / "m.onnx", factors, "s = Exp (v{n}) u = Mul (s, k4) y = Tanh (u)"),
        extra=("wrong-rule",),
        disable=("simplify-arithmetic",),
    )
    assert "it goes wrong at `v10` and 1 more" in lines[0]
    assert (found.site, found.runs) == (Site("wrong_for_negative_factors", "v10", "main"), 3)


@pytest.mark.parametrize("bad", [0, 4, 11])
@pytest.mark.usefixtures("no_places")
def test_without_places_all_rewrites_are_searched(bad: int, tmp_path: Path) -> None:
    factors = [-1.5 - i / 10 if i == bad else 1.5 + i / 10 for i in range(12)]
    path = chain(tmp_path / "m.onnx", factors)
    found, lines = find(path, extra=("wrong-rule",), disable=("simplify-arithmetic",))
    assert (found.pass_text, found.rewrite, found.runs) == ("wrong-rule", 13 + bad, 10)
    assert len(lines) < 16, "a binary search"


def test_two_that_are_wrong_at_one_place(tmp_path: Path) -> None:
    """The first of them counts, not the likelier one."""
    onnx.save(parsed(f"{HEAD} {{ a = Abs (x) b = Sin (a) c = Mul (b, k) y = Exp (c) }}"), tmp_path / "m")
    found, lines = find(tmp_path / "m", pipeline="wrong-rule,wrong-at")
    assert lines[1:3] == ["2 of them happened at `c`", "  1 rewrite: differs"]
    assert (found.rewrite, found.rule) == (1, "wrong_for_negative_factors")


def test_where_it_is_none_of_the_suspects_the_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxopt.bisection.suspected", lambda place, entries: entries[:1])
    onnx.save(parsed(f"{HEAD} {{ a = Identity (x) c = Mul (a, k) y = Exp (c) }}"), tmp_path / "m")
    found, lines = find(tmp_path / "m", pipeline="elim-identity,wrong-rule")
    assert "but it is none of them" in lines
    assert (found.rewrite, found.rule) == (2, "wrong_for_negative_factors")


def test_a_pass_without_rules_is_found_at_a_place(tmp_path: Path) -> None:
    tail = "p = Relu (v1) q = Abs (p) s = Neg (q) u = Abs (s) y = Exp (u)"
    path = chain(tmp_path / "m.onnx", [2.0], tail)
    found, lines = find(path, pipeline="elim-identity,wrong-at,dead-code")
    assert (found.pass_text, found.pass_run, found.rule, found.rewrite) == ("wrong-at", 2, "", 3)
    assert found.site == Site("wrong-at", "u", "main")
    assert found.match == ["u: float[N,2] = Abs(s)"]
    assert found.runs == 2
    assert lines[1] == "1 of them happened at `y`"
    assert found.submodel is not None
    assert [n.op_type for n in found.submodel.graph.node] == ["Abs"]


@pytest.mark.parametrize(("fixture", "runs"), [(None, 2), ("no_places", 4)])
def test_a_pass_that_does_not_say_where(
    fixture: str | None, runs: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It is found by what it took, or by its fuel."""
    if fixture is not None:
        request.getfixturevalue(fixture)
    path = chain(tmp_path / "m.onnx", [2.0], "t = Tanh (v1) s = Sin (t) u = Tanh (s) y = Cos (u)")
    found, _ = find(path, pipeline="elim-identity,wrong-pass{keep=1},dead-code")
    assert (found.pass_text, found.pass_run, found.rule) == ("wrong-pass{keep=1}", 2, "")
    assert (found.rewrite, found.site) == (2, None), "one Identity went before"
    assert found.runs == runs
    if fixture is None:
        assert found.submodel is not None
        assert [n.op_type for n in found.submodel.graph.node] == ["Tanh", "Sin", "Tanh", "Cos"]
    else:
        assert found.submodel is None, "nobody knows where to look"


def test_a_part_grows_until_it_shows_the_difference(tmp_path: Path) -> None:
    """The rule fires behind a Sin only: the Mul alone shows nothing."""
    onnx.save(parsed(f"{HEAD} {{ a = Sin (x) c = Mul (a, k) y = Exp (c) }}"), tmp_path / "m.onnx")
    found, lines = find(tmp_path / "m.onnx", pipeline="sin-rule")
    assert found.submodel is not None
    assert [n.op_type for n in found.submodel.graph.node] == ["Sin", "Mul", "Exp"]
    assert lines[-2:] == ["  a part of 1 node: equal", "  a part of 3 nodes: differs"]


def test_in_bodies_the_scope_is_named(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    header = "g (bool b, float[N, 2] x) => (float[N, 2] y)"
    header += "<float[2] k = {-1, 1}>"
    branch = "then_branch = t () => (float[N, 2] r) { r = Mul (x, k) }, "
    branch += "else_branch = e () => (float[N, 2] s) { s = Neg (x) }"
    onnx.save(parsed(f"{header} {{ y = If <{branch}> (b) }}"), tmp_path / "m.onnx")
    found, _ = find(tmp_path / "m.onnx", extra=("wrong-rule",))
    assert found.site == Site("wrong_for_negative_factors", "r", "main / If / then_branch")
    assert found.submodel is not None
    request.getfixturevalue("no_places")
    again, _ = find(tmp_path / "m.onnx", extra=("wrong-rule",))
    assert (again.site, again.match) == (found.site, found.match)
    assert again.runs > found.runs


def test_nothing_to_find(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", [2.0, 3.0])
    with pytest.raises(UsageError, match="does not differ"):
        bisect(path, OptimizeOptions(extra=("wrong-rule",)))


def test_options_of_the_pass_are_kept(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", [1.0, -1.0])
    found, _ = find(path, pipeline="fixpoint(elim-identity,wrong-rule)")
    assert found.pass_text == "wrong-rule"
    assert isinstance(OptimizeOptions(pipeline=found.pass_text).passes(), Sequential)


def test_frozen_initializers_are_given_no_other_values(tmp_path: Path) -> None:
    header = "g (float[N, 2] x, float[2] k) => (float[N, 2] y)"
    body = "a = Add (k, k) b = Mul (x, a) y = Exp (b)"
    onnx.save(parsed(f"{header} <float[2] k = {{1, 1}}> {{ {body} }}"), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="does not differ"):
        bisect(tmp_path / "m.onnx", OptimizeOptions(freeze_initializers=True))
