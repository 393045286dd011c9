"""Sizes as expressions: the algebra and the proofs hold for every value of the symbols."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onnxopt.analysis.shapes.symbolic import (
    Expr,
    Floor,
    Size,
    differs,
    divide,
    is_minimum,
    is_nonnegative,
    is_positive,
    lower_bound,
    minimum,
    quotient,
    symbol,
    vanishes_with,
)
from onnxopt.graph.dims import as_symbol, as_written

a, b = symbol("a"), symbol("b")
SIZES = st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.integers(0, 9)})


def value(size: Size, of: dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    total = 0
    for monomial, coefficient in size.terms:
        for name in monomial:
            coefficient *= value(name.size, of) // name.divisor if isinstance(name, Floor) else of[name]
        total += coefficient
    return total


@st.composite
def trees(draw: Any, depth: int = 3) -> tuple[Size, Any]:
    """(expression, function that computes it from numbers)."""
    if not depth or draw(st.booleans()):
        n = draw(st.integers(-3, 3))
        return draw(st.sampled_from([(n, lambda of: n), (a, lambda of: of["a"]), (b, lambda of: of["b"])]))  # type: ignore[no-any-return]
    (x, f), (y, g) = draw(trees(depth - 1)), draw(trees(depth - 1))
    kind = draw(st.sampled_from("+-*"))
    if kind == "+":
        return x + y, lambda of: f(of) + g(of)
    if kind == "-":
        return x - y, lambda of: f(of) - g(of)
    return x * y, lambda of: f(of) * g(of)


@given(trees(), SIZES)
def test_expressions_compute_what_they_say(tree: Any, of: dict[str, int]) -> None:
    size, function = tree
    assert value(size, of) == function(of)
    assert isinstance(size, (int, Expr))


@given(trees(), st.integers(1, 6), trees(2), st.integers(1, 6), SIZES)
def test_floors_and_bounds_hold_for_every_size(x: Any, d: int, y: Any, e: int, of: dict[str, int]) -> None:
    inner = quotient(x[0], d)
    assert inner is not None and value(inner, of) == value(x[0], of) // d
    outer = quotient(inner + y[0], e)
    if outer is not None:
        assert value(outer, of) == (value(x[0], of) // d + value(y[0], of)) // e
        assert not is_nonnegative(outer) or value(outer, of) >= 0
        low = lower_bound(outer, of)
        assert low is None or low <= value(outer, of)


@given(trees(), trees(), SIZES)
def test_proofs_hold_for_every_size(x: Any, y: Any, of: dict[str, int]) -> None:
    p, q = x[0], y[0]
    if p == q:
        assert value(p, of) == value(q, of)
    if differs(p, q):
        assert value(p, of) != value(q, of)
    if is_nonnegative(p):
        assert value(p, of) >= 0
    if is_positive(p):
        assert value(p, of) > 0
    if vanishes_with(p, q) and not value(q, of):
        assert value(p, of) == 0
    result = divide(p, q)
    if result is not None and value(q, of):
        assert value(result, of) * value(q, of) == value(p, of)


def test_one_form_for_equal_expressions() -> None:
    assert (a + b) * 2 - a == a + 2 * b == b + a + b
    assert a - a == 0
    assert (a + 1) - a == 1
    assert divide(a * b * 8, b * 4) == a * 2
    assert divide(a + 1, 2) is None
    assert divide(a * 4, a + b) is None
    assert divide((a + b) * (a * 4 + 2), a + b) == a * 4 + 2
    assert divide((a + b) * (a - b) + 1, a + b) is None
    assert divide(a, 0) is None


def test_the_floor_of_a_quotient() -> None:
    assert quotient(-3, 2) == -2
    assert quotient(a * 4 + 3, 2) == a * 2 + 1
    assert quotient(a + 1, 2) == quotient(1 + a, 2) != quotient(a, 2)
    assert quotient(symbol("x" * 300) + 1, 2) is None
    half = quotient(a + 1, 2)
    assert half is not None and quotient(half + 1, 2) == quotient(a + 3, 4) == quotient(a - 1, 4) + 1  # type: ignore[operator]
    assert quotient(a * 6 + 4, 4) == a + quotient(a + 2, 2)  # type: ignore[operator]
    assert quotient(a * b * 2 - 7, 4) == quotient(a * b, 2) - 2 + quotient(1, 4)  # type: ignore[operator]
    assert differs(a, -1)
    assert not differs(a, 0)
    assert str(2 * a * b + 1) == "1+2*a*b"


def test_the_smaller_of_a_size_and_a_number() -> None:
    assert minimum(3, 2) == minimum(2, 3) == 2
    assert minimum(a + 1, 2) == minimum(1 + a, 2) != minimum(a, 2)
    assert minimum(symbol("x" * 300), 2) is None
    for of in (a, a + 1, symbol(as_symbol("a, b"))):
        cut = minimum(of, 2)
        assert cut is not None
        assert [is_minimum(cut, other) for other in (of, a * 2, b, 2)] == [True, False, False, False]
    assert not is_minimum(2, a)


def test_names_of_dims_cannot_be_mistaken() -> None:
    """A file may call a dim "a+b"; what is computed is called otherwise, also where that is a part of it."""
    assert (a.name, (a + b).name, (2 * a).name) == ("a", "{a+b}", "{2*a}")  # type: ignore[union-attr]
    assert symbol("a+b") != a + b
    odd = symbol(as_symbol("a+b"))
    assert odd.name == '"a+b"'
    assert (2 * odd).name == '{2*"a+b"}'  # type: ignore[union-attr]
    assert as_symbol("a.b_1") == "a.b_1"


@given(st.text(alphabet='ab1+*{}()/@?" \\\n', min_size=1))
def test_a_name_of_a_file_is_no_expression_and_comes_back(name: str) -> None:
    called = as_symbol(name)
    assert as_written(called) == name
    assert "@" not in called
    assert not called.startswith(("{", "?", "1"))


def test_what_is_empty_with_something_else() -> None:
    assert vanishes_with(a * b * 2, a * 4)
    assert not vanishes_with(a * 4, a * b)
    assert vanishes_with(a * b, a + b * b)
    assert not vanishes_with(a + b, a)
    assert not vanishes_with(a, a - b)
    assert vanishes_with(a, b + 1)
    assert not vanishes_with(a, 0)
    assert is_positive(a + 1)
    assert not is_positive(a * 2)
