"""Patterns written as Python expressions: `Relu(Conv(x, const(w), ..., group=1))`."""

from __future__ import annotations

import ast
from typing import Any, Final

from onnxopt.errors import UsageError
from onnxopt.proto.messages import qualified
from onnxopt.rewriting.pattern import About, Call, Either, Pattern, about, as_held, const, var

HINT: Final = "an example is like Relu(Conv(x, w)), or (x, w) => (y) { c = Conv (x, w) y = Relu (c) }"


def read_expression(text: str) -> tuple[tuple[Pattern, ...], tuple[str, ...]]:
    """Return (results, variable names in order). Raises UsageError for an invalid expression."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as e:
        where = f"column {e.offset}" if e.offset else "its end"
        raise UsageError(f"the example cannot be read: {e.msg} at {where}", HINT) from None
    parameters: dict[str, None] = {}
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return tuple(_expression(p, parameters) for p in parts), tuple(parameters)


def _expression(tree: ast.expr, parameters: dict[str, None]) -> Pattern:
    if isinstance(tree, ast.Name):
        if tree.id == "_":
            return None
        parameters[tree.id] = None
        return var(tree.id)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr) and isinstance(tree.right, ast.Call):
        if isinstance(tree.left, ast.Call):
            return Either((_expression(tree.left, parameters), _expression(tree.right, parameters)))
        # `Abs|Max(x)`, as patterns are printed: a call of either operator.
        either = ast.BinOp(tree.left, tree.op, tree.right.func)
        tree = ast.copy_location(ast.Call(either, tree.right.args, tree.right.keywords), tree)
    if isinstance(tree, ast.Call):
        ops = _operators(tree.func)
        if ops == ("const",):
            (name,) = tree.args
            assert isinstance(name, ast.Name)
            parameters[name.id] = None
            return const(name.id)
        if ops == ("about",):
            return _about(tree)
        inputs: list[Any] = [
            ... if isinstance(a, ast.Constant) and a.value is ... else _expression(a, parameters) for a in tree.args
        ]
        variadic = bool(inputs) and inputs[-1] is ...
        if variadic:
            inputs.pop()
        options = {k.arg: _attribute(k.value) for k in tree.keywords if k.arg}
        name, shared = options.pop("name", None), options.pop("shared", False)
        return Call(ops, tuple(inputs), name, as_held(options), bool(shared), variadic)
    number = _literal(tree)
    if not isinstance(number, (int, float)):
        raise _unreadable(tree)
    return number


def _attribute(tree: ast.expr) -> Any:
    """Return a literal, or an About for `about(0.1, 1e-3)`."""
    is_about = isinstance(tree, ast.Call) and _operators(tree.func) == ("about",)
    return _about(tree) if is_about and isinstance(tree, ast.Call) else _literal(tree)


def _about(tree: ast.Call) -> About:
    given = [_literal(a) for a in tree.args]
    if not given or len(given) > 2 or tree.keywords:
        raise _unreadable(tree)
    return about(*given)


def _literal(tree: ast.expr) -> Any:
    """Return a number (also `1/6`), text, or list."""
    try:
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
            return _literal(tree.left) / _literal(tree.right)
        return ast.literal_eval(tree)
    except (ValueError, TypeError, ZeroDivisionError):
        raise _unreadable(tree) from None


def _unreadable(tree: ast.expr) -> UsageError:
    return UsageError(f"the example cannot be read: `{ast.unparse(tree)}` at column {tree.col_offset + 1}", HINT)


def _operators(tree: ast.expr) -> tuple[str, ...]:
    """`Conv`, `Conv | Gemm`, `com.microsoft.Gelu`."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return _operators(tree.left) + _operators(tree.right)
    domain, _, op_type = ast.unparse(tree).rpartition(".")
    return (qualified(op_type, domain),)
