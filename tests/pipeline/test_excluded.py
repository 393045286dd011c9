"""Single matches, by name, that a run excludes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxopt import OptimizeOptions
from onnxopt.errors import UsageError
from onnxopt.graph import Model, write_model
from onnxopt.optimizer import optimize_model
from onnxopt.pipeline import PassContext, PipelineReport, execute, parse_pipeline
from onnxopt.pipeline.records import Site
from onnxopt.pipeline.reproducer import write_reproducer
from onnxopt.rewriting.driver import Decline

TWO = "a = Identity (x) b = Relu (a) c = Identity (b) y = Neg (c)"
BRANCHES = (
    "b = Constant <value = bool {{1}}> ()"
    "y = If <then_branch = t () => (float[N, 4] r) {{ a = Identity (x) r = Relu (a) }},"
    "else_branch = e () => (float[N, 4] s) {{ a = Identity (x) s = Neg (a) }}> (b)"
)


def operators(m: Model) -> list[str]:
    return [n.op for n in m.graph.walk()]


def run(m: Model, pipeline: str, *sites: Site) -> PipelineReport:
    return execute(parse_pipeline(pipeline), m, PassContext(excluded=sites))


@pytest.mark.parametrize("name", ["identity", "elim-identity"])
def test_one_match_of_a_rule_is_left_out(model: Any, name: str) -> None:
    m, site = model(TWO), Site(name, "c", "main")
    report = run(m, "fixpoint(elim-identity)", site)
    assert operators(m) == ["Relu", "Identity", "Neg"]
    assert report.left_out == [site]
    rule = report.of("elim-identity").rules["identity"]
    assert rule.hits == 1
    assert rule.declined == {"left out: it made the result wrong": Decline("Identity -> c", 1)}
    version = m.version
    run(m, "fixpoint(elim-identity)", site)
    assert m.version == version, "a second run changes nothing"
    run(m, "fixpoint(elim-identity)")
    assert operators(m) == ["Relu", "Neg"], "what one context left out another does not"


@pytest.mark.parametrize(
    ("site", "left"),
    [
        (Site("identity", "a", "main / If / else_branch"), ["If", "Relu", "Identity", "Neg"]),
        (Site("identity", "a"), ["If", "Identity", "Relu", "Identity", "Neg"]),
        (Site("identity", "a", "main"), ["If", "Relu", "Neg"]),
        (Site("identity", "b"), ["If", "Relu", "Neg"]),
        (Site("view_of_view", "a"), ["If", "Relu", "Neg"]),
    ],
)
def test_in_bodies_the_scope_counts(model: Any, site: Site, left: list[str]) -> None:
    m = model(BRANCHES.format())
    report = run(m, "lift-constants,elim-identity", site)
    assert operators(m) == left
    assert report.left_out == ([site] if "Identity" in left else [])


def test_a_pass_without_rules_leaves_out_what_it_names(model: Any) -> None:
    m = model("a = Relu (x) b = Relu (x) c = Neg (a) d = Neg (b) e = Relu (x) f = Add (c, d) y = Add (f, e)")
    report = run(m, "common-subexpressions", Site("common-subexpressions", "b"))
    assert operators(m) == ["Relu", "Relu", "Neg", "Neg", "Add", "Add"], "e is a, b is not"
    merged = report.of("common-subexpressions").rules["merged"]
    assert (merged.hits, list(merged.declined)) == (1, ["left out: it made the result wrong"])


def test_fuel_is_not_taken(model: Any) -> None:
    m = model("a = Relu (x) b = Relu (x) c = Relu (x) d = Add (a, b) y = Add (d, c)")
    passes = parse_pipeline("common-subexpressions")
    execute(passes, m, PassContext(excluded=[Site("common-subexpressions", "b")], max_rewrites=1))
    assert operators(m) == ["Relu", "Relu", "Add", "Add"]


def test_what_is_folded_around_it_is_folded(model: Any) -> None:
    body = "a = Cos (k) b = Sin (a) c = Exp (b) y = Mul (x, c)"
    m = model(body, weights="<float[4] k = {1, 2, 3, 4}>")
    run(m, "fixpoint(constant-folding)", Site("constant-folding", "c"))
    assert operators(m) == ["Exp", "Mul"]


@pytest.mark.parametrize("text", ["identity@c", "elim_identity@c", "identity@main / c", "fold_conv_bn,identity@c"])
def test_options_take_them_as_text(model: Any, text: str) -> None:
    m = model(TWO)
    report = optimize_model(m, OptimizeOptions(disable=tuple(text.split(",")), pipeline="elim-identity"))
    assert operators(m) == ["Relu", "Identity", "Neg"]
    (declined,) = report.of("elim-identity").rules["identity"].declined
    assert declined == "left out: disabled here"


def test_a_site_is_text() -> None:
    for text in ("fold@v", "fold@/a/b/Conv_output_0", 'flatten-rows@main / If "if_3" / then_branch / v', "r@a@b"):
        assert str(Site.parse(text)) == text
    assert Site.parse("fold@v") == Site("fold", "v")
    assert Site.parse("r@main / If / t / v") == Site("r", "v", "main / If / t")
    assert str(Site("fold", "v", "main")) == "fold@v"


def test_a_dash_is_as_good_as_an_underscore() -> None:
    context = OptimizeOptions(disable=("fold-conv-bn", "dead_code")).context()
    assert (set(context.disabled_rule), set(context.disabled_pass)) == ({"fold_conv_bn"}, {"dead-code"})


def test_of_what_does_not_exist() -> None:
    with pytest.raises(UsageError, match="no pass or rule is called 'identit'"):
        OptimizeOptions(disable=("identit@c",)).context()


def test_a_reproducer_keeps_them(model: Any, tmp_path: Path) -> None:
    ctx = PassContext(excluded=[Site("identity", "c", "main")])
    write_reproducer(tmp_path, model(TWO), "elim-identity", ctx, UsageError("why", "hint"))
    assert json.loads((tmp_path / "settings.json").read_text())["excluded"] == [["identity", "c", "main"]]
    onnx.checker.check_model(write_model(model(TWO)))
