"""`onnxopt bench` as plain lines, and in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from onnxopt.plaintext import cleaned, counted

_MAX_OPERATORS: Final = 12  # operators; the others are summed
_MIN_SHARE: Final = 0.005  # a share of the time that is not worth a line


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the record `comparison.latency.Bench.to_dict()`."""
    for label, latency in zip("AB", found["files"]):
        low, high = milliseconds(latency["p10"]), milliseconds(latency["p90"])
        yield f"{label} {cleaned(latency['file'])}: median {middle(latency)} ms, p10 {low}, p90 {high}"
    yield from conclusions(found)
    yield from (
        "  ".join((f"  {name:24}", *(f"{label} {time:>8} ms in {count:>5}" for label, time, count in columns)))
        for name, columns in operators(found)
    )
    yield conditions(found)


def middle(latency: dict[str, Any]) -> str:
    """Return `1.23 (95 %: 1.21 to 1.25)`; without an interval for a single loading."""
    interval = [milliseconds(latency[key]) for key in ("low", "high") if latency[key] is not None]
    return milliseconds(latency["median"]) + (f" (95 %: {' to '.join(interval)})" if interval else "")


def operators(found: dict[str, Any]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return (operator, [(label, milliseconds, nodes) for each file]); small operators are merged."""
    rows = found["operators"]
    least = _MIN_SHARE * max((sum(times) for times in zip(*(row["seconds"] for row in rows))), default=0.0)
    large = [row for row in rows[:_MAX_OPERATORS] if max(row["seconds"]) >= least]
    rest = [row for row in rows if row not in large]
    if rest:
        sums = {key: list(map(sum, zip(*(row[key] for row in rest)))) for key in ("seconds", "nodes")}
        large.append({"operator": counted(len(rest), "other"), **sums})
    return [(cleaned(row["operator"]), _columns(row)) for row in large]


def _columns(row: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(label, milliseconds(s), f"{n:,.4g}") for label, s, n in zip("AB", row["seconds"], row["nodes"])]


def milliseconds(seconds: float) -> str:
    """Return three digits: 0.0123, 4.56, 789."""
    value = seconds * 1e3
    digits = max(0, 2 - len(str(int(value))) + 1) if value >= 1 else 4
    return f"{value:.{digits}f}"


def conclusions(found: dict[str, Any]) -> Iterator[str]:
    """Yield `B / A: 0.780 (95 %: 0.770 to 0.790): B is faster`; without an interval for a single loading."""
    for r in found["ratios"]:
        words = "as fast as A, as far as can be told" if r["verdict"] == "same" else r["verdict"]
        interval = "" if r["low"] is None else f" (95 %: {r['low']:.3f} to {r['high']:.3f})"
        yield f"B / A: {r['value']:.3f}{interval}: B is {words}"


def conditions(found: dict[str, Any]) -> str:
    """Return the conditions of the measurement."""
    count = found["threads"]
    threads = counted(count, "thread") if count else "threads as onnxruntime chooses"
    dims = "".join(f", {name}={size}" for name, size in found["dims"].items())
    openings = f" in {found['openings']} openings" if found["openings"] > 1 else ""
    runs = counted(found["runs"], "run")
    return f"{runs}{openings}, {threads}, optimizations {found['level']}, {found['provider']}{dims}"


def print_latencies(found: dict[str, Any]) -> None:
    """Print the record as a table."""
    from rich.table import Column

    from onnxopt.reporting.terminal import Text, show, table

    found = cleaned(found)
    files = table(Column("model", overflow="fold"), *(Column(h, justify="right") for h in ("median ms", "p10", "p90")))
    for label, latency in zip("AB", found["files"]):
        times = [middle(latency), *(milliseconds(latency[key]) for key in ("p10", "p90"))]
        files.add_row(Text.assemble((f"{label} ", "dim"), latency["file"]), *times)
    shares = table(
        Column("operator", overflow="fold"),
        *(
            column
            for label in "AB"[: len(found["files"])]
            for column in (Column(f"{label} ms", justify="right"), Column("nodes", justify="right", style="dim"))
        ),
        rows=((name, *(text for _, *cells in columns for text in cells)) for name, columns in operators(found)),
    )
    styles = [{"faster": "green", "slower": "red"}.get(r["verdict"], "") for r in found["ratios"]]
    said = [Text(line, style) for line, style in zip(conclusions(found), styles)]
    show(files, *said, shares, Text(conditions(found), "dim"))
