"""The report of one optimization as plain lines, for pipes and logs: nothing wraps, everything greps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

MARKS: Final = {
    "equal": ("✓", "equal"),
    "verified": ("✓", "verified"),
    "verified in pieces": ("✓", "verified in pieces"),
    "within rounding noise": ("?", "within rounding noise"),
    "inconclusive": ("?", "verification is inconclusive"),
    "not verified": ("!", "not verified"),
    "different": ("✗", "DIFFERENT"),
}


def lines(report: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """The report of `api.Report.to_dict()`, line by line."""
    yield from details(report, verbose)
    yield summary(report)
    yield verdict(report)


def details(report: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """What the passes did, without what came of it."""
    for p in report["pipeline"]["passes"]:
        hits = pass_hits(p)
        if hits or p["nodes"] or verbose:
            saved = f" {change(-p['bytes']):>11}" if verbose else ""
            yield f"  {p['name']:24} {hits:>8,} rewrites {-p['nodes']:>+8,} nodes{saved} {p['seconds'] * 1e3:>8,.0f} ms"
        if verbose:
            for name, rule in p["rules"].items():
                if rule["hits"]:
                    removed = f" ({-rule['nodes']:+,} nodes)" if rule["nodes"] else ""
                    yield f"    {name}: {rule['hits']:,}{removed}"
                for reason, (count, example) in rule["declined"].items():
                    yield f"    {name} declined {count:,} times: {reason}, for example {example}"
    if report.get("fixed_dims"):
        yield f"fixed: {', '.join(f'{name} = {size}' for name, size in report['fixed_dims'].items())}"


def pass_hits(p: dict[str, Any]) -> int:
    return sum(rule["hits"] for rule in p["rules"].values())


def summary(report: dict[str, Any]) -> str:
    """`out.onnx: 222 → 100 nodes (-55%), 13.6 MiB → 13.3 MiB, 0.46 s`."""
    before, after = report["pipeline"]["nodes_before"], report["pipeline"]["nodes_after"]
    nodes = f"{after:,} nodes, unchanged" if before == after else f"{before:,} → {after:,} nodes"
    share = f" ({(after - before) / before:+.0%})" if before and after != before else ""
    sizes = f"{size(report['bytes_before'])} → {size(report['bytes_after'])}"
    return f"{report['destination'] or report['source']}: {nodes}{share}, {sizes}, {report['seconds']:.2f} s"


def verdict(report: dict[str, Any]) -> str:
    """What verification found, in one line and a hint."""
    found = report.get("verification")
    if found is None:
        if report["changed"]:
            return "! not verified: --no-verify"
        same = report["bytes_before"] == report["bytes_after"]
        return f"nothing to do: {'the bytes are the same' if same else 'only the metadata are new'}"
    mark, word = MARKS[found["status"]]
    places = "".join(f"\n  {line}" for line in places_of(found))
    hint = f"\n  {found['hint']}" if found["hint"] else ""
    return f"{mark} {word}: {found['message']}{places}{hint}"


def places_of(found: dict[str, Any]) -> Iterator[str]:
    """Where original and result part: the nodes of both, what they start from, and the rewrites that made them."""
    for place in found["places"]:
        noise = f", rounding alone by {place['noise']:.1e}" if place["noise"] is not None else ""
        where = f" in {place['scope']}" if place["scope"] != "main" else ""
        yield f"at `{place['value']}`{where}: {place['record']['note']}{noise}, case {place['case']}"
        for side in "ab":
            nodes = place[side]
            yield f"  {_SIDES[side]}: {'; '.join(map(node, nodes[-_NODES:])) or 'no node'}" + (
                f"; and {len(nodes) - _NODES} before" if len(nodes) > _NODES else ""
            )
        if place["entries"]:
            more = f" and {len(place['entries']) - _NODES} more" if len(place["entries"]) > _NODES else ""
            yield f"  what they start from agrees: {', '.join(place['entries'][:_NODES])}{more}"
        yield from (f"  made by {line}" for line in place["rewrites"])


_SIDES: Final = {"a": "original", "b": "result"}
_NODES: Final = 4  # of a place that are shown


def node(side: dict[str, Any]) -> str:
    """`Conv "conv1"(x, w)`."""
    name = f' "{side["node"]}"' if side["node"] else ""
    return f"{side['op']}{name}({', '.join(side['inputs'])})"


def left_out(r: dict[str, Any]) -> str:
    """One of `rolled_back` of the report, in a line."""
    what = f"rule {r['rule']}" if r["rule"] else f"pass {r['pass_text']}"
    if r["value"]:
        what += f" at value `{r['value']}`"
    elif r["rule"]:
        what += f" of pass {r['pass_text']}"
    return f"{what} was left out, it made the result wrong: {r['message']}"


def change(n: int) -> str:
    """A difference in bytes, with its sign: -1.2 KiB; empty for none."""
    return "" if not n else ("-" if n < 0 else "+") + size(abs(n))


def size(n: float) -> str:
    """Bytes for people: 13.6 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GiB"
