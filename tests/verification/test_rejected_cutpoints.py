"""Candidates rejected before any run from cutpoints: values that disagree, or only move one that does."""

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
        ([DIFFERS, AGREES, MOVES], "a", ""),  # it computes, and agrees if `a` does: the piece is its reader's no more
        ([DIFFERS, DIFFERS], "a", "b"),
        ([DIFFERS, MOVES, DIFFERS], "ab", "c"),
        ([DIFFERS, AGREES, DIFFERS], "ac", ""),
        ([DIFFERS, DIFFERS, DIFFERS], "a", "b"),  # of the third nothing is said: the next run says what the second is
        ([DIFFERS, DIFFERS, MOVES, DIFFERS], "a", "b"),
        ([DIFFERS, DIFFERS, DIFFERS, DIFFERS], "ad", "b"),  # behind the third the next layer begins
        ([DIFFERS, DIFFERS, DIFFERS, MOVES], "a", "b"),
        ([DIFFERS, DIFFERS, AGREES, DIFFERS], "ad", "b"),
        ([DIFFERS, None, DIFFERS], "ac", ""),  # it did not run
    ],
)
def test_a_chain(chain: list[dict[str, bool] | None], doubted: str, excused: str) -> None:
    first = {}
    for value, before, seen in zip("abcd", "xabc", chain):
        if seen is not None:
            first[value] = First(entries={before: None}, **seen)
    assert doubts("abcd"[: len(chain)], first) == (set(doubted), set(excused))


def test_what_reads_both_is_excused_by_either() -> None:
    first = {
        "a": First(False, {"x": None}),
        "b": First(True, {"x": None}),
        "c": First(False, {"b": None, "a": None}),
        "d": First(True, {"a": None, "c": None}, moves=True),
    }
    assert doubts("abcd", first) == ({"a"}, {"c"})
