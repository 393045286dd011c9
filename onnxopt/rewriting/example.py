"""Patterns from examples: ONNX text, a Python function, an expression, or an existing graph.

  (x, w) => (y) { c = Conv (x, w)  y = Relu (c) }      ONNX text, the body of a function
  lambda x, w: op.Relu(op.Conv(x, w))                  a function over `op`
  Relu(Conv(x, w))                                     an expression
  a FunctionProto, GraphProto, ModelProto, or Graph    its inputs are the variables

All become patterns as in rules. Given attributes must be equal, others must have their defaults. Constants must be
equal in type, shape and elements; single numbers compare as in all patterns.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxopt.errors import UsageError
from onnxopt.graph.graph import Graph
from onnxopt.graph.writer import node_protos
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array, attribute_value, is_external, qualified, tensor_to_array
from onnxopt.rewriting.pattern import (
    About,
    Call,
    Const,
    Either,
    Literal,
    Pattern,
    Var,
    about,
    alternatives,
    as_held,
    const,
    either,
    var,
)
from onnxopt.rewriting.rule import Rule

# -- expressions --------------------------------------------------------------------------------------------------

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
            return either(_expression(tree.left, parameters), _expression(tree.right, parameters))
        # `Abs|Max(x)`, as patterns are printed: a call of either operator.
        ops = ast.BinOp(tree.left, tree.op, tree.right.func)
        tree = ast.copy_location(ast.Call(ops, tree.right.args, tree.right.keywords), tree)
    if isinstance(tree, ast.Call):
        return _called(tree, parameters)
    number = _literal(tree)
    if not isinstance(number, (int, float)):
        raise _unreadable(tree)
    return number


def _called(tree: ast.Call, parameters: dict[str, None]) -> Pattern:
    """Return the pattern of a call: of an operator, of `const` or `about`."""
    ops = _operators(tree.func)
    if ops == ("const",):
        (name,) = tree.args
        assert isinstance(name, ast.Name)
        parameters[name.id] = None
        return const(name.id)
    if ops == ("about",):
        return _about(tree)
    variadic = bool(tree.args) and isinstance(last := tree.args[-1], ast.Constant) and last.value is ...
    inputs = tuple(_expression(a, parameters) for a in (tree.args[:-1] if variadic else tree.args))
    options = {k.arg: _attribute(k.value) for k in tree.keywords if k.arg}
    name, shared = options.pop("name", None), options.pop("shared", False)
    return Call(ops, inputs, name, as_held(options), bool(shared), variadic)


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


# -- examples -----------------------------------------------------------------------------------------------------

Source: TypeAlias = "str | FunctionProto | GraphProto | ModelProto | Graph | Rule | Call | Either | Callable[..., Any]"

_HEADER = '<domain: "example", opset_import: ["" : 21]> example '


@dataclass(frozen=True)
class Example:
    """A pattern read from an example. `results`: a pattern for each result. `parameters`: variable names, in order."""

    results: tuple[Pattern, ...]
    parameters: tuple[str, ...]

    def calls(self) -> tuple[tuple[Call, ...], ...]:
        """Return the calls of the results, one for each result; several rows for results with alternatives.

        Raises UsageError for a bare variable.
        """
        choices: list[tuple[Any, ...]] = [alternatives(r) for r in self.results]
        bare = [f"{c.name}(...) is an operator; " for c in chain(*choices) if isinstance(c, Var)]
        if not choices or not all(isinstance(c, Call) for c in chain(*choices)):
            raise UsageError("a pattern results in operators, not in its variables", "".join(bare[:1]) + HINT)
        return tuple(product(*choices))


def example(
    source: Source, *, exact: bool = True, ignore_literals: bool = False, shared: bool = False, tolerance: float = 0.0
) -> Example:
    """Read an example. Raises UsageError for an invalid one.

    `exact`: omitted attributes have their defaults. `ignore_literals`: attributes and constants are not compared.
    `shared`: inner results may have other readers. `tolerance`: relative tolerance for floats.
    """
    read = _read(source)
    normal = _Normaliser(exact, ignore_literals, shared, tolerance)
    return Example(tuple(normal(r) for r in read.results), read.parameters)


def _read(source: Source) -> Example:
    if isinstance(source, str):
        return _from_text(source) if "=>" in source else Example(*read_expression(source))
    if isinstance(source, FunctionProto):
        return _from_nodes(source.node, source.input, source.output)
    if isinstance(source, ModelProto):
        return _from_graph(source.graph)
    if isinstance(source, GraphProto):
        return _from_graph(source)
    if isinstance(source, Graph):
        return _from_index(source)
    if isinstance(source, Rule):
        return Example((source.source,), ())
    if isinstance(source, (Call, Either, Var, Const)):
        return Example((source,), ())
    if callable(source):
        return _from_callable(source)
    raise UsageError(f"a pattern cannot be made of {type(source).__name__}", HINT)


# -- readers -------------------------------------------------------------------------------------------------


def _from_callable(function: Callable[..., Any]) -> Example:
    names = list(inspect.signature(function).parameters)
    found = function(*(var(n) for n in names))
    return Example(tuple(found) if isinstance(found, (tuple, list)) else (found,), tuple(names))


def _from_text(text: str) -> Example:
    from onnx import parser

    whole = text if text.lstrip().startswith("<") else _HEADER + text
    try:
        function = parser.parse_function(whole)
    except parser.ParseError as e:
        reason = [line for line in str(e).splitlines() if line.strip()]
        raise UsageError(f"the example cannot be read: {' '.join(reason)}", HINT) from None
    return _from_nodes(function.node, function.input, function.output)


def _from_graph(graph: GraphProto) -> Example:
    if any(map(is_external, graph.initializer)):
        raise UsageError("the example's weights are not in it", "load it with its weights, or make them inputs")
    constants = {t.name: _constant(tensor_to_array(t)) for t in graph.initializer}
    inputs = [i.name for i in graph.input if i.name not in constants]
    return _from_nodes(graph.node, inputs, [o.name for o in graph.output], constants)


def _from_index(graph: Graph) -> Example:
    constants = {v.name: _constant(v.array) for v in graph.initializers.values()}
    inputs = [v.name for v in graph.inputs if v.name not in constants]
    return _from_nodes(node_protos(graph, graph), inputs, [v.name for v in graph.outputs], constants)


def _from_nodes(
    nodes: Iterable[NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    constants: Mapping[str, Pattern] = MappingProxyType({}),
) -> Example:
    values: dict[str, Pattern] = {**{name: var(name) for name in inputs}, **constants}
    for node in nodes:
        attributes = _attributes(node)
        if node.op_type == "Constant" and not node.domain:
            values[node.output[0]] = _constant(next((v for v in attributes.values() if v is not _anything), None))
            continue
        _require_defined(filter(None, node.input), values, f"{node.op_type} reads")
        operands = tuple(values[name] if name else None for name in node.input)
        op = qualified(node.op_type, node.domain)
        call = Call((op,), operands, node.name or None, tuple(attributes.items()))
        values.update((name, call.at(i)) for i, name in enumerate(node.output))
    _require_defined(outputs, values, "the example results in")
    return Example(tuple(values[name] for name in outputs), tuple(inputs))


def _attributes(node: NodeProto) -> dict[str, Any]:
    """Return the attributes, tensors as Literals; a reference stands for any value. Raises UsageError for bodies."""
    if any(a.HasField("g") or a.graphs for a in node.attribute):
        raise UsageError(f"{node.op_type}: an example holds no bodies of control flow", HINT)
    found = {a.name: _anything if a.ref_attr_name else attribute_value(a) for a in node.attribute}
    return {name: Literal(v) if isinstance(v, np.ndarray) else v for name, v in found.items()}


def _require_defined(names: Iterable[str], values: Collection[str], who: str) -> None:
    """Raise UsageError for the first name without a value."""
    missing = next((name for name in names if name not in values), None)
    if missing is not None:
        raise UsageError(f"{who} `{missing}`, which nothing defines", HINT)


def _constant(value: Any) -> Pattern:
    """Return a number for a one-element constant, else a Literal to be equal."""
    if isinstance(value, (int, float)):
        return value
    array: Array = value.array if isinstance(value, Literal) else value
    if array.size != 1 or element_kind(array) not in "fiub":
        return Literal(array)
    number: float = array.item()
    return number


def _anything(value: object) -> bool:
    return True


# -- normal form ---------------------------------------------------------------------------------------------


class _Normaliser:
    """Names every call (all uses of a call share its name) and applies the options."""

    def __init__(self, exact: bool, ignore_literals: bool, shared: bool, tolerance: float) -> None:
        self.exact = exact and not ignore_literals
        self.ignore_literals = ignore_literals
        self.shared = shared
        self.tolerance = tolerance
        self.names: dict[object, str] = {}
        self.counts: dict[str, int] = {}

    def _call(self, p: Call) -> Call:
        return replace(
            p,
            name=self._name(p),
            inputs=tuple(self(i) for i in p.inputs),
            attributes=() if self.ignore_literals else tuple((k, self._wide(v)) for k, v in p.attributes),
            exact=self.exact or p.exact,
            shared=self.shared or p.shared,
        )

    def __call__(self, p: Pattern) -> Pattern:
        if isinstance(p, Call):
            return self._call(p)
        if isinstance(p, Either):
            return Either(tuple(self(c) for c in p.choices))
        if self.ignore_literals and isinstance(p, (Literal, About, int, float)):
            return Const(self._fresh("literal"))
        if isinstance(p, Literal) and self.tolerance:
            return Literal(p.array, self.tolerance)
        wide: Pattern = self._wide(p)
        return wide

    def _wide(self, value: Any) -> Any:
        """Return floats with the tolerance."""
        several = isinstance(value, tuple) and any(isinstance(v, float) for v in value)
        return about(value, self.tolerance) if self.tolerance and (isinstance(value, float) or several) else value

    def _name(self, p: Call) -> str:
        if p.name is not None:
            return p.name
        if p.key not in self.names:
            self.names[p.key] = self._fresh(p.ops[0].rpartition("::")[2])
        return self.names[p.key]

    def _fresh(self, stem: str) -> str:
        self.counts[stem] = n = self.counts.get(stem, 0) + 1
        return f"{stem}_{n}"
