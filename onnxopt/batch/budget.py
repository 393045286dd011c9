"""Budgets: conditions on figures of a run, such as `nodes_after > 500`, under which the run fails."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from onnxopt.errors import UsageError
from onnxopt.verification import PROVEN, UNVERIFIED

FIGURES: Final = (
    *("nodes_before", "nodes_after", "nodes_removed", "bytes_before", "bytes_after", "bytes_removed", "rewrites"),
    *("max_rel", "rolled_back", "verified", "seconds"),
)
_OPERATORS: Final[dict[type, Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b if b else float("inf") if a else 0.0,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.And: lambda *values: all(values),
    ast.Or: lambda *values: any(values),
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_MAX_CONDITION: Final = 500
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class Budget:
    """A condition under which a run fails."""

    text: str
    tree: ast.expr

    def exceeded(self, report: Mapping[str, Any]) -> str:
        """Return the condition with its figures for a report (`api.Report.to_dict()`); "" if false."""
        figures = figures_of(report)
        if not _value(self.tree, figures):
            return ""
        names = dict.fromkeys(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and n.id in figures)
        shown = {name: format(figures[name], "," if isinstance(figures[name], int) else ".3g") for name in names}
        said = ", ".join(f"{name} = {value}" for name, value in shown.items())
        return f"{self.text} ({said})" if said else self.text


def parse_budget(text: str) -> Budget:
    """Return the budget of a text such as `bytes_after > 20 * MiB or rolled_back`.

    Allowed: figures, numbers, units, + - * /, comparisons, `and`, `or`, `not`. Raises UsageError with the column of a
    fault.
    """
    text = " ".join(text.split())
    if len(text) > _MAX_CONDITION:
        raise UsageError(f"--fail-if '{text[:40]}…': longer than {_MAX_CONDITION} characters", _hint())
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:  # deep nesting raises the last two
        column, said = (e.offset or len(text) or 1, e.msg) if isinstance(e, SyntaxError) else (1, "cannot be parsed")
        raise UsageError(f"--fail-if {text!r}: column {column}: {said}", _hint()) from None
    _check(tree, text)
    return Budget(text, tree)


def _hint() -> str:
    return f"for example 'nodes_after > 500'; figures are {', '.join(FIGURES)}"


def _check(node: ast.expr, text: str) -> None:
    """Raise UsageError for the first part of an expression that `_value` does not know."""
    operators = node.ops if isinstance(node, ast.Compare) else [getattr(node, "op", None)]
    if all(type(o) in _OPERATORS for o in operators):
        for child in filter(_is_expression, ast.iter_child_nodes(node)):
            _check(child, text)
    elif not _is_leaf(node):
        piece = ast.get_source_segment(text, node) or type(node).__name__
        column = len(text.encode()[: node.col_offset].decode()) + 1  # the tree counts bytes
        raise UsageError(f"--fail-if {text!r}: column {column}: {piece!r} is not known", _hint())


def _is_expression(node: ast.AST) -> TypeGuard[ast.expr]:
    return isinstance(node, ast.expr)


def _is_leaf(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
    return isinstance(node, ast.Name) and (node.id in FIGURES or node.id in _UNITS)


def _value(node: ast.expr, figures: Mapping[str, float]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return figures[node.id] if node.id in figures else _UNITS[node.id]
    values = [_value(child, figures) for child in filter(_is_expression, ast.iter_child_nodes(node))]
    if isinstance(node, ast.Compare):  # a chain, as in `1 < nodes < 9`
        return all(_OPERATORS[type(o)](a, b) for o, a, b in zip(node.ops, values, values[1:]))
    assert isinstance(node, (ast.BinOp, ast.BoolOp, ast.UnaryOp))
    return _OPERATORS[type(node.op)](*values)


def figures_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a report.

    verified: 1 if proven or unchanged. max_rel: largest difference, infinite if nothing was compared, 0 if unchanged.
    """
    pipeline: Mapping[str, Any] = report["pipeline"]
    verdict: Mapping[str, Any] = report.get("verification") or {}
    before, after, same = pipeline["nodes_before"], pipeline["nodes_after"], not report["changed"]
    compared = verdict.get("status", UNVERIFIED) != UNVERIFIED
    return {
        "nodes_before": before,
        "nodes_after": after,
        "nodes_removed": before - after,
        "bytes_before": report["bytes_before"],
        "bytes_after": report["bytes_after"],
        "bytes_removed": report["bytes_before"] - report["bytes_after"],
        "rewrites": sum(
            rule["hits"] for p in pipeline["passes"] if p.get("changed", True) for rule in p["rules"].values()
        ),
        "max_rel": 0.0 if same else verdict["worst_rel"] if compared else float("inf"),
        "rolled_back": len(report["rolled_back"]),
        "verified": int(same or verdict.get("status") in PROVEN),
        "seconds": report["seconds"],
    }
