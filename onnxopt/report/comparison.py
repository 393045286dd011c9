"""`onnxopt verify` as plain lines, for pipes and logs: one line an output, nothing wraps, everything greps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnxopt.report.plain import MARKS, places_of


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The record of `verification.Comparison.to_dict()`, line by line."""
    for case in found["cases"]:
        name = case["name"] + (f" ({sizes(case)})" if case["dims"] else "")
        if case["note"]:
            yield f"{name}: {case['status']}: {case['note']}"
        for output in case["outputs"]:
            yield f"{name}: {_output(output)}"
    yield from tolerances(found)
    yield from pieces(found)
    yield verdict(found)


def _output(o: dict[str, Any]) -> str:
    text = f"{label(o)} {kind(o)}".rstrip()
    if figures(o):
        text += f" max abs {o['max_abs']:.2g}, max rel {o['max_rel']:.2g}"
    if o["cosine"] is not None:
        text += f", cosine {o['cosine']:.6f}"
    if o["ulp"] is not None:
        text += f", {o['ulp']} ulp"
    if any(o["nan"]) or any(o["inf"]):
        text += f", NaN {counts(o['nan'])}, Inf {counts(o['inf'])}"
    return f"{text}: {'ok' if o['ok'] else 'DIFFERENT'}{': ' + o['note'] if o['note'] else ''}"


def sizes(case: dict[str, Any]) -> str:
    """`N=2 S=3`."""
    return " ".join(f"{k}={v}" for k, v in case["dims"].items())


def label(o: dict[str, Any]) -> str:
    """The name of an output, and which two are compared if not A and B."""
    return f"{o['name']} [{o['against']}]" if o["against"] else str(o["name"])


def kind(o: dict[str, Any]) -> str:
    """`float32[2,8]`; empty for what was not computed."""
    if not o["dtype"]:
        return ""
    return f"{o['dtype']}[{','.join(map(str, o['shape']))}]"


def figures(o: dict[str, Any]) -> bool:
    """Are there differences to show? Not for what cannot be subtracted."""
    return o["max_abs"] != float("inf") and o["dtype"] not in ("", "bool", "object", "none", "map")


def counts(pair: list[int]) -> str:
    """`3`, or `3 / 5` where A and B differ."""
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} / {pair[1]}"


def tolerances(found: dict[str, Any]) -> Iterator[str]:
    """What is allowed, by type."""
    allowed = {
        o["dtype"]: (o["rtol"], o["atol"]) for c in found["cases"] for o in c["outputs"] if o["rtol"] is not None
    }
    if allowed:
        texts = [f"{dtype} {rtol:.0e} (+ {atol:.0e})" for dtype, (rtol, atol) in sorted(allowed.items())]
        yield f"allowed at first of an output's largest magnitude: {', '.join(texts)}; other types must be equal"


def pieces(found: dict[str, Any]) -> Iterator[str]:
    """What comparing in pieces found."""
    seen = found["pieces"]
    if seen is None:
        return
    if not seen["shared"]:
        yield f"pieces: {seen['note'] or 'A and B share no value inside'}"
        return
    yield (
        f"pieces: {seen['cuts']:,} of {seen['shared']:,} values that A and B share agree ({seen['same']:,} made by "
        f"the same nodes, {seen['noisy']:,} within the noise of their piece); the largest piece has "
        f"{seen['largest']:,} nodes"
    )
    if seen["worst"]:
        yield f"  largest difference of a piece: {seen['worst_rel']:.1e} of the range of {seen['worst']}"
    if seen["note"]:
        yield f"  {seen['note']}"
    for name, noise in found["noise"].items():
        yield f"noise: the last bits of inputs and weights change {name} of A by {noise:.1e} of its range"


def verdict(found: dict[str, Any]) -> str:
    """The verdict in one line and a hint."""
    mark, word = MARKS[found["status"]]
    places = "".join(f"\n  {line}" for line in places_of(found))
    hint = f"\n  {found['hint']}" if found["hint"] else ""
    return f"{mark} {word}: {found['message']}{places}{hint}"
