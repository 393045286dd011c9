"""A verdict as plain lines: status, compared pieces, places of differences, and outputs of all cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from onnxopt.plaintext import cleaned, counted, short

SIDES: Final = {"a": "original", "b": "result"}
_PLACES, _NODES, _REWRITES, _READ = 4, 3, 2, 4  # shown of each, unless everything is asked for
_LONG, _LINE = 96, 160  # characters of names at a place, and of a rewrite


def place_lines(found: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """Yield the places of a verdict, a few lines each."""
    for place in shown(found, verbose):
        yield f"at {headline(place)}"
        for label, text in rows(place, verbose):
            yield f"  {label:9} {text}"
    if rest := more(found, verbose):
        yield rest


def shown(found: dict[str, Any], verbose: int = 0) -> list[dict[str, Any]]:
    """Return the first places, or all with `verbose`."""
    places: list[dict[str, Any]] = found["places"]
    return places if verbose else places[:_PLACES]


def more(found: dict[str, Any], verbose: int = 0) -> str:
    """Return the number of further places as text; empty if all are shown."""
    return _and_more(len(found["places"]) - len(shown(found, verbose)), "place")


def headline(place: dict[str, Any]) -> str:
    """Return `r` in main / If: differs by 2.5e-01 of its range, rounding alone by 1.2e-07, case random."""
    return f"{value(place)}: {difference(place)}"


def value(place: dict[str, Any]) -> str:
    """Return `r` in main / If / then_branch."""
    where = f" in {short(place['scope'], _LONG)}" if place["scope"] != "main" else ""
    return f"`{short(place['value'], _LONG)}`{where}"


def difference(place: dict[str, Any]) -> str:
    """Return the difference of a value, the effect of rounding alone, and the case."""
    noise = place["noise"]
    said: str = place["record"]["note"]
    if noise is not None and "differ" in said:
        said += f", rounding alone by {noise:.1e}" if noise else ", rounding alone changes nothing"
    case = place["case"].removeprefix("case ")
    return said + (f", case {case}" if case else "")


def _entries(entries: Sequence[str], verbose: int) -> str:
    names = entries if verbose else entries[:_READ]
    rest = _and_more(len(entries) - len(names))
    agree = "which agree" if len(entries) > 1 else "which agrees"
    return f"{', '.join(map(short, names))}{f' {rest}' if rest else ''}, {agree}"


def rows(place: dict[str, Any], verbose: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (label, text) for each line; an empty label continues the preceding label."""
    for side, label in SIDES.items():
        nodes = place[side]
        if not verbose or not nodes:
            yield label, piece(nodes)
        else:
            yield from zip([label, *[""] * len(nodes)], (node(n, verbose) for n in nodes))
    if place["entries"]:
        yield "from", _entries(place["entries"], verbose)
    made = place["rewrites"] if verbose else [short(text, _LINE) for text in place["rewrites"][:_REWRITES]]
    yield from zip(["made by", *[""] * len(made)], made)
    if rest := _and_more(len(place["rewrites"]) - len(made), "rewrite"):
        yield "", rest


def line(place: dict[str, Any]) -> str:
    """Return the place as a single line."""
    sides = [f"{label}: {piece(place[side])}" for side, label in SIDES.items()]
    rest = _and_more(len(place["rewrites"]) - 1)
    made = [f"made by {short(text, _LINE)}{f' {rest}' if rest else ''}" for text in place["rewrites"][:1]]
    return "; ".join([f"at {headline(place)}", *sides, *made])


def piece(nodes: Sequence[dict[str, Any]]) -> str:
    """Return the node of a value with the nodes before: `BatchNormalization "bn"(c, …) after Conv "conv"`."""
    if not nodes:
        return "no node"
    before = [f"{n['op']}{_name(n)}" for n in reversed(nodes[:-1])]
    rest = _and_more(len(before) - _NODES)
    text = ", ".join(before[:_NODES]) + (f" {rest}" if rest else "")
    return node(nodes[-1]) + (f" after {text}" if text else "")


def node(side: dict[str, Any], verbose: int = 0) -> str:
    """Return `Conv "conv1"(x, w)`."""
    inputs = side["inputs"] if verbose else side["inputs"][:_READ]
    rest = ", …" if len(side["inputs"]) > len(inputs) else ""
    return f"{side['op']}{_name(side)}({', '.join(map(short, inputs))}{rest})"


def _name(side: dict[str, Any]) -> str:
    return f' "{short(side["node"])}"' if side["node"] else ""


def _and_more(count: int, what: str = "") -> str:
    """Return `and 3 more places`; empty for none."""
    if count <= 0:
        return ""
    return f"and {counted(count, f'more {what}') if what else f'{count:,} more'}"


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
    """Return `verified: largest difference 9.6e-06 of the range of `y`, 2 cases`."""
    return f"{MARKS[found['status']][1]}: {found['message']}"


def is_plain(found: dict[str, Any]) -> bool:
    """Does the result compute the same, without any but?"""
    return found["status"] in _PLAIN


def brief(found: dict[str, Any]) -> str:
    """Return the status alone if there is no message."""
    return MARKS[found["status"]][1] if is_plain(found) else sentence(found)


def lines(found: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """Yield the verdict, the places of differences, and a hint."""
    yield f"{MARKS[found['status']][0]} {sentence(found)}"
    for text in (*place_lines(found, verbose), found["hint"]):
        if text:
            yield f"  {text}"


def figures(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (label, text): the compared pieces, and the noise of outputs."""
    if found["pieces"] is not None:
        yield from _pieces(found["pieces"])
    ranked = sorted(found["noise"].items(), key=lambda item: -item[1])
    for name, noise in ranked[:_NOISE]:
        yield "noise", f"rounding alone changes `{short(name)}` by {noise:.1e} of its range"
    if len(ranked) > _NOISE:
        yield "noise", f"and {len(ranked) - _NOISE:,} more outputs by less"


def grouped(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield rows without repeated labels."""
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


_MAX_DIMS: Final = 8  # dynamic dims that each line of a case has


def comparison_lines(found: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """Yield the lines of the record `verification.Comparison.to_dict()`."""
    found = cleaned(found)
    for case in found["cases"]:
        name = case["name"]
        if len(case["dims"]) > _MAX_DIMS:  # a model with a cache has twenty, and forty outputs
            yield f"{name}: {sizes(case)}"
        elif case["dims"]:
            name += f" ({sizes(case)})"
        if case["note"]:
            yield f"{name}: {case['status']}: {case['note']}"
        for output in case["outputs"]:
            yield f"{name}: {_output(output)}"
    yield from tolerances(found)
    yield from (f"{what}: {text}" for what, text in figures(found))
    yield from lines(found, verbose)


def _output(o: dict[str, Any]) -> str:
    text = f"{output_label(o)} {kind(o)}".rstrip()
    if has_figures(o):
        text += f" max abs {o['max_abs']:.2g}, max rel {o['max_rel']:.2g}"
    if o["cosine"] is not None:
        text += f", cosine {o['cosine']:.6f}"
    if o["ulp"] is not None:
        text += f", {o['ulp']} ulp"
    if any(o["nan"]) or any(o["inf"]):
        text += f", NaN {counts(o['nan'])}, Inf {counts(o['inf'])}"
    return f"{text}: {'ok' if o['ok'] else 'DIFFERENT'}{': ' + o['note'] if o['note'] else ''}"


def sizes(case: dict[str, Any]) -> str:
    """Return `N=2 S=3`."""
    return " ".join(f"{k}={v}" for k, v in case["dims"].items())


def output_label(o: dict[str, Any]) -> str:
    """Return the name of an output, and the compared models if not A and B."""
    return f"{o['name']} [{o['against']}]" if o["against"] else str(o["name"])


def kind(o: dict[str, Any]) -> str:
    """Return `float32[2,8]`; empty for an output without a value."""
    if not o["dtype"]:
        return ""
    return f"{o['dtype']}[{','.join(map(str, o['shape']))}]"


def has_figures(o: dict[str, Any]) -> bool:
    """Return whether an output has differences to show; types without subtraction have none."""
    return o["max_abs"] != float("inf") and o["dtype"] not in ("", "bool", "object", "none", "map")


def counts(pair: list[int]) -> str:
    """Return `3`, or `3 / 5` if A and B differ."""
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} / {pair[1]}"


def tolerances(found: dict[str, Any]) -> Iterator[str]:
    """Yield the tolerance of each type."""
    allowed = {
        o["dtype"]: (o["rtol"], o["atol"]) for c in found["cases"] for o in c["outputs"] if o["rtol"] is not None
    }
    if allowed:
        texts = [f"{dtype} {rtol:.0e} (+ {atol:.0e})" for dtype, (rtol, atol) in sorted(allowed.items())]
        yield f"allowed at first of an output's largest magnitude: {', '.join(texts)}; other types must be equal"
