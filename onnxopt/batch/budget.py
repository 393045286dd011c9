"""Budgets: conditions on figures of a run, such as `nodes_after > 500`, under which the run fails."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
    """A condition under which a run fails. `names`: the figures in the text. `value`: of the condition, by figure."""

    text: str
    names: Sequence[str]
    value: Callable[[Mapping[str, float]], Any]

    def exceeded(self, report: Mapping[str, Any]) -> str:
        """Return the condition with its figures for a report (`api.Report.to_dict()`); "" if false."""
        figures = figures_of(report)
        if not self.value(figures | _UNITS):
            return ""
        shown = {name: format(figures[name], "," if isinstance(figures[name], int) else ".3g") for name in self.names}
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
    names = dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in FIGURES)
    return Budget(text, [*names], _compiled(tree, text))


def _hint() -> str:
    return f"for example 'nodes_after > 500'; figures are {', '.join(FIGURES)}"


def _compiled(node: ast.expr, text: str) -> Callable[[Mapping[str, float]], Any]:
    """Return the value of an expression as a function of figures. Raise UsageError for the first unknown part."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return lambda figures: node.value
    if isinstance(node, ast.Name) and node.id in (*FIGURES, *_UNITS):
        return lambda figures: figures[node.id]
    kinds = [*map(type, node.ops if isinstance(node, ast.Compare) else [getattr(node, "op", None)])]
    if not _OPERATORS.keys() >= {*kinds}:
        piece = ast.get_source_segment(text, node) or type(node).__name__
        column = len(text.encode()[: node.col_offset].decode()) + 1  # the tree counts bytes
        raise UsageError(f"--fail-if {text!r}: column {column}: {piece!r} is not known", _hint())
    operators = [_OPERATORS[kind] for kind in kinds]
    parts = [_compiled(child, text) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]

    def value(figures: Mapping[str, float]) -> Any:
        values = [part(figures) for part in parts]
        if isinstance(node, ast.Compare):  # a chain, as in `1 < nodes < 9`
            return all(compare(a, b) for compare, a, b in zip(operators, values, values[1:]))
        return operators[0](*values)

    return value


def figures_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a report; `max_rel` is infinite if nothing was compared, and 0 if unchanged."""
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
