"""Records are dataclasses, but for how their methods are made."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any

import numpy as np
import pytest

from onnxopt.record import plain, record


@record
class Plain:
    """Two fields, one of them not compared."""

    name: str
    seen: list[int] = field(default_factory=list, compare=False)


@record(frozen=True)
class Fixed:
    """Cannot be changed."""

    name: str
    size: int = 0

    @property
    def double(self) -> int:
        """Not a field."""
        return 2 * self.size


@record(frozen=True, eq=False)
class Own:
    """Equal to itself only."""

    name: str


def test_a_record_is_a_dataclass() -> None:
    one = Plain("a")
    one.seen.append(3)
    assert one == Plain("a") != Plain("b")
    assert one != Fixed("a")
    assert repr(one) == "Plain(name='a', seen=[3])"
    assert repr(Plain("a", list(range(100)))) == "Plain(name='a', seen=<100 of them>)"
    assert asdict(one) == {"name": "a", "seen": [3]}
    assert [f.name for f in fields(Plain)] == ["name", "seen"]
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_plain_is_asdict_without_copies() -> None:
    nested = {"a": [Plain("b", [1, 2.5, None, True])], "c": (Fixed("d", 3),)}
    assert plain(Plain("e", [nested])) == asdict(Plain("e", [nested]))
    assert isinstance(plain(nested)["c"], tuple)
    array = np.zeros(2)
    assert plain([array])[0] is array


def test_a_frozen_record_stays_what_it_is() -> None:
    one = Fixed("a", 2)
    assert {one: 1}[Fixed("a", 2)] == 1
    assert replace(one, size=3) == Fixed("a", 3)
    assert one.double == 4
    for name in ("name", "other"):
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, "b")
    with pytest.raises(FrozenInstanceError):
        del one.name
    assert one == Fixed("a", 2)


def test_one_without_equality_is_equal_to_itself_only() -> None:
    one = Own("a")
    assert one != Own("a")
    assert {one, Own("a")} > {one}


def test_a_record_takes_what_a_dataclass_takes() -> None:
    assert Fixed("a") == Fixed(name="a", size=0)
    assert Plain("a").seen is not Plain("a").seen
    assert str(inspect.signature(Fixed)) == "(name: 'str', size: 'int' = 0)"
    make: Any = Fixed
    with pytest.raises(TypeError, match=r"Fixed.__init__\(\) missing 1 required positional argument: 'name'"):
        make()
    with pytest.raises(TypeError, match="unexpected keyword argument 'sise'"):
        make("a", sise=1)


@record
class Checked:
    """Looks at what it is given."""

    size: int

    def __post_init__(self) -> None:
        self.double = 2 * self.size


@record
class Derived(Checked):
    """Has one more field."""

    name: str = ""


def test_a_record_may_derive_from_one_and_look_at_what_it_is_given() -> None:
    assert Checked(2).double == 4
    assert Derived(2, "a").double == 4
    assert repr(Derived(size=2)) == "Derived(size=2, name='')"
