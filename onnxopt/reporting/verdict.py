"""A verdict in words: status, compared pieces, the effect of rounding alone, and places of differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from onnxopt.plaintext import counted, short
from onnxopt.reporting import places

MARKS: Final = {
    "equal": ("✓", "equal"),
    "verified": ("✓", "verified"),
    "verified in pieces": ("✓", "verified in pieces"),
    "within rounding noise": ("?", "within rounding noise"),
    "inconclusive": ("?", "verification is inconclusive"),
    "not verified": ("!", "not verified"),
    "loads without optimizations only": ("✗", "loads without optimizations only"),
    "different": ("✗", "DIFFERENT"),
}
_PLAIN: Final = ("equal", "verified", "verified in pieces")
_NOISE: Final = 4  # outputs whose noise is shown


def sentence(found: dict[str, Any]) -> str:
    """`verified: largest difference 9.6e-06 of the range of `y`, 2 cases`."""
    return f"{MARKS[found['status']][1]}: {found['message']}"


def is_plain(found: dict[str, Any]) -> bool:
    """Does the result compute the same, without any but?"""
    return found["status"] in _PLAIN


def brief(found: dict[str, Any]) -> str:
    """Returns the status alone if there is no message."""
    return MARKS[found["status"]][1] if is_plain(found) else sentence(found)


def lines(found: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """Returns the verdict, the places of differences, and a hint."""
    yield f"{MARKS[found['status']][0]} {sentence(found)}"
    for text in (*places.lines(found, verbose), found["hint"]):
        if text:
            yield f"  {text}"


def figures(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Returns (label, text): the compared pieces, and the noise of outputs."""
    if found["pieces"] is not None:
        yield from _pieces(found["pieces"])
    ranked = sorted(found["noise"].items(), key=lambda item: -item[1])
    for name, noise in ranked[:_NOISE]:
        yield "noise", f"rounding alone changes `{short(name)}` by {noise:.1e} of its range"
    if len(ranked) > _NOISE:
        yield "noise", f"and {len(ranked) - _NOISE:,} more outputs by less"


def grouped(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Returns rows without repeated labels."""
    last = ""
    for label, text in rows:
        yield label if label != last else "", text
        last = label


def _pieces(seen: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if not seen["shared"]:
        yield "pieces", seen["note"] or "no value inside is shared"
        return
    of_them = [
        f"{seen[key]:,} {what}"
        for key, what in (
            ("same", "made by the same nodes"),
            ("noisy", "within the noise of their piece"),
            ("blank", "zero or NaN everywhere"),
        )
        if seen[key]
    ]
    agree = f"{seen['cuts']:,} of {seen['shared']:,} shared values agree" + (
        f" ({', '.join(of_them)})" if of_them else ""
    )
    yield "pieces", f"{agree}; the largest piece has {counted(seen['largest'], 'node')}"
    if seen["worst"]:
        worst = short(seen["worst"])
        yield "pieces", f"the largest difference of one is {seen['worst_rel']:.1e} of the range of `{worst}`"
    for name in seen["branches"]:
        yield "pieces", f"both branches on `{short(name)}` agree, although no case takes both"
    if seen["note"]:
        yield "pieces", seen["note"]
