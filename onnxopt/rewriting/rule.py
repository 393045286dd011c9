"""A rule: patterns, a plain function, and what the decorator checks when the rule is defined."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onnxopt.errors import PassError, broken
from onnxopt.record import record
from onnxopt.rewriting.pattern import Call, Either, Form, Pattern, check_variants, depth, forms, names

if TYPE_CHECKING:
    from onnxopt.rewriting.match import Match


class Declined(Exception):
    """A guard does not hold; the message is the reason that users see."""


@record(frozen=True, eq=False)
class Rule:
    """`apply(m, **bound)` returns the value(s) that replace the outputs of the anchor, where `source` matches."""

    name: str
    source: Pattern
    apply: Callable[..., Any]

    @cached_property
    def roots(self) -> tuple[Call, ...]:
        """The calls that a match may start with."""
        return tuple(c for c in _choices(self.source) if isinstance(c, Call))

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Operators of the node that a match starts with."""
        return frozenset(o for c in self.roots for o in c.ops)

    @cached_property
    def depth(self) -> int:
        return depth(self.source)

    @property
    def patterns(self) -> tuple[Call, ...]:
        """What `source` stands for, tried in order."""
        return tuple(p for c in self.roots for p in c.variants)

    def forms(self, op: str) -> list[Form]:
        """Those of the patterns that a node of this operator can be the anchor of."""
        return [form for c in self.roots if op in c.ops for form in forms(c)]

    def at(self, op: str) -> list[Call]:
        """These patterns. Expanded on first use: no model has what all of them begin with."""
        return [p for c in self.roots if op in c.ops for p in c.variants]

    @property
    def equation(self) -> str:
        """First line of the function's docstring."""
        return (self.apply.__doc__ or "").strip().partition("\n")[0]

    @property
    def line(self) -> str:
        """Where it is defined: `passes.py:12`."""
        code = self.apply.__code__
        return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"

    def __call__(self, m: Match, **bound: Any) -> Any:
        return self.apply(m, **bound)


def failure(rule: Rule, m: Match, error: BaseException) -> PassError:
    """What to say of a rule that raised."""
    return broken(
        f"{m.graph.model.name}: {m.graph.path}: rule {rule.name} failed at {m.anchor!r}", error, rule.name, "rule"
    )


def rewrite(pattern: Pattern) -> Callable[[Callable[..., Any]], Rule]:
    """Make a function a rewrite rule.

    The function's first parameter is the match `m`; the others are exactly the pattern's variable names. It
    returns the replacement of the anchor's first output (a Value), or a tuple with one entry per output.
    Raises TypeError when parameters and names differ.
    """

    def decorate(function: Callable[..., Any]) -> Rule:
        if not all(isinstance(c, Call) for c in _choices(pattern)):
            raise TypeError(f"{function.__name__}: a pattern starts with the call of an operator: op.Relu(var('x'))")
        check_variants(pattern)
        expected, code = set(names(pattern)), function.__code__
        parameters = set(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])
        if parameters != expected:
            raise TypeError(
                f"{function.__name__}: parameters {sorted(parameters)} are not the pattern's names {sorted(expected)}"
            )
        if not function.__doc__ and sys.flags.optimize < 2:  # with -OO Python drops docstrings
            raise TypeError(f"{function.__name__}: a rule states its equation in its docstring")
        return Rule(function.__name__, pattern, function)

    return decorate


def _choices(pattern: Pattern) -> tuple[Pattern, ...]:
    return pattern.choices if isinstance(pattern, Either) else (pattern,)
