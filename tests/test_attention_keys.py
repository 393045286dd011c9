"""Counts of keys that are known to be positive, by the way they were computed."""

from __future__ import annotations

import pytest

from onnxopt.passes.fusion.fuse_attention import some_keys


@pytest.mark.parametrize("columns", [1, "S", "K", "{1+past}", "{12+past*2}", "{S+past}", "{past+old}", "{S*past}"])
def test_there_are_keys(columns: int | str) -> None:
    assert some_keys(columns, "S")


@pytest.mark.parametrize("columns", [0, None, "unk__0@0", "{-1+S+past}", "{1+-1*past}", "{({K+S+T})//2}"])
def test_there_may_be_none(columns: int | str | None) -> None:
    assert not some_keys(columns, "S")


def test_as_many_keys_as_queries_are_none_where_both_are_none_for_sure() -> None:
    assert not some_keys(0, 0)
