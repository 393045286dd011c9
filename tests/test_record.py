"""Records are dataclasses with methods made later."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from onnxopt.startup.record import plain, record


@record
class Plain:
    """Two fields, one excluded from comparison."""

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


def test_the_hundredth_object_is_made_like_the_first() -> None:
    """Compiled by then."""
    many = [Fixed("a", size=n) for n in range(100)]
    assert [f.double for f in many] == list(range(0, 200, 2))
    assert all(replace(f, size=0) == many[0] for f in many)
    assert Plain("a").seen is not Plain("a").seen
    for _ in range(100):
        Plain("a", seen=[])
    assert Plain("a").seen is not Plain("a").seen


@record(frozen=True)
class Base:
    """Has an attribute of the class, which is no field."""

    kind: ClassVar[str] = "base"
    name: str = field(default="", kw_only=True)

    def __hash__(self) -> int:
        return 7


@record(frozen=True)
class Longer(Base):
    """Takes its own field by position."""

    size: int = 0


@dataclass(frozen=True)
class Ordinary(Longer):
    """A dataclass that is derived from a record."""

    more: int = 1


def test_frozen_records_and_frozen_dataclasses_derive_from_each_other() -> None:
    assert repr(Longer(3, name="a")) == "Longer(name='a', size=3)"
    assert str(inspect.signature(Longer)) == "(size: 'int' = 0, *, name: 'str' = '')"
    assert replace(Ordinary(3, 4, name="a"), size=5) == Ordinary(5, 4, name="a") != Longer(5, name="a")
    assert hash(Base()) == 7 and hash(Longer(1)) == hash(Longer(1))
    make: Any = Longer
    for args, given in (((1, "a"), {}), ((1,), {"size": 2})):
        with pytest.raises(TypeError, match=r"Longer.__init__\(\)"):
            make(*args, **given)
    assert Longer(1, name="b").name == "b", "compiled for its words"
    for one in (Base(), Longer(), Ordinary()):
        for name in ("name", "kind"):
            with pytest.raises(FrozenInstanceError):
                setattr(one, name, "c")
    with pytest.raises(TypeError, match="non-frozen"):
        dataclass(type("Loose", (Longer,), {}))


@record
class Checked:
    """Checks its arguments."""

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
