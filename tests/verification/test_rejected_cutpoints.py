"""Cutpoints rejected before any run from them: values that differ, or only move a differing value."""

from __future__ import annotations

import pytest

from onnxopt.verification.pieces.outcome import First, doubts

DIFFERS = {"ok": False}
MOVES = {"ok": True, "moves": True}
AGREES = {"ok": True}


@pytest.mark.parametrize(
    ("chain", "doubted", "excused"),
    [
        ([DIFFERS], "a", ""),
        ([AGREES], "", ""),
        ([MOVES], "", ""),
        ([DIFFERS, MOVES], "ab", ""),
        ([DIFFERS, MOVES, MOVES], "abc", ""),
        ([DIFFERS, AGREES, MOVES], "a", ""),  # the second computes, and agrees if `a` does: no part of its reader
        ([DIFFERS, DIFFERS], "a", "b"),
        ([DIFFERS, MOVES, DIFFERS], "ab", "c"),
        ([DIFFERS, AGREES, DIFFERS], "ac", ""),
        ([DIFFERS, DIFFERS, DIFFERS], "a", "b"),  # the third stays undecided: the next run decides the second
        ([DIFFERS, DIFFERS, MOVES, DIFFERS], "a", "b"),
        ([DIFFERS, DIFFERS, DIFFERS, DIFFERS], "ad", "b"),  # behind the third the next layer begins
        ([DIFFERS, DIFFERS, DIFFERS, MOVES], "a", "b"),
        ([DIFFERS, DIFFERS, AGREES, DIFFERS], "ad", "b"),
        ([DIFFERS, None, DIFFERS], "ac", ""),  # b was not run
    ],
)
def test_a_chain(chain: list[dict[str, bool] | None], doubted: str, excused: str) -> None:
    first = {}
    for value, before, seen in zip("abcd", "xabc", chain):
        if seen is not None:
            first[value] = First(entries={before: None}, **seen)
    assert doubts("abcd"[: len(chain)], first) == (set(doubted), set(excused))


def test_a_reader_of_two_differing_values_is_excused_by_either() -> None:
    first = {
        "a": First(False, {"x": None}),
        "b": First(True, {"x": None}),
        "c": First(False, {"b": None, "a": None}),
        "d": First(True, {"a": None, "c": None}, moves=True),
    }
    assert doubts("abcd", first) == ({"a"}, {"c"})
