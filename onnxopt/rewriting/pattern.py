"""Patterns as data: expressions that read like ONNX.

  op.Add(op.Conv(var("x"), const("w"), const("b").opt(), name="conv"), const("z"))

Choices (both operand orders of commutative operators, `either`) are tried in turn by the matcher.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from onnxopt.graph.text import float_text
from onnxopt.graph.value import Value
from onnxopt.operators import COMMUTATIVE
from onnxopt.proto.messages import Array


class Var:
    """Any value. Equal names mean the same value.

    `constant`: required to be constant (True) or not constant (False). `when`: condition on a required constant.
    """

    def __init__(
        self,
        name: str,
        optional: bool = False,
        constant: bool | None = None,
        when: Callable[[Value], bool] | None = None,
    ) -> None:
        self.name, self.optional, self.constant, self.when = name, optional, constant, when

    def opt(self) -> Var:
        """Allow the operand to be absent; bound to None then."""
        return Var(self.name, True, self.constant, self.when)


class Const:
    """A constant; the rule receives its read-only array."""

    def __init__(self, name: str, optional: bool = False) -> None:
        self.name, self.optional = name, optional

    def opt(self) -> Const:
        """Allow the operand to be absent; bound to None then."""
        return Const(self.name, True)


class Literal:
    """A constant equal to `array` in type, shape and elements, floats within `tolerance`; or a tensor as attribute."""

    def __init__(self, array: Array, tolerance: float = 0.0) -> None:
        self.array, self.tolerance = array, tolerance

    def __call__(self, found: Any) -> bool:
        return isinstance(found, np.ndarray) and np.array_equal(found, self.array)


class About:
    """A number, or a list attribute, within `tolerance` of `value`: relative, or absolute for zero."""

    def __init__(self, value: float | tuple[float, ...], tolerance: float) -> None:
        self.value, self.tolerance = value, tolerance

    def __call__(self, found: Any) -> bool:
        wanted = self.value if isinstance(self.value, tuple) else (self.value,)
        given = found if isinstance(found, list) else [found]
        return len(given) == len(wanted) and all(
            isinstance(g, (int, float)) and abs(g - w) <= self.tolerance * (abs(w) or 1.0)
            for g, w in zip(given, wanted)
        )

    def __repr__(self) -> str:
        return f"about({shown(self.value)}, {self.tolerance})"


class Either:
    """Alternative patterns, tried in order; none is an Either."""

    def __init__(self, choices: tuple[Pattern, ...]) -> None:
        self.choices = choices


@dataclass(eq=False, repr=False)
class Call:
    """Output `output` of a node that calls one of `ops` on `inputs`.

    An inner call must not be used outside the match, unless `shared`. With `variadic`, more inputs may follow. `reads`:
    some input is a result of one of these operators. Attribute predicates see the schema's defaults; a plain value
    means equality, floats as float32. `exact`: omitted attributes have their defaults. Calls of the same name in a
    pattern mean the same node.
    """

    ops: tuple[str, ...]
    inputs: tuple[Pattern, ...]
    name: str | None = None
    attributes: tuple[tuple[str, Any], ...] = ()
    shared: bool = False
    variadic: bool = False
    output: int = 0
    reads: frozenset[str] = frozenset()
    exact: bool = False
    key: object = field(default_factory=object, compare=False, repr=False)  # identity kept by `at` and `replace`

    @cached_property
    def arity(self) -> int:
        """Number of inputs, asked at each match."""
        return len(self.inputs)

    @cached_property
    def commutes(self) -> bool:
        """Whether the operands commute and differ."""
        pair = len(self.inputs) == 2 and not self.variadic and COMMUTATIVE.issuperset(self.ops)
        return pair and self.inputs[0] != self.inputs[1]

    @cached_property
    def orders(self) -> tuple[tuple[Pattern, ...], ...]:
        """The inputs, in both orders if the operands commute."""
        return (self.inputs, self.inputs[::-1]) if self.commutes else (self.inputs,)

    def at(self, output: int) -> Call:
        """Return the same call, matched through another of its outputs."""
        return replace(self, output=output)


# None: an absent input.
Pattern = Var | Const | Literal | About | Call | Either | int | float | bool | None


def var(name: str, constant: bool | None = None, when: Callable[[Value], bool] | None = None) -> Var:
    """Bind any value to `name`; `constant` restricts it to constants (True), those that satisfy `when`, or to others
    (False).

    A condition in the pattern costs less than a guard of the rule, which is asked again in each round of passes.
    """
    return Var(name, constant=constant, when=when)


def const(name: str) -> Const:
    """Bind a constant to `name`."""
    return Const(name)


def either(*choices: Pattern) -> Either:
    """Match the first of `choices` that fits."""
    return Either(tuple(p for choice in choices for p in alternatives(choice)))


def alternatives(pattern: Pattern) -> tuple[Pattern, ...]:
    """Return the choices of an Either; any other pattern alone."""
    return pattern.choices if isinstance(pattern, Either) else (pattern,)


def about(value: float | Sequence[float], tolerance: float = 1e-3) -> About:
    """Match a number close to `value`, as operand or attribute: `op.HardSigmoid(x, alpha=about(1 / 6))`."""
    return About(tuple(value) if isinstance(value, Sequence) else value, tolerance)


def as_held(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return attributes as stored in a model, with floats rounded to 32 bits."""
    return tuple((name, _held(value)) for name, value in attributes.items())


def _held(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_held, value))
    return float(np.float32(value)) if isinstance(value, (float, np.floating)) else value


def _call(ops: tuple[str, ...]) -> Callable[..., Call]:
    def call(
        *inputs: Any,
        name: str | None = None,
        shared: bool = False,
        output: int = 0,
        reads: Collection[str] = (),
        **attributes: Any,
    ) -> Call:
        variadic = bool(inputs) and inputs[-1] is ...
        patterns = inputs[:-1] if variadic else inputs
        for p in patterns:
            if not isinstance(p, Pattern):
                raise TypeError(
                    f"op.{ops[0]}: {p!r} is no pattern: var('x') is any value, const('w') a constant, "
                    "and op.Relu(...) the result of a call"
                )
        return Call(ops, patterns, name, as_held(attributes), shared, variadic, output, frozenset(reads))

    return call


def one_of(*ops: str) -> Callable[..., Call]:
    """Return a call pattern of any of these operators: `one_of("Add", "Sub")(x, y, name="node")`."""
    return _call(ops)


class _Operators:
    """`op.Conv(...)`: a call pattern; `op["com.microsoft::Gelu"](...)` for other domains."""

    def __getattr__(self, op_type: str) -> Callable[..., Call]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        return _call((op_type,))

    def __getitem__(self, qualified: str) -> Callable[..., Call]:
        return _call((qualified,))


op: Final = _Operators()


def walk(pattern: Pattern) -> Iterator[Pattern]:
    """Yield a pattern and all patterns in it, in order; of an Either its choices."""
    for p in alternatives(pattern):
        yield p
        if isinstance(p, Call):
            for q in p.inputs:
                yield from walk(q)


def names(pattern: Pattern) -> list[str]:
    """Return the names of variables and constants, the parameters of the rule's function."""
    return [p.name for p in walk(pattern) if isinstance(p, (Var, Const))]


def depth(pattern: Pattern) -> int:
    """Return the number of call levels: the distance from the anchor within which a rewrite can affect a match."""
    if isinstance(pattern, Call):
        return 1 + max(bool(pattern.reads), max((depth(p) for p in pattern.inputs), default=0))
    if isinstance(pattern, Either):
        return max(depth(p) for p in pattern.choices)
    return 0


def _call_text(call: Call) -> str:
    inputs = [text(p) for p in call.inputs] + (["..."] if call.variadic else [])
    inputs += [f"{name}={shown(value)}" for name, value in call.attributes]
    inputs += [f"reads={'|'.join(sorted(call.reads))}"] if call.reads else []
    return f"{'|'.join(call.ops)}({', '.join(inputs)})"


def text(pattern: Pattern) -> str:
    """Return the pattern as readable text."""
    if isinstance(pattern, Var):
        return pattern.name + ("?" if pattern.optional else "")
    if isinstance(pattern, Const):
        return f"const {pattern.name}" + ("?" if pattern.optional else "")
    if isinstance(pattern, Either):
        return " | ".join(text(p) for p in pattern.choices)
    if isinstance(pattern, Call):
        return _call_text(pattern)
    if pattern is None:
        return "_"
    if isinstance(pattern, Literal):
        return f"{pattern.array.dtype}{list(pattern.array.shape)}"
    return repr(pattern)


def shown(value: Any) -> str:
    """Return an attribute's value as written in a pattern."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if callable(value) and not isinstance(value, About):
        name = getattr(value, "__name__", "<lambda>")
        return "..." if name == "<lambda>" else name
    return float_text(value) if isinstance(value, float) else repr(value)
