"""Budgets: conditions on figures of a run, such as `nodes_after > 500`, under which the run fails."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onnxopt.errors import UsageError
from onnxopt.verification import PROVEN, UNVERIFIED

FIGURES: Final = (
    *("nodes_before", "nodes_after", "nodes_removed", "bytes_before", "bytes_after", "bytes_removed", "rewrites"),
    *("max_rel", "rolled_back", "verified", "seconds"),
)
_ARITHMETIC: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: Final[dict[type, Callable[[Any, Any], bool]]] = {
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
        said = ", ".join(f"{name} = {_shown(figures[name])}" for name in names)
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
    children: list[ast.expr]
    if isinstance(node, ast.Compare) and all(type(o) in _COMPARISONS for o in node.ops):
        children = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        children = [node.left, node.right]
    elif isinstance(node, ast.BoolOp):
        children = node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        children = [node.operand]
    elif _is_leaf(node):
        children = []
    else:
        piece = ast.get_source_segment(text, node) or type(node).__name__
        column = len(text.encode()[: node.col_offset].decode()) + 1  # the tree counts bytes
        raise UsageError(f"--fail-if {text!r}: column {column}: {piece!r} is not known", _hint())
    for child in children:
        _check(child, text)


def _is_leaf(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
    return isinstance(node, ast.Name) and (node.id in FIGURES or node.id in _UNITS)


def _value(node: ast.expr, figures: Mapping[str, float]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return figures[node.id] if node.id in figures else _UNITS[node.id]
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, figures)
        return not value if isinstance(node.op, ast.Not) else -value
    if isinstance(node, ast.BoolOp):
        values = (bool(_value(v, figures)) for v in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, figures), _value(node.right, figures)
        if isinstance(node.op, ast.Div) and not right:
            return float("inf") if left else 0.0
        return _ARITHMETIC[type(node.op)](left, right)
    assert isinstance(node, ast.Compare)
    return _holds(node, figures)


def _holds(node: ast.Compare, figures: Mapping[str, float]) -> bool:
    """Return whether all comparisons of a chain, as in `1 < nodes < 9`, hold."""
    left = _value(node.left, figures)
    for op, comparator in zip(node.ops, node.comparators):
        right = _value(comparator, figures)
        if not _COMPARISONS[type(op)](left, right):
            return False
        left = right
    return True


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


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
