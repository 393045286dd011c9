"""Lines of a report."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console, Group

from onnxopt.reporting import batch, console, latency, plain


@pytest.mark.parametrize(
    ("hits", "nodes", "line"),
    [
        (1, 1, "  some-pass                       1 rewrite        -1 node         0 ms"),
        (2, 0, "  some-pass                       2 rewrites       +0 nodes        0 ms"),
        (1234, 1234, "  some-pass                   1,234 rewrites   -1,234 nodes        0 ms"),
    ],
)
def test_one_is_no_plural_and_columns_stay(hits: int, nodes: int, line: str) -> None:
    rule = {"hits": hits, "nodes": nodes, "declined": {}}
    done = {"name": "some-pass", "nodes": nodes, "bytes": 0, "seconds": 0.0, "rules": {"rule": rule}}
    assert list(plain.details({"pipeline": {"passes": [done]}})) == [line]


def test_one_run() -> None:
    found = {"threads": 1, "dims": {}, "openings": 1, "runs": 1, "level": "all", "provider": "CPU"}
    assert latency.conditions(found) == "1 run, 1 thread, optimizations all, CPU"


def test_models_of_which_none_changed() -> None:
    report: dict[str, Any] = {"pipeline": {"nodes_before": 5, "nodes_after": 5}}
    assert batch.summary([{"status": "unchanged", "report": report}]) == "1 model: 1 unchanged; 5 nodes"


def test_passes_that_found_nothing_share_a_line() -> None:
    declined = {
        "rule": {"hits": 0, "nodes": 0, "declined": {"the rank is unknown": {"count": 2, "example": 'Add "a" -> y'}}}
    }
    idle = {"nodes": 0, "bytes": 0, "seconds": 0.1, "rules": {}}
    passes = [idle | {"name": "first"}, idle | {"name": "second", "rules": declined}, idle | {"name": "third"}]
    skipped = {"fourth": "the model has no If", "fifth": "the model has no Loop or Scan", "sixth": "requires first"}
    pipeline = {"passes": passes, "skipped": skipped}
    done, reason, *rest = plain.details({"pipeline": pipeline}, verbose=1)
    assert done.startswith("  second ")
    assert reason == '    rule declined 2 times: the rank is unknown, for example Add "a" -> y'
    assert rest == [
        "  found nothing: first, third",
        "  did not run (the model has none of their operators): fourth, fifth",
        "  did not run (requires first): sixth",
    ]
    every = [line for line in plain.details({"pipeline": pipeline}, verbose=2) if "the model has no" in line]
    assert every == [f"  did not run ({why}): {name}" for name, why in skipped.items() if name != "sixth"]
    assert list(plain.details({"pipeline": pipeline})) == rest[2:]


def test_values_that_stay_wide_for_one_reason_share_a_line() -> None:
    def stays(value: str, why: str) -> dict[str, Any]:
        found = {"pass_text": "convert-dtype{dtype=float16}", "rule": "narrow", "value": value, "message": why}
        return found | {"fault": "it made the result wrong", "scope": "main", "match": ["y = Mul(x)"]}

    def overflowing(value: str) -> dict[str, Any]:
        return stays(value, f"`{value}` overflows the narrower type")

    wrong = stays("d", "differs") | {"pass_text": "wrong", "rule": "wrong_rule"}
    one = "value `a` stays float32: it overflows the narrower type"
    assert plain.left_out([overflowing("a")], matched=True) == [one]
    assert plain.left_out([*map(overflowing, "abcd"), wrong, stays("e", "the whole differs")], matched=True) == [
        "rule wrong_rule at value `d` was left out, it made the result wrong: differs",
        "  main: y = Mul(x)",
        "value `e` stays float32: the whole differs",
        "  main: y = Mul(x)",
        "4 values stay float32: each of `a`, `b`, `c` and 1 more overflows the narrower type",
    ]


def test_terminals_and_pipes_tell_of_changes_on_request() -> None:
    left = [{"value": f"v{i}", "node": f"Shape -> v{i}", "why": "only int64", "what": "Shape"} for i in range(2)]
    report = {
        "pipeline": {"passes": []},
        "freed_dims": {"n": 2},
        "fixed_dims": {"m": 3},
        "int64": {"before": 1000, "after": 2, "left": left},
    }
    lines = [
        "dynamic: n, was 2",
        "fixed: m = 3",
        "int64: 1,000 → 2 values (-v names them)",
        "  2: only int64 (Shape 2)",
    ]
    assert list(plain.details(report)) == lines
    terminal = Console(width=60)
    with terminal.capture() as said:
        terminal.print(Group(*console._details(report, 0)))
    assert said.get().splitlines() == lines
    *_, last = plain.on_request(report, 1)
    assert last == "    `v1`: Shape -> v1"
