"""`onnxopt verify` as plain lines for pipes and logs: cases, with an unwrapped line for each output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from onnxopt.plaintext import cleaned
from onnxopt.reporting import verdict

_MAX_DIMS: Final = 8  # dynamic dims that each line of a case has


def lines(found: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """The record of `verification.Comparison.to_dict()`, line by line."""
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
    yield from (f"{what}: {text}" for what, text in verdict.figures(found))
    yield from verdict.lines(found, verbose)


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
    """Returns the name of an output, and the compared models if not A and B."""
    return f"{o['name']} [{o['against']}]" if o["against"] else str(o["name"])


def kind(o: dict[str, Any]) -> str:
    """Returns `float32[2,8]`; empty for an output without a value."""
    if not o["dtype"]:
        return ""
    return f"{o['dtype']}[{','.join(map(str, o['shape']))}]"


def figures(o: dict[str, Any]) -> bool:
    """Returns whether an output has differences to show; types without subtraction have none."""
    return o["max_abs"] != float("inf") and o["dtype"] not in ("", "bool", "object", "none", "map")


def counts(pair: list[int]) -> str:
    """`3`, or `3 / 5` where A and B differ."""
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} / {pair[1]}"


def tolerances(found: dict[str, Any]) -> Iterator[str]:
    """Returns the tolerance of each type."""
    allowed = {
        o["dtype"]: (o["rtol"], o["atol"]) for c in found["cases"] for o in c["outputs"] if o["rtol"] is not None
    }
    if allowed:
        texts = [f"{dtype} {rtol:.0e} (+ {atol:.0e})" for dtype, (rtol, atol) in sorted(allowed.items())]
        yield f"allowed at first of an output's largest magnitude: {', '.join(texts)}; other types must be equal"
