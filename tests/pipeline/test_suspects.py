"""Rewrites that can have made a result wrong at a place."""

from __future__ import annotations

from typing import Any

import pytest

from onnxopt.bisection import suspected
from onnxopt.graph import Model
from onnxopt.pipeline import PassContext, execute, parse_pipeline
from onnxopt.pipeline.journal import Entry, Journal
from onnxopt.verification.records import OutputRecord, Place, Side


def journal(m: Model, pipeline: str) -> list[Entry]:
    found = Journal(matches=True)
    execute(parse_pipeline(pipeline), m, PassContext(instruments=[found]))
    return found.entries


def place(value: str, a: list[Side], b: list[Side], entries: tuple[str, ...] = (), scope: str = "main") -> Place:
    return Place("random", value, OutputRecord(value, "float", []), list(entries), a, b, scope)


def side(op: str, inputs: str, outputs: str, name: str = "") -> Side:
    return Side(name, op, inputs.split(), outputs.split())


def entry(number: int, rule: str, value: str, outputs: str = "", taken: str = "", scope: str = "main") -> Entry:
    return Entry(number, "p", rule, scope, (), (), tuple(outputs.split()), tuple(taken.split()), value, number)


def names(found: list[Entry]) -> list[str]:
    return [e.rule or e.pass_name for e in found]


def test_only_what_happened_in_the_piece(model: Any) -> None:
    body = "a = Identity (x) b = Relu (a) c = Relu (b) d = Neg (c) e = Identity (d) y = Sin (e)"
    entries = journal(model(body), "fixpoint(elim-identity,clip-chains)")
    assert {e.value for e in entries} == {"a", "c", "e"}
    piece = place("c", [side("Relu", "a", "b"), side("Relu", "b", "c")], [side("Relu", "x", "c")], ("x",))
    assert [e.value for e in suspected(piece, entries)] == ["c", "a"], "a Identity is read by the original only"


def test_late_ones_that_did_little_else_come_first() -> None:
    piece = place("v", [side("Conv", "x w", "u"), side("Add", "u k", "v")], [side("Conv", "x w2", "v")], ("x",))
    entries = [
        entry(1, "early", "u", "u"),
        entry(2, "elsewhere", "z", "z"),
        entry(3, "wide", "u", "u z q r"),
        entry(4, "late", "v", "v", "u v"),
        entry(0, "no fuel", "v", "v"),
    ]
    assert names(suspected(piece, entries)) == ["late", "early", "wide"]


def test_what_a_later_rewrite_took_was_there_too() -> None:
    piece = place("v", [side("Add", "x k", "v")], [side("Mul", "x k2", "v")], ("x",))
    entries = [entry(1, "made a helper", "h", "h"), entry(2, "took it", "v", "v", "h v")]
    assert names(suspected(piece, entries)) == ["took it", "made a helper"]


def test_who_reads_another_value_that_agrees_comes_last() -> None:
    piece = place("v", [side("Reshape", "x s", "v")], [side("Reshape", "x t", "v")], ("x", "s", "t"))
    entries = [entry(1, "", "s"), entry(2, "changes v", "v", "v")]
    assert names(suspected(piece, entries)) == ["changes v", "p"]


def test_constants_that_only_one_reads() -> None:
    piece = place("v", [side("Add", "x k1", "v")], [side("Add", "x k0", "v")], ("x",))
    assert names(suspected(piece, [entry(1, "", "k1"), entry(2, "", "k7")])) == ["p"]


@pytest.mark.parametrize(
    ("sides", "scope", "found"),
    [
        ([side("If", "c", "y", "if_3")], 'main / If "if_3" / then_branch', True),
        ([side("If", "c", "y", "if_3")], 'main / If "if_3" / then_branch / Loop / body', True),
        ([side("If", "c", "y", "if_3")], 'main / If "if_31" / then_branch', False),
        ([side("If", "c", "y")], "main / If / else_branch", True),
        ([side("l.f", "x", "y")], "function l::f", True),
        ([side("l.f", "x", "y")], "function l::g", False),
        ([side("Relu", "x", "y")], "main / If / else_branch", False),
    ],
)
def test_bodies_of_nodes_at_the_place(sides: list[Side], scope: str, found: bool) -> None:
    assert bool(suspected(place("y", sides, sides), [entry(1, "r", "q", "q", scope=scope)])) == found


def test_a_place_in_a_body_may_be_due_to_what_is_around_it() -> None:
    scope = "main / If / then_branch"
    piece = place("r", [side("Add", "x k", "r")], [side("Add", "x k1", "r")], ("x",), scope)
    entries = [entry(1, "around", "k"), entry(2, "beside", "r", "r", scope="main / If / else_branch")]
    assert names(suspected(piece, [*entries, entry(3, "here", "r", "r", scope=scope)])) == ["here", "around"]
