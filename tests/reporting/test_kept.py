"""Reports of large parts kept by a guard."""

from __future__ import annotations

import pytest

from onnxopt.reporting import plain


@pytest.mark.parametrize(
    ("weights", "last"), [(3, "`w2`"), (4, "and 1 more weight (-v)"), (5, "and 2 more weights (-v)")]
)
def test_weights_that_are_not_named_are_counted(weights: int, last: str) -> None:
    rule = {"hits": 0, "declined": {f"`w{i}`": {"count": 1, "example": ""} for i in range(weights)}}
    report = {"pipeline": {"passes": [{"name": "convert-dtype", "rules": {"narrow": rule}}]}}
    assert [*plain.kept_lines(report)][-1] == f"kept: {last}"


OVERRIDABLE = "w is not constant: an initializer that callers may override"
ELSEWHERE = "Conv output used elsewhere"


@pytest.mark.parametrize(
    ("name", "reason", "said"),
    [
        ("conv-add-folding", "t is not constant", None),  # a residual connection, which nothing freezes
        ("conv-add-folding", ELSEWHERE, None),  # a Gelu
        ("conv-add-folding", OVERRIDABLE, "; --freeze-initializers, if nobody overrides it"),
        ("conv-bn-folding", OVERRIDABLE, "; --freeze-initializers, if nobody overrides it"),
        ("conv-bn-folding", "w is not constant", None),
        ("conv-bn-folding", ELSEWHERE, ""),
    ],
)
def test_what_is_ordinary_is_not_said_and_freezing_is_advised_where_it_helps(
    name: str, reason: str, said: str | None
) -> None:
    report = {
        "pipeline": {
            "passes": [{"name": name, "rules": {"r": {"declined": {reason: {"count": 8, "example": "Conv"}}}}}]
        }
    }
    wanted = [] if said is None else [f"kept: r declined 8 times: {reason}, for example Conv{said}"]
    assert [*plain.kept_lines(report)] == wanted


@pytest.mark.parametrize(("count", "hits", "said"), [(1, 0, True), (1, 3, False), (8, 3, True), (0, 0, False)])
def test_what_the_standard_does_not_have_is_said_if_it_is_much_or_all(count: int, hits: int, said: bool) -> None:
    declined = {"the standard does not have it in this type": {"count": count, "example": "Conv -> y"}} if count else {}
    rule = {"hits": hits, "declined": declined}
    report = {"pipeline": {"passes": [{"name": "convert-dtype", "rules": {"narrow": rule}}]}}
    lines = [*plain.kept_lines(report)]
    assert any("a newer opset may (--target-opset)" in line for line in lines) == said
    assert len(lines) == said


NEWER = "the standard does not have it in this type"


@pytest.mark.parametrize(
    ("reason", "nodes", "hits", "said"),
    [
        (
            NEWER,
            1,
            0,
            "1 node stays float32: the standard does not have it in this type, for example Conv; a newer opset",
        ),
        (NEWER, 1, 1, ""),
        (NEWER, 8, 1, "8 nodes stay float32: the standard"),
        (OVERRIDABLE, 2, 0, f"2 nodes stay float32: {OVERRIDABLE}, for example Conv; --freeze-initializers, if nobody"),
        ("it belongs to a quantizer", 9, 0, ""),
    ],
)
def test_what_an_option_would_make_narrow_is_said(reason: str, nodes: int, hits: int, said: str) -> None:
    rule = {"hits": hits, "declined": {reason: {"count": nodes, "example": "Conv"}}}
    found = [*plain.kept_lines({"pipeline": {"passes": [{"name": "convert-dtype", "rules": {"narrow": rule}}]}})]
    assert len(found) == bool(said)
    assert all(line.startswith(f"kept: {said}") for line in found)
