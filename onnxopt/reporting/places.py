"""Places of differences: the nodes of both models, their inputs, and the responsible rewrites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from onnxopt.plaintext import counted, short

SIDES: Final = {"a": "original", "b": "result"}
_PLACES, _NODES, _REWRITES, _READ = 4, 3, 2, 4  # shown of each, unless everything is asked for
_LONG, _LINE = 96, 160  # characters of what a place is about, and of a rewrite


def lines(found: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """The places of a verdict, a few lines each."""
    for place in shown(found, verbose):
        yield f"at {headline(place)}"
        for label, text in rows(place, verbose):
            yield f"  {label:9} {text}"
    if rest := more(found, verbose):
        yield rest


def shown(found: dict[str, Any], verbose: int = 0) -> list[dict[str, Any]]:
    """The first of many."""
    places: list[dict[str, Any]] = found["places"]
    return places if verbose else places[:_PLACES]


def more(found: dict[str, Any], verbose: int = 0) -> str:
    """How many places are not shown."""
    return _and_more(len(found["places"]) - len(shown(found, verbose)), "place")


def headline(place: dict[str, Any]) -> str:
    """Returns `r` in main / If: differs by 2.5e-01 of its range, rounding alone by 1.2e-07, case random."""
    return f"{value(place)}: {difference(place)}"


def value(place: dict[str, Any]) -> str:
    """`r` in main / If / then_branch."""
    where = f" in {short(place['scope'], _LONG)}" if place["scope"] != "main" else ""
    return f"`{short(place['value'], _LONG)}`{where}"


def difference(place: dict[str, Any]) -> str:
    """Returns the difference of a value, the effect of rounding alone, and the case."""
    noise = place["noise"]
    said: str = place["record"]["note"]
    if noise is not None and "differ" in said:
        said += f", rounding alone by {noise:.1e}" if noise else ", rounding alone changes nothing"
    case = place["case"].removeprefix("case ")
    return said + (f", case {case}" if case else "")


def rows(place: dict[str, Any], verbose: int = 0) -> Iterator[tuple[str, str]]:
    """Returns (label, text) for each line; an empty label continues the preceding label."""
    for side, label in SIDES.items():
        nodes = place[side]
        if not verbose or not nodes:
            yield label, piece(nodes)
        else:
            yield from zip([label, *[""] * len(nodes)], (node(n, verbose) for n in nodes))
    if place["entries"]:
        names = place["entries"] if verbose else place["entries"][:_READ]
        rest = _and_more(len(place["entries"]) - len(names))
        agree = "which agree" if len(place["entries"]) > 1 else "which agrees"
        yield "from", f"{', '.join(map(short, names))}{f' {rest}' if rest else ''}, {agree}"
    made = place["rewrites"] if verbose else [short(text, _LINE) for text in place["rewrites"][:_REWRITES]]
    yield from zip(["made by", *[""] * len(made)], made)
    if rest := _and_more(len(place["rewrites"]) - len(made), "rewrite"):
        yield "", rest


def line(place: dict[str, Any]) -> str:
    """Returns the place as a single line."""
    sides = [f"{label}: {piece(place[side])}" for side, label in SIDES.items()]
    rest = _and_more(len(place["rewrites"]) - 1)
    made = [f"made by {short(text, _LINE)}{f' {rest}' if rest else ''}" for text in place["rewrites"][:1]]
    return "; ".join([f"at {headline(place)}", *sides, *made])


def piece(nodes: Sequence[dict[str, Any]]) -> str:
    """Returns the node of a value with the nodes before: `BatchNormalization "bn"(c, …) after Conv "conv"`."""
    if not nodes:
        return "no node"
    before = [f"{n['op']}{_name(n)}" for n in reversed(nodes[:-1])]
    rest = _and_more(len(before) - _NODES)
    text = ", ".join(before[:_NODES]) + (f" {rest}" if rest else "")
    return node(nodes[-1]) + (f" after {text}" if text else "")


def node(side: dict[str, Any], verbose: int = 0) -> str:
    """`Conv "conv1"(x, w)`."""
    inputs = side["inputs"] if verbose else side["inputs"][:_READ]
    rest = ", …" if len(side["inputs"]) > len(inputs) else ""
    return f"{side['op']}{_name(side)}({', '.join(map(short, inputs))}{rest})"


def _name(side: dict[str, Any]) -> str:
    return f' "{short(side["node"])}"' if side["node"] else ""


def _and_more(count: int, what: str = "") -> str:
    """`and 3 more places`; nothing for none."""
    if count <= 0:
        return ""
    return f"and {counted(count, f'more {what}') if what else f'{count:,} more'}"
