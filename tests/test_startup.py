"""Dataclasses with shared methods compare, and are shown, as with the methods that `dataclasses` generates."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from typing import Any

import pytest

from onnxopt.startup import FrozenRecord, Record

FIELDS: list[Any] = [
    "name",
    ("count", int, field(default=0, compare=False)),
    ("hidden", str, field(default="", repr=False)),
]


@pytest.mark.parametrize("frozen", [True, False])
def test_shared_methods_agree_with_generated_ones(frozen: bool) -> None:
    base = FrozenRecord if frozen else Record
    generated: Any = make_dataclass("Part", FIELDS, frozen=frozen)
    shared: Any = make_dataclass("Part", FIELDS, bases=(base,), frozen=frozen, eq=False, repr=False)
    given = [("a",), ("a", 1), ("b",), ("a", 0, "x"), (["a"],)]
    assert [repr(shared(*g)) for g in given] == [repr(generated(*g)) for g in given]
    assert [[shared(*g) == shared(*h) for h in given] for g in given] == [
        [generated(*g) == generated(*h) for h in given] for g in given
    ]
    assert shared("a") != generated("a") and shared("a") != ("a", "")
    assert (shared.__hash__ is None) == (generated.__hash__ is None)
    if frozen:
        assert [hash(shared(*g)) for g in given[:4]] == [hash(generated(*g)) for g in given[:4]]
