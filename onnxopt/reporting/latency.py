"""`onnxopt bench` as plain lines, and in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnxopt.plaintext import cleaned, counted


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The record of `verification.latency.Bench.to_dict()`, line by line."""
    for label, latency in zip("AB", found["files"]):
        low, high = milliseconds(latency["p10"]), milliseconds(latency["p90"])
        yield f"{label} {latency['file']}: median {milliseconds(latency['median'])} ms, p10 {low}, p90 {high}"
    yield from conclusions(found)
    yield conditions(found)


def milliseconds(seconds: float) -> str:
    """Three digits of it: 0.0123, 4.56, 789."""
    value = seconds * 1e3
    digits = max(0, 2 - len(str(int(value))) + 1) if value >= 1 else 4
    return f"{value:.{digits}f}"


def conclusions(found: dict[str, Any]) -> Iterator[str]:
    """`B / A: 0.780 (95 %: 0.770 to 0.790): B is faster`; no interval if there was one opening only."""
    for r in found["ratios"]:
        words = "as fast as A, as far as can be told" if r["verdict"] == "same" else r["verdict"]
        interval = "" if r["low"] is None else f" (95 %: {r['low']:.3f} to {r['high']:.3f})"
        yield f"B / A: {r['value']:.3f}{interval}: B is {words}"


def conditions(found: dict[str, Any]) -> str:
    """How it was measured."""
    count = found["threads"]
    threads = counted(count, "thread") if count else "threads as onnxruntime chooses"
    dims = "".join(f", {name}={size}" for name, size in found["dims"].items())
    openings = f" in {found['openings']} openings" if found["openings"] > 1 else ""
    runs = counted(found["runs"], "run")
    return f"{runs}{openings}, {threads}, optimizations {found['level']}, {found['provider']}{dims}"


def print_latencies(found: dict[str, Any]) -> None:
    """Print the record as a table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from onnxopt.reporting.terminal import show

    found = cleaned(found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    for heading in ("median ms", "p10", "p90"):
        table.add_column(heading, justify="right")
    for label, latency in zip("AB", found["files"]):
        figures = [milliseconds(latency[key]) for key in ("median", "p10", "p90")]
        table.add_row(Text.assemble((f"{label} ", "dim"), latency["file"]), *figures)
    styles = [{"faster": "green", "slower": "red"}.get(r["verdict"], "") for r in found["ratios"]]
    said = [Text(line, style) for line, style in zip(conclusions(found), styles)]
    show(table, *said, Text(conditions(found), "dim"))
