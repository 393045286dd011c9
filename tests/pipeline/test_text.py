"""Pipelines as text: reading and printing are inverse, and errors point at the position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxopt.errors import UsageError
from onnxopt.passes.levels import LEVELS, pipeline_for
from onnxopt.pipeline import (
    Fixpoint,
    ModelPass,
    Pass,
    PassInfo,
    Sequential,
    get_pass,
    model_pass,
    option,
    parse_pipeline,
    pipeline_text,
    register,
    registry,
)


@dataclass(frozen=True)
class Odd(ModelPass):
    """Has an option of every type."""

    info = PassInfo("odd")
    flag: bool = option(False, "")
    number: int = option(0, "")
    share: float = option(0.5, "")
    word: str = option("plain", "")
    many: tuple[Any, ...] = option((), "")
    anything: Any = option(None, "")


@pytest.fixture(autouse=True)
def _odd() -> None:
    register(Odd)


words = st.text(max_size=8)
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words
odd = st.builds(
    Odd,
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    words,
    st.lists(values, max_size=3).map(tuple),
    values,
)
plain = st.sampled_from(["canonicalize", "dead-code", "elim-identity"]).map(lambda name: get_pass(name)())
passes = st.recursive(
    odd | plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        .map(tuple)
        .flatmap(lambda ps: st.sampled_from([Sequential(ps), Fixpoint(ps), Fixpoint(ps, max_rounds=5)]))
    ),
    max_leaves=6,
)


@given(st.lists(passes, max_size=4))
def test_reading_and_printing_are_inverse(found: list[Pass]) -> None:
    registry._PASSES.setdefault("odd", Odd)
    assert parse_pipeline(pipeline_text(found)) == Sequential(tuple(found))


def test_printing_is_short() -> None:
    text = "canonicalize,fixpoint(elim-identity,constant-folding{max-bytes=4096}),fuse-activation{swish=true}"
    assert pipeline_text(parse_pipeline(text).passes) == text
    spaced = """
        canonicalize,          # first of all
        fixpoint(elim_identity, constant-folding { max_bytes = 4096 }),
        fuse-activation{swish=true}
    """
    assert parse_pipeline(spaced) == parse_pipeline(text)
    assert str(Fixpoint((get_pass("canonicalize")(),), max_rounds=3)) == "fixpoint{max-rounds=3}(canonicalize)"
    assert pipeline_text([Odd(word="a b", many=("x", 1, "1"))]) == 'odd{word="a b",many=[x,1,"1"]}'


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("canonicalize,dead-cod", "column 14: no pass is called 'dead-cod'", "did you mean dead-code?"),
        ("fixpoint(canonicalize", "column 22: expected ')', found the end", "a pipeline is like"),
        ("canonicalize)", "column 13: expected ',' or the end, found ')'", "a pipeline is like"),
        ("canonicalize(dead-code)", "column 13: canonicalize is not made of passes", ""),
        ("fixpoint", "column 9: fixpoint needs passes, as in fixpoint(canonicalize)", ""),
        (
            "constant-folding{max-byte=1}",
            "column 18: constant-folding has no option 'max-byte'",
            "did you mean max-bytes",
        ),
        ("constant-folding{max-bytes=many}", "column 28: max-bytes is 'many', not of type int", ""),
        ("constant-folding{max-bytes 1}", "column 28: expected '=', found '1'", ""),
        ("canonicalize,,dead-code", "column 14: expected the name of a pass, found ','", ""),
        ("canonicalize;dead-code", "column 13: ';' has no meaning here", ""),
        ("canonicalize,\n  dead-cod", "line 2, column 3: no pass is called 'dead-cod'", "dead-code"),
    ],
)
def test_errors_point_at_the_place(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as e:
        parse_pipeline(text)
    assert str(e.value) == f"pipeline, {message}"
    assert hint in e.value.hint


def test_levels_are_texts() -> None:
    for level, text in enumerate(LEVELS):
        found = pipeline_for(level)
        assert pipeline_text(found.passes) == text
        leaves = [p for top in found.passes for p in top.children]
        assert all(p.info.opt_level <= level for p in leaves)
    assert pipeline_for(0) == Sequential(())


def test_extra_passes_join_a_level_where_they_belong() -> None:
    @register
    @model_pass(name="late", after=("dead-code",), before=("deduplicate-constants",))
    def late(model: Any, ctx: Any) -> None:
        """Do nothing."""

    names = [p.name for p in pipeline_for(1, ["late"]).passes[0].children]
    assert names[-3:] == ["dead-code", "late", "deduplicate-constants"]
