"""Patterns written as what they look like: ONNX text, a FunctionProto, a Python function, or an expression.

    (x, w) => (y) { c = Conv (x, w)  y = Relu (c) }      ONNX text, the body of a function
    lambda x, w: op.Relu(op.Conv(x, w))                  the same over `op`
    Relu(Conv(x, w))                                     the same as an expression

All become the patterns that rules are made of. Attributes that are written must be equal, those that are not must
have their defaults, constants must be equal in type, shape and elements (a number: as everywhere in patterns).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, TypeAlias

from onnx import FunctionProto

from onnxopt.errors import UsageError
from onnxopt.protos import Array, attribute_value, qualified
from onnxopt.rewriting.matcher import same
from onnxopt.rewriting.pattern import Call, Const, Either, Literal, Pattern, const, var, variants

Source: TypeAlias = "str | FunctionProto | Call | Callable[..., Any]"

_HEADER = '<domain: "example", opset_import: ["" : {opset}]> example '
_HINT = "an example is like Relu(Conv(x, w)), or (x, w) => (y) { c = Conv (x, w) y = Relu (c) }"


@dataclass(frozen=True)
class Example:
    """`results`: one pattern for each value it results in. `parameters`: names of its variables, in order."""

    results: tuple[Pattern, ...]
    parameters: tuple[str, ...]

    def variants(self) -> list[tuple[Call, ...]]:
        """Plain patterns (fixed operand order), one call for each result. Raises UsageError for a bare variable."""
        if not all(isinstance(r, Call) for r in self.results) or not self.results:
            raise UsageError("a pattern results in operators, not in its variables", _HINT)
        return list(product(*(variants(_comparing(r)) for r in self.results if isinstance(r, Call))))


def _comparing(p: Any) -> Any:
    """`p` with written attributes as predicates, which compare tensors too."""
    if not isinstance(p, Call):
        return p
    attributes = tuple((k, v if callable(v) else partial(same, _plain(v))) for k, v in p.attributes)
    return replace(p, inputs=tuple(map(_comparing, p.inputs)), attributes=attributes)


def example(
    source: Source, *, opset: int = 21, exact: bool = True, ignore_literals: bool = False, shared: bool = False
) -> Example:
    """Read an example. Raises UsageError where it is not one.

    `exact`: attributes that are not written have their defaults. `ignore_literals`: attributes and constants are not
    compared. `shared`: results in between may be used elsewhere. `opset` is that of ONNX text.
    """
    if isinstance(source, str):
        read = _from_text(source, opset) if "=>" in source else _from_expression(source)
    elif isinstance(source, FunctionProto):
        read = _from_function(source)
    elif isinstance(source, Call):
        read = Example((source,), ())
    else:
        read = _from_callable(source)
    normal = _Normaliser(exact, ignore_literals, shared)
    return Example(tuple(normal(r) for r in read.results), read.parameters)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# -- readers -------------------------------------------------------------------------------------------------


def _from_callable(function: Callable[..., Any]) -> Example:
    names = list(inspect.signature(function).parameters)
    found = function(*(var(n) for n in names))
    return Example(tuple(found) if isinstance(found, (tuple, list)) else (found,), tuple(names))


def _from_text(text: str, opset: int) -> Example:
    from onnx import parser

    whole = text if text.lstrip().startswith("<") else _HEADER.format(opset=opset) + text
    try:
        return _from_function(parser.parse_function(whole))
    except parser.ParseError as e:
        reason = [line for line in str(e).splitlines() if line.strip()]
        raise UsageError(f"the example cannot be read: {' '.join(reason)}", _HINT) from None


def _from_function(function: FunctionProto) -> Example:
    values: dict[str, Pattern] = {name: var(name) for name in function.input}
    for node in function.node:
        attributes = {a.name: attribute_value(a) for a in node.attribute if not a.ref_attr_name}
        free = [a.name for a in node.attribute if a.ref_attr_name]
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            raise UsageError(f"{node.op_type}: an example holds no bodies of control flow", _HINT)
        if node.op_type == "Constant" and not node.domain:
            values[node.output[0]] = _constant(next(iter(attributes.values()), None))
            continue
        missing = [name for name in node.input if name and name not in values]
        if missing:
            raise UsageError(f"{node.op_type} reads `{missing[0]}`, which nothing defines", _HINT)
        inputs = tuple(values[name] if name else None for name in node.input)
        written = (*attributes.items(), *((name, _anything) for name in free))
        call = Call((qualified(node.op_type, node.domain),), inputs, node.name or None, written)
        for i, name in enumerate(node.output):
            values[name] = call.at(i)
    missing = [name for name in function.output if name not in values]
    if missing:
        raise UsageError(f"the example results in `{missing[0]}`, which nothing defines", _HINT)
    return Example(tuple(values[name] for name in function.output), tuple(function.input))


def _constant(value: Any) -> Pattern:
    """A one-element constant is a number; what is larger has to be equal."""
    if isinstance(value, (int, float)):
        return value
    array: Array = value
    return array.reshape(-1)[0].item() if array.size == 1 and array.dtype.kind in "fiub" else Literal(array)


def _from_expression(text: str) -> Example:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as e:
        raise UsageError(f"the example cannot be read: {e.msg} at column {e.offset}", _HINT) from None
    parameters: dict[str, None] = {}
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return Example(tuple(_expression(p, parameters) for p in parts), tuple(parameters))


def _expression(tree: ast.expr, parameters: dict[str, None]) -> Pattern:
    if isinstance(tree, ast.Name):
        if tree.id == "_":
            return None
        parameters[tree.id] = None
        return var(tree.id)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr) and isinstance(tree.right, ast.Call):
        if isinstance(tree.left, ast.Call):
            return Either((_expression(tree.left, parameters), _expression(tree.right, parameters)))
        # `Abs|Max(x)` is written as patterns are printed: one call of either operator.
        either = ast.BinOp(tree.left, tree.op, tree.right.func)
        tree = ast.copy_location(ast.Call(either, tree.right.args, tree.right.keywords), tree)
    if isinstance(tree, ast.Call):
        ops = _operators(tree.func)
        if ops == ("const",):
            (name,) = tree.args
            assert isinstance(name, ast.Name)
            parameters[name.id] = None
            return const(name.id)
        inputs: list[Any] = [
            ... if isinstance(a, ast.Constant) and a.value is ... else _expression(a, parameters) for a in tree.args
        ]
        variadic = bool(inputs) and inputs[-1] is ...
        if variadic:
            inputs.pop()
        options = {k.arg: ast.literal_eval(k.value) for k in tree.keywords if k.arg}
        name, shared = options.pop("name", None), options.pop("shared", False)
        return Call(ops, tuple(inputs), name, tuple(options.items()), bool(shared), variadic)
    try:
        number = ast.literal_eval(tree)
    except ValueError:
        number = None
    if not isinstance(number, (int, float)):
        raise UsageError(f"the example cannot be read: `{ast.unparse(tree)}` at column {tree.col_offset + 1}", _HINT)
    return number


def _operators(tree: ast.expr) -> tuple[str, ...]:
    """`Conv`, `Conv | Gemm`, `com.microsoft.Gelu`."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return _operators(tree.left) + _operators(tree.right)
    domain, _, op_type = ast.unparse(tree).rpartition(".")
    return (qualified(op_type, domain),)


def _anything(value: object) -> bool:
    return True


# -- one form for all ----------------------------------------------------------------------------------------


class _Normaliser:
    """Gives every call a name (the same to all uses of one call) and applies the options."""

    def __init__(self, exact: bool, ignore_literals: bool, shared: bool) -> None:
        self.exact = exact and not ignore_literals
        self.ignore_literals = ignore_literals
        self.shared = shared
        self.names: dict[object, str] = {}
        self.counts: dict[str, int] = {}

    def __call__(self, p: Pattern) -> Pattern:
        if isinstance(p, Call):
            return replace(
                p,
                name=self._name(p),
                inputs=tuple(self(i) for i in p.inputs),
                attributes=() if self.ignore_literals else p.attributes,
                exact=self.exact or p.exact,
                shared=self.shared or p.shared,
            )
        if isinstance(p, Either):
            return replace(p, choices=tuple(self(c) for c in p.choices))
        if self.ignore_literals and isinstance(p, (Literal, int, float)):
            return Const(self._fresh("literal"))
        return p

    def _name(self, p: Call) -> str:
        if p.name is not None:
            return p.name
        if p.key not in self.names:
            self.names[p.key] = self._fresh(p.ops[0].rpartition("::")[2])
        return self.names[p.key]

    def _fresh(self, stem: str) -> str:
        self.counts[stem] = n = self.counts.get(stem, 0) + 1
        return f"{stem}_{n}"
