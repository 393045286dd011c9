"""A rule: patterns, a plain function, and what the decorator checks when the rule is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnxopt.rewriting.pattern import Call, Either, Pattern, depth, names, variants

if TYPE_CHECKING:
    from onnxopt.rewriting.match import Match


class Declined(Exception):
    """A guard does not hold; the message is the reason that users see."""


@dataclass(frozen=True, eq=False)
class Rule:
    """`patterns` are tried in order; `apply(m, **bound)` returns the value(s) that replace the anchor's outputs."""

    name: str
    patterns: tuple[Call, ...]
    source: Pattern
    apply: Callable[..., Any]
    anchors: frozenset[str]
    depth: int

    @property
    def equation(self) -> str:
        """First line of the function's docstring."""
        return (self.apply.__doc__ or "").strip().partition("\n")[0]

    def __call__(self, m: Match, **bound: Any) -> Any:
        return self.apply(m, **bound)


def rewrite(pattern: Pattern) -> Callable[[Callable[..., Any]], Rule]:
    """Make a function a rewrite rule.

    The function's first parameter is the match `m`; the others are exactly the pattern's variable names. It
    returns the replacement of the anchor's first output (a Value), or a tuple with one entry per output.
    Raises TypeError when parameters and names differ.
    """

    def decorate(function: Callable[..., Any]) -> Rule:
        roots = pattern.choices if isinstance(pattern, Either) else (pattern,)
        calls = [r for r in roots if isinstance(r, Call)]
        if len(calls) != len(roots):
            raise TypeError(f"{function.__name__}: a pattern starts with an operator")
        expected = set(names(pattern))
        parameters = set(list(inspect.signature(function).parameters)[1:])
        if parameters != expected:
            raise TypeError(
                f"{function.__name__}: parameters {sorted(parameters)} are not the pattern's names {sorted(expected)}"
            )
        if not function.__doc__:
            raise TypeError(f"{function.__name__}: a rule states its equation in its docstring")
        plain = tuple(v for c in calls for v in variants(c))
        return Rule(
            function.__name__,
            plain,
            pattern,
            function,
            frozenset(o for p in plain for o in p.ops),
            depth(pattern),
        )

    return decorate
