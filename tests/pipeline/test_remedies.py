"""Rewrites left out of a wrong result, and the number of trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser, shape_inference

from onnxopt import OptimizeOptions, Report
from onnxopt.bisection import suspected
from onnxopt.optimizer import DifferentResult
from onnxopt.pipeline.journal import Entry
from onnxopt.pipeline.registry import load_module
from onnxopt.rollback import optimize_or_roll_back
from onnxopt.verification import Verification, Verifier, VerifyOptions
from onnxopt.verification.programs.transforms import tensor_types
from onnxopt.verification.records import Place
from tests.samples import ROOT
from tests.verification.test_narrow_results import products

pytestmark = pytest.mark.usefixtures("kept_judge")

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)'
RIGHT, WRONG = "float[2] r = {1, 2}", "float[2] w = {-1, 2}"


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verdicts so far on results of the whole model."""
    load_module(str(ROOT / "tests" / "plugins" / "broken.py"))
    found: list[str] = []
    with_places = Verifier.finish

    def finish(self: Verifier) -> Verification:
        verdict = with_places(self)
        found.append(verdict.status)
        return verdict

    monkeypatch.setattr(Verifier, "finish", finish)
    return found


def optimize(folder: Path, body: str, weights: str = f"<{RIGHT}, {WRONG}>", **given: Any) -> tuple[Report, list[str]]:
    onnx.save(parser.parse_model(f"{HEAD} {weights} {{ {body} }}"), folder / "m.onnx")
    options = OptimizeOptions(**{"extra": ("wrong-rule",), **given})
    report = optimize_or_roll_back(folder / "m.onnx", folder / "o.onnx", options, verify_options=VerifyOptions())
    return report, [n.op_type for n in onnx.load(folder / "o.onnx").graph.node]


def left_out(report: Report) -> list[str]:
    return [str(r.site or r.name) for r in report.rolled_back]


def test_one_match_in_one_more_run(tmp_path: Path, verified: list[str]) -> None:
    report, operators = optimize(tmp_path, "a = Mul (x, r) b = Sin (a) c = Mul (b, w) d = Tanh (c) y = Exp (d)")
    assert operators == ["Div", "Sin", "Mul", "Tanh", "Exp"]
    assert left_out(report) == ["wrong_for_negative_factors@c"]
    (record,) = report.rolled_back
    assert record.message.startswith("`c` differs by ")
    assert record.match == ["c: float[N,2] = Mul(b, w: float[2] = {-1,2})"]
    assert (record.scope, record.value) == ("main", "c")
    assert [s for s in verified if s != "inconclusive"] == ["different", "equal"]
    assert report.pipeline.left_out == [record.site]


def test_several_places_take_one_run(tmp_path: Path, verified: list[str]) -> None:
    body = "a = Mul (x, w) b = Exp (a) c = Mul (b, r) d = Tanh (c) e = Mul (d, w) y = Exp (e)"
    report, operators = optimize(tmp_path, body)
    assert operators == ["Mul", "Exp", "Div", "Tanh", "Mul", "Exp"]
    assert left_out(report) == ["wrong_for_negative_factors@a", "wrong_for_negative_factors@e"]
    assert verified == ["different", "equal"]


def test_who_did_something_else_there_stays(tmp_path: Path, verified: list[str]) -> None:
    """The Identity is what happened last before y; it is not guilty."""
    report, operators = optimize(tmp_path, "a = Mul (x, w) y = Identity (a)", pipeline="wrong-rule,elim-identity")
    assert operators == ["Mul"]
    assert left_out(report) == ["wrong_for_negative_factors@a"]
    assert verified == ["different", "different", "equal"], "the whole, with the first of the two, without it"


def test_two_at_one_place(tmp_path: Path, verified: list[str]) -> None:
    body = "z = Mul (x, r) a = Abs (z) b = Sin (a) c = Mul (b, w) y = Exp (c)"
    report, operators = optimize(tmp_path, body, pipeline="wrong-rule,wrong-at")
    assert operators == ["Div", "Abs", "Sin", "Mul", "Exp"]
    assert left_out(report) == ["wrong_for_negative_factors@c", "wrong-at@a"]
    assert verified == ["different", "different", "different", "equal"], "the whole, one on the way, two attempts"


def test_more_places_than_are_named_at_once(tmp_path: Path, verified: list[str]) -> None:
    four = "a{0} = Mul (e{0}, w) b{0} = Exp (a{0}) c{0} = Mul (b{0}, r) e{1} = Tanh (c{0})"
    body = " ".join(four.format(i, i + 1) for i in range(11))
    report, operators = optimize(tmp_path, f"{body} y = Exp (e11)".replace("(e0,", "(x,"))
    assert operators == ["Mul", "Exp", "Div", "Tanh"] * 11 + ["Exp"]
    assert left_out(report) == [f"wrong_for_negative_factors@a{i}" for i in range(11)]
    assert verified == ["different", "different", "equal"]


def test_a_rule_that_is_blamed_again_and_again_goes_as_a_whole(tmp_path: Path) -> None:
    """Behind one that is wrong, others are not seen as long as nothing right comes between."""
    body = " ".join(f"a{i} = Mul (e{i}, w) e{i + 1} = Sigmoid (a{i})" for i in range(5))
    report, operators = optimize(tmp_path, f"{body} b = Mul (e5, r) y = Exp (b)".replace("(e0,", "(x,"))
    assert operators == ["Mul", "Sigmoid"] * 5 + ["Mul", "Exp"]
    assert left_out(report) == ["wrong_for_negative_factors"]


def test_a_pass_without_rules_leaves_out_one_match(tmp_path: Path, verified: list[str]) -> None:
    body = "a = Relu (x) b = Abs (a) c = Neg (b) d = Abs (c) y = Exp (d)"
    report, operators = optimize(tmp_path, body, pipeline="wrong-at")
    assert operators == ["Relu", "Neg", "Abs", "Exp"]
    assert left_out(report) == ["wrong-at@d"]
    assert report.rolled_back[0].rule == ""
    assert verified == ["different", "equal"]


def test_one_that_does_not_say_where_is_left_out_whole(tmp_path: Path, verified: list[str]) -> None:
    report, operators = optimize(tmp_path, "a = Tanh (x) b = Mul (a, w) y = Exp (b)", extra=("wrong-pass",))
    assert operators == ["Tanh", "Mul", "Exp"]
    assert left_out(report) == ["wrong-pass"]
    assert verified == ["different", "equal"]


def test_in_a_body_the_other_match_stays(tmp_path: Path, verified: list[str]) -> None:
    then = "then_branch = t () => (float[N, 2] p) { a = Mul (x, r) b = Sin (a) q = Mul (b, w) p = Exp (q) }"
    other = "else_branch = e () => (float[N, 2] s) { a = Mul (x, r) s = Cos (a) }"
    report, _ = optimize(
        tmp_path, f"m = ReduceMax <keepdims = 0> (x) c = Cast <to = 9> (m) y = If <{then}, {other}> (c)"
    )
    assert left_out(report) == ["wrong_for_negative_factors@main / If / then_branch / q"]
    (node,) = [n for n in onnx.load(tmp_path / "o.onnx").graph.node if n.op_type == "If"]
    inside = {a.name: [n.op_type for n in a.g.node] for a in node.attribute}
    assert inside == {"then_branch": ["Div", "Sin", "Mul", "Exp"], "else_branch": ["Div", "Cos"]}
    assert verified == ["different", *["verified in pieces"] * 2], "the whole, with the moves of constants, without it"


@pytest.mark.usefixtures("no_places")
def test_without_places_bisection_finds_the_match(tmp_path: Path, verified: list[str]) -> None:
    report, operators = optimize(tmp_path, "a = Mul (x, r) b = Sin (a) c = Mul (b, w) y = Exp (c)")
    assert operators == ["Div", "Sin", "Mul", "Exp"]
    assert left_out(report) == ["wrong_for_negative_factors@c"]
    assert report.rolled_back[0].message.startswith("output `y` differs")
    assert len(verified) < 14


@pytest.mark.usefixtures("no_places")
def test_without_places_several_matches_are_the_rule(tmp_path: Path) -> None:
    report, operators = optimize(tmp_path, "a = Mul (x, w) b = Exp (a) c = Mul (b, w) y = Exp (c)")
    assert operators == ["Mul", "Exp", "Mul", "Exp"]
    assert left_out(report) == ["wrong_for_negative_factors"]


def test_a_suspect_that_was_not_guilty_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that the journal knows of the place leads to the rule: bisection does."""
    monkeypatch.setattr("onnxopt.bisection.suspected", lambda place, entries: [e for e in entries if not e.rule])
    report, operators = optimize(
        tmp_path, "a = Relu (x) b = Abs (a) c = Mul (b, w) y = Exp (c)", pipeline="wrong-at,wrong-rule"
    )
    assert operators == ["Relu", "Mul", "Exp"]
    assert left_out(report) == ["wrong_for_negative_factors@c"]


def test_who_helped_stays_left_out_while_others_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(place: Place, entries: list[Entry]) -> list[Entry]:
        return [e for e in suspected(place, entries) if e.pass_name != "wrong-at"]

    monkeypatch.setattr("onnxopt.bisection.suspected", hidden)
    body = "a = Mul (x, w) b = Exp (a) c = Mul (b, r) d = Neg (c) e = Abs (d) y = Relu (e)"
    report, operators = optimize(tmp_path, body, pipeline="wrong-rule,wrong-at")
    assert operators == ["Mul", "Exp", "Div", "Neg", "Abs", "Relu"]
    assert left_out(report) == ["wrong_for_negative_factors@a", "wrong-at@e"]


def narrowed(folder: Path, scales: list[float], **given: Any) -> tuple[Report, set[str]]:
    """What became of a chain of products in float16; the values that float16 holds."""
    onnx.save(products(scales), folder / "m.onnx")
    options = OptimizeOptions(dtype="float16", **{"level": 0, **given})
    report = optimize_or_roll_back(folder / "m.onnx", folder / "o.onnx", options, verify_options=VerifyOptions())
    typed = tensor_types(shape_inference.infer_shapes(onnx.load(folder / "o.onnx")))
    return report, {name for name, kind in typed.items() if kind == "tensor(float16)"}


@pytest.mark.parametrize("level", [0, 2])
def test_all_that_overflows_is_found_in_one_run(tmp_path: Path, verified: list[str], level: int) -> None:
    """More than are looked for otherwise. What hands such a value on stays wide with it, and is not named."""
    report, narrow = narrowed(tmp_path, [40.0, *[1e3, 1.6e-4] * 11, 0.3], level=level)
    wide = [f"p{i}" for i in range(1, 22, 2)]
    assert left_out(report) == [f"convert-dtype@{name}" for name in wide]
    assert {r.message for r in report.rolled_back} == {f"`{name}` overflows the narrower type" for name in wide}
    assert verified == ["different", "verified in pieces"]
    assert "p0" in narrow and narrow.isdisjoint(wide)


def test_what_agrees_since_the_value_before_was_cut_off_is_found_as_well(tmp_path: Path, verified: list[str]) -> None:
    """360,000, and half of it, and half of that: where one is 65504 the next is not too large."""
    body = "a = MatMul (x, w) b = MatMul (a, q) c = MatMul (b, q) d = MatMul (c, q) y = MatMul (d, q)"
    w, q = "float[2, 2] w = {40000, 40000, -40000, 40000}", "float[2, 2] q = {0.5, 0, 0, 0.5}"
    onnx.save(parser.parse_model(f"{HEAD} <{w}, {q}> {{ {body} }}"), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array([[8, 1], [2, 6]], np.float32))
    report = optimize_or_roll_back(
        tmp_path / "m.onnx",
        tmp_path / "o.onnx",
        OptimizeOptions(level=0, dtype="float16"),
        verify_options=VerifyOptions(inputs={"x": str(tmp_path / "x.npy")}),
    )
    assert left_out(report) == [f"convert-dtype@{name}" for name in "abc"]
    assert verified == ["different", "verified in pieces"]


def test_strict_says_what_happened_at_the_place(tmp_path: Path, verified: list[str]) -> None:
    onnx.save(parser.parse_model(f"{HEAD} <{WRONG}> {{ c = Mul (x, w) y = Exp (c) }}"), tmp_path / "m.onnx")
    with pytest.raises(DifferentResult) as e:
        optimize_or_roll_back(
            tmp_path / "m.onnx",
            tmp_path / "o.onnx",
            OptimizeOptions(extra=("wrong-rule",)),
            verify_options=VerifyOptions(),
            strict=True,
        )
    assert e.value.report.verification is not None
    (place,) = e.value.report.verification.places
    assert place.rewrites == ["1 wrong-rule/wrong_for_negative_factors: main: replaced Mul -> c by Div -> c"]
    assert verified == ["different"]
