"""A Reshape past a Transpose: what is said of dims holds of arrays, whatever the symbols are."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxopt.graph.value import Dim, Shape
from onnxopt.rewriting.axis_runs import Moved, after, before_transpose, behind_transpose, constant_target, inverse

SYMBOLS = {"N": (0, 1, 3), "S": (1, 2)}
FACTORS = st.lists(st.sampled_from([1, 2, 2, 3, "N", "S"]), min_size=1, max_size=5)


def named(run: list[int | str]) -> Dim:
    """The product of a run, written as sizes are."""
    number = prod(d for d in run if isinstance(d, int))
    symbols = sorted(d for d in run if isinstance(d, str))
    parts = ([] if number == 1 and symbols else [str(number)]) + symbols
    return number if not symbols else symbols[0] if parts == symbols[:1] else "{" + "*".join(parts) + "}"


@st.composite
def joined(draw: st.DrawFn, factors: list[int | str]) -> Shape:
    """The factors, in order, as dims: neighbours joined, and ones between them."""
    dims: list[Dim] = []
    rest = factors
    while rest:
        n = draw(st.integers(1, len(rest)))
        dims += [1] * draw(st.integers(0, 1)) + [named(rest[:n])]
        rest = rest[n:]
    return tuple(dims) + (1,) * draw(st.integers(0, 1))


def sizes(dims: Shape, values: dict[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else eval(str(d).strip("{}"), {}, dict(values)) for d in dims)


def all_values() -> list[dict[str, int]]:
    return [dict(zip(SYMBOLS, v)) for v in itertools.product(*SYMBOLS.values())]


@given(st.data())
def test_a_reshape_before_the_transpose(data: st.DataObject) -> None:
    factors = data.draw(FACTORS)
    turned, target = data.draw(joined(factors)), data.draw(joined(factors))
    back = data.draw(st.permutations(range(len(turned))))
    dims, perm = tuple(turned[i] for i in back), inverse(back)
    found = before_transpose(dims, perm, target)
    if found is None:
        return
    for values in all_values():
        x = np.arange(prod(sizes(dims, values))).reshape(sizes(dims, values))
        expected = x.transpose(perm).reshape(sizes(target, values))
        assert np.array_equal(x.reshape(sizes(found.dims, values)).transpose(found.perm), expected)


@given(st.data())
def test_a_reshape_behind_the_transpose(data: st.DataObject) -> None:
    factors = data.draw(FACTORS)
    dims, target = data.draw(joined(factors)), data.draw(joined(factors))
    perm = data.draw(st.permutations(range(len(target))))
    order = behind_transpose(dims, target, perm)
    if order is None:
        return
    for values in all_values():
        x = np.arange(prod(sizes(dims, values))).reshape(sizes(dims, values))
        expected = x.reshape(sizes(target, values)).transpose(perm)
        assert np.array_equal(x.transpose(order).reshape(expected.shape), expected)


@given(st.permutations(range(5)), st.permutations(range(5)))
def test_orders(p: list[int], q: list[int]) -> None:
    x = np.empty((2, 3, 4, 5, 6))
    assert x.transpose(p).transpose(inverse(p)).shape == x.shape
    assert x.transpose(p).transpose(q).shape == x.transpose(after(p, q)).shape


@pytest.mark.parametrize(
    ("dims", "perm", "target", "found"),
    [
        ((8, 8, 4), (1, 0, 2), (2, 4, 8, 4), ((8, 2, 4, 4), (1, 2, 0, 3))),  # which 8 is seen by its place
        ((8, "{4*N}", 4), (1, 0, 2), ("N", 4, 8, 4), ((8, "N", 4, 4), (1, 2, 0, 3))),
        ((1, 6, 3), (0, 2, 1), (1, 3, 2, 3), ((1, 2, 3, 3), (0, 3, 1, 2))),  # the first one stays the first
        ((2, 3, 4), (1, 0, 2), (6, 4), None),  # side by side, in another order
        ((2, 3, 4), (0, 2, 1), (6, 4), None),  # 8 and 3: no run ends where one of these does
        ((2, 3, 4), (0, 2, 1), (8, 3), None),  # in order, not side by side
        (("N", 3), (1, 0), (3, "S"), None),  # not provably the same size
        (("N", None), (1, 0), ("N", 3), None),
        ((2, 0), (1, 0), (0, 2), None),
        ((1, 1), (1, 0), (1,), None),  # nothing that could be said to move
        (("{N+1}", 4), (1, 0), (2, 2, "{N+1}"), (("{N+1}", 2, 2), (1, 2, 0))),  # a symbol like any other
        (('"2*N"', 4), (1, 0), (4, 2, "N"), None),  # a file may call a dim anything
        (("*".join(["{N", *["N"] * 40]) + "}", 4), (1, 0), (4, 2, "N"), None),  # too many symbols to compare
    ],
)
def test_what_stays_side_by_side(
    dims: Shape, perm: tuple[int, ...], target: Shape, found: tuple[Shape, tuple[int, ...]] | None
) -> None:
    assert before_transpose(dims, perm, target) == (None if found is None else Moved(*found))


@pytest.mark.parametrize("perm", [(-1, 0), (0, 0), (1,), (2, 0, 1)])
def test_what_is_no_order(perm: tuple[int, ...]) -> None:
    assert before_transpose((6, 4), perm, (4, 2, 3)) is None
    assert behind_transpose((4, 2, 3), (4, 6), perm) is None


@pytest.mark.parametrize(
    ("dims", "wanted", "target"),
    [
        ((8, "N", 16), (8, "N", 4, 4), [8, 0, 4, 4]),
        (("N", "S", 16), ("N", "S", 4, 4), [0, 0, 4, 4]),
        (("N", 16), (4, "N", 4), [4, -1, 4]),
        ((None, 16), (None, 4, 4), [-1, 4, 4]),  # what is not known is not the same
        (("N", "S", 16), ("N", 4, "S", 4), None),  # a dim of 0 is not copied beside one that is inferred
        (("N", "S"), (1, "N", "S"), None),
        ((2, 0), (0, 2), None),
    ],
)
def test_constant_targets(dims: Shape, wanted: Shape, target: list[int] | None) -> None:
    assert constant_target(dims, wanted) == target
