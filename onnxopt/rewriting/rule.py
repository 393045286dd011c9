"""A rule: patterns, a plain function, and the checks of its decorator."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onnxopt.errors import PassError, broken
from onnxopt.rewriting.pattern import Call, Either, Form, Pattern, check_variants, depth, forms, names
from onnxopt.startup.record import record

if TYPE_CHECKING:
    from onnxopt.rewriting.match import Match


class Declined(Exception):
    """A guard does not hold; the message is the reason shown to users."""


@record(frozen=True, eq=False)
class Rule:
    """A rewrite rule. `apply(m, **bound)` returns the replacements of the anchor's outputs where `source` matches."""

    name: str
    source: Pattern
    apply: Callable[..., Any]

    @cached_property
    def roots(self) -> tuple[Call, ...]:
        """Calls at which a match may start."""
        return tuple(c for c in _choices(self.source) if isinstance(c, Call))

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Operators of the anchor node."""
        return frozenset(o for c in self.roots for o in c.ops)

    @cached_property
    def depth(self) -> int:
        return depth(self.source)

    @property
    def patterns(self) -> tuple[Call, ...]:
        """All plain patterns of `source`, tried in order."""
        return tuple(p for c in self.roots for p in c.variants)

    def forms(self, op: str) -> list[Form]:
        """Return the forms of the patterns with an anchor of this operator."""
        return [form for c in self.roots if op in c.ops for form in forms(c)]

    def at(self, op: str) -> list[Call]:
        """Return the plain patterns with an anchor of this operator, expanded on first use."""
        return [p for c in self.roots if op in c.ops for p in c.variants]

    @property
    def equation(self) -> str:
        """First line of the function's docstring."""
        return (self.apply.__doc__ or "").strip().partition("\n")[0]

    @property
    def line(self) -> str:
        """Source location: `passes.py:12`."""
        code = self.apply.__code__
        return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"

    def __call__(self, m: Match, **bound: Any) -> Any:
        return self.apply(m, **bound)


def failure(rule: Rule, m: Match, error: BaseException) -> PassError:
    """Return the error for a rule that raised an exception."""
    return broken(
        f"{m.graph.model.name}: {m.graph.path}: rule {rule.name} failed at {m.anchor!r}", error, rule.name, "rule"
    )


def rewrite(pattern: Pattern) -> Callable[[Callable[..., Any]], Rule]:
    """Make a function a rewrite rule.

    The function's first parameter is the match `m`; the others are exactly the pattern's variable names. The function
    returns the replacement of the anchor's first output (a Value), or a tuple with an entry for each output. Raises
    TypeError if parameters and names differ.
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
        if not function.__doc__ and sys.flags.optimize < 2:  # python -OO drops docstrings
            raise TypeError(f"{function.__name__}: a rule states its equation in its docstring")
        return Rule(function.__name__, pattern, function)

    return decorate


def _choices(pattern: Pattern) -> tuple[Pattern, ...]:
    return pattern.choices if isinstance(pattern, Either) else (pattern,)
