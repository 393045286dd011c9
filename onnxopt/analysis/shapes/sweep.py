"""A sweep over a graph for shapes and small integers computed from shapes.

onnx's inference has no expressions of symbols, and invents names. A sweep in node order carries sums and products of
symbols through index arithmetic of exporters (Shape, Gather, Concat, Mul, …) and back into the shapes of Reshape,
Expand, Range and Slice.
"""

from __future__ import annotations

import itertools
import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from operator import attrgetter, is_
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from onnx import AttributeProto, TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.inference import graph_of
from onnxopt.analysis.shapes import indexing  # noqa: F401 - registers rules
from onnxopt.analysis.shapes.integers import CARRIED, CONTENTS, INTEGERS, SMALL
from onnxopt.analysis.shapes.operators import least_read
from onnxopt.analysis.shapes.sizes import SHAPE_RULES, Dims, PartialDims, Unknown, is_picked
from onnxopt.analysis.shapes.symbolic import Expr, Monomial, Size, is_nonnegative, symbol
from onnxopt.analysis.types import learn
from onnxopt.graph.emission import type_results
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import function_label
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.proto.messages import Array

T = TypeVar("T")
Facts: TypeAlias = "list[tuple[Shape | None, int, bool] | None]"  # shape, element type, and whether it is constant
# values read and made, their facts and contents, operator and attributes at the visit of a node
_Visit: TypeAlias = "tuple[list[Value | None], Facts, list[Array | None], str, dict[str, AttributeProto]]"

_unnamed = itertools.count()
_FACTS: Final[Callable[[Value | None], tuple[Shape | None, int, bool]]] = attrgetter("shape", "dtype", "constant")
_MAX_SAFE_FACTORS: Final = 2  # products of at most this number of symbols always fit;
_MAX_SYMBOLS: Final = 64  # above this number symbols are not recorded, at quadratic cost
_SIZED: Final = frozenset((int, Expr))  # types of sizes; a dim that is a name, or a Floor, needs a symbol
# A size is too complex, or the operands are a run-time error: missing attributes, axes out of range.
_UNCOMPUTABLE: Final = (ArithmeticError, IndexError, TypeError, ValueError)


class ShapeData:
    """Symbolic shapes (`dims`, of known rank) and the elements of small integer tensors (`contents`).

    An element is an int, Expr, bool, or None if unknown.

    For a graph without bodies the data may be `kept` between sweeps and runs of inference: only changed nodes, and
    readers of changed facts or data, are visited again. `assumed`: facts are not stored.
    """

    def __init__(self, *, assumed: bool = False, kept: bool = False) -> None:
        self.assumed, self.kept = assumed, kept
        self.trial = False  # based on an assumption
        self.dims: MutableMapping[Value, Dims] = {}
        self.contents: MutableMapping[Value, Array] = {}
        self._minima: dict[str, int] = {}  # minimum of each symbol, if the model runs
        self._symbols: dict[str, Expr] = {}
        self._tensors: dict[str, set[Monomial]] = {}  # symbols of tensors' dims, by symbol
        self._tensor_dims: set[Size] = set()  # dims of tensors
        self._noted_shapes: set[Dims] = set()  # shapes in `_tensor_dims` and `_tensors`
        self._visits: dict[Node, _Visit] = {}
        self._reads_more = False  # whether a rule read more than its operands: symbols, other tensors

    def shape(self, v: Value | None) -> Dims | None:
        """Return the dims of `v`, None for unknown rank. An unnamed dim gets a name, stored as a fact."""
        if v is None:
            return None
        found = self.dims.get(v)
        if found is None:
            known = types.shape(v)
            if known is None:
                return None
            found = self._keep(v, self._sizes(known))
            if None in known and not self.assumed:
                v.shape = tuple(d if isinstance(d, int) else d.name for d in found)
        return found

    def dims_of(self, v: Value | None) -> Dims:
        """Return the dims of `v`. Raises Unknown for unknown rank."""
        if v is not None and v in self.dims:
            return self.dims[v]
        if (found := self.shape(v)) is None:
            raise Unknown
        return found

    def dims_in(self, node: Node, index: int) -> Dims:
        """Return the dims of an operand. Raises Unknown for unknown rank."""
        inputs = node.inputs
        return self.dims_of(inputs[index] if index < len(inputs) else None)

    def data_of(self, v: Value | None) -> Array:
        """Return the elements of `v`, None for unknown ones. Raises Unknown if all are unknown."""
        found = self.content(v)
        if found is None:
            raise Unknown
        return found

    def data_in(self, node: Node, index: int) -> Array:
        """Return the elements of an operand. Raises Unknown if all are unknown."""
        return self.data_of(node.input(index))

    def is_assumed(self) -> bool:
        """Whether facts are not stored, for a rule whose result depends on that."""
        self._reads_more = True
        return self.assumed

    @property
    def minima(self) -> Mapping[str, int]:
        """Minimum of each symbol, if the model runs."""
        self._reads_more = True
        return self._minima

    def assuming(self, shapes: Mapping[Value, PartialDims]) -> ShapeData:
        """Return trial data under the assumption of these shapes."""
        trial = ShapeData(assumed=True)
        trial.trial, trial._minima, trial._symbols = True, self._minima, self._symbols
        trial.dims, trial.contents = ChainMap({}, self.dims), ChainMap({}, self.contents)
        trial._tensor_dims = {*self._tensor_dims}
        for value, sizes in shapes.items():
            trial._keep(value, trial._sizes(sizes))
        return trial

    def content(self, v: Value | None) -> Array | None:
        if v is None:
            return None
        if v not in self.contents and v.constant:
            data_type, dims = v.constant_type()
            if data_type in INTEGERS and math.prod(dims) <= SMALL:
                self.contents[v] = np.array(v.array.tolist(), dtype=object).reshape(dims)
        return self.contents[v] if v in self.contents else None

    def is_counted(self, product: Monomial) -> bool:
        """Whether the symbols are dims of a single tensor, so that their product is bounded by its elements."""
        self._reads_more = True
        found = min((self._tensors.get(name, set()) for name in product), key=len, default=set())
        return any(not Counter(product) - Counter(symbols) for symbols in found)

    def is_picked(self, value: Value) -> bool:
        """Whether a value holds only numbers and unmodified dims."""
        self._reads_more = True
        return is_picked(value)

    def is_size(self, size: Size) -> bool:
        """Whether a size is ≥ 0 if the model runs: proven, or a dim of a tensor."""
        if is_nonnegative(size):
            return True
        self._reads_more = True
        return size in self._tensor_dims

    def is_beside_bodies(self, node: Node) -> bool:
        self._reads_more = True
        return node.graph is None or bool(node.graph.model.graph.owners)

    def _keep(self, value: Value, dims: Dims) -> Dims:
        """Store the dims of a value, and note sizes and products of sizes of tensors that exist in each run."""
        self.dims[value] = dims
        if value.graph is value.graph.model.graph:  # a body may not run
            if dims in self._noted_shapes:
                return dims
            self._noted_shapes.add(dims)
            self._tensor_dims.update(dims)
        symbols = [name for d in dims if isinstance(d, Expr) and len(d.terms) == 1 for name in d.terms[0][0]]
        if _MAX_SAFE_FACTORS < len(symbols) <= _MAX_SYMBOLS:
            found = tuple(sorted(symbols))
            for name in found:
                self._tensors.setdefault(name, set()).add(found)
        return dims

    def sweep(self, graph: Graph) -> Iterator[Node]:
        """Visit the nodes of `graph` in order; yields each when its results are known."""
        if graph is graph.model.graph:  # a body may not run
            for name, size in itertools.chain.from_iterable(map(least_read, graph.by_op.get("Conv", ()))):
                self._minima[name] = max(size, self._minima.get(name, 0))
        if self.kept:
            self.forget_removed(graph)
        in_function = graph.root.is_function
        for node in graph:
            if self.kept:
                if not self.is_current(node):
                    self._revisit(node)
                    self.note(node, {})
            elif not (in_function and node.has_references):
                self._visit(node)
            yield node

    def visit(self, node: Node) -> dict[Value, Dims]:
        """Return the dims of the results of a node, which may be outside the graph, as far as rules give them."""
        self._revisit(node)
        return {v: self.dims[v] for v in node.outputs if v is not None and v in self.dims}

    def forget_outdated(self, values: Iterable[Value | None]) -> None:
        """Drop the dims that differ from the facts."""
        dims = self.dims
        for v in values:
            if v is not None and v in dims and as_dims(dims[v]) != v.known_shape:
                del dims[v]

    def note(self, node: Node, found: Mapping[Value, Dims]) -> None:
        """Keep a visit that read only operands, unless other dims than those `found` were stored for the results."""
        same = not found or all(map(is_, map(self.dims.get, found), found.values()))
        if self.kept and not self._reads_more and same:
            values = [*node.inputs, *node.outputs]
            contents = [*map(self.contents.get, values)]  # type: ignore[arg-type]  # an absent value has none
            attributes = node.attributes if node._attributes is None else node._attributes
            self._visits[node] = values, _facts(values), contents, node._op, attributes
        elif node in self._visits:
            del self._visits[node]

    def is_current(self, node: Node) -> bool:
        """Whether a kept visit holds: the node and the facts are the same, but for operands of equal content."""
        if node not in self._visits:
            return False
        values, facts, contents, op, attributes = self._visits[node]
        now = [*node.inputs, *node.outputs]
        if op != node._op or attributes is not node._attributes or (now != values and len(now) != len(values)):
            return False
        for i, v in enumerate(now) if now != values else ():
            if v is not values[i]:
                if v is None or (known := contents[i]) is None or not _is_same(known, self.content(v)):
                    return False
                if types.dtype(v) != types.dtype(values[i]):
                    return False
                values[i], facts[i] = v, _FACTS(v)
        return facts == _facts(now)

    def named(self, value: Value, shape: Shape) -> tuple[int | str, ...]:
        """Keep the dims of a value, and return them with a name for each unknown one."""
        found = self.dims.get(value)
        if found is not None and (names := as_dims(found)) == shape:
            return names
        return as_dims(self._keep(value, self._sizes(shape)))

    def forget_removed(self, graph: Graph) -> None:
        """Drop data of removed nodes and of constants."""
        self._visits = {n: seen for n, seen in self._visits.items() if n.graph is graph}
        for known in (self.dims, self.contents):
            for v in [v for v in known if v.constant or (maker := v.producer) is None or maker.graph is not graph]:
                del known[v]

    def _revisit(self, node: Node) -> None:
        """Visit a node anew; where its data change, visits of the readers no longer count."""
        dims, contents, before = self.dims, self.contents, []
        for v in node.outputs:  # of others no reader has read anything
            if v is not None and (v in dims or v in contents):
                before.append((v, dims.pop(v, None), contents.pop(v, None)))
        self._reads_more = False
        self._visit(node)
        for v, sizes, content in before:
            if sizes != dims.get(v) or not _is_same(content, contents.get(v)):
                for reader in v.users:
                    self._visits.pop(reader, None)

    def _visit(self, node: Node) -> None:
        """Set the element types of the results of a node, and apply the rules for shapes and contents."""
        op, outputs = node.op, node.outputs
        for v in outputs:
            if v is not None and not v.dtype:
                type_outputs(node)
                break
        rule = SHAPE_RULES[op] if op in SHAPE_RULES else None
        if rule is not None and not ("::" in op and _is_function(node)):
            found = self.apply(rule, node)
            for v, dims in zip(outputs, found if isinstance(found, list) else (found,)):
                if v is not None and dims is not None:
                    self.learn(v, dims)
        first = outputs[0] if outputs else None
        if op not in CONTENTS or first is None:
            return
        if op == "Shape" or (first.dtype or types.dtype(first)) in CARRIED:
            made = self.apply(CONTENTS[op], node)
            for v, content in zip(outputs, made if isinstance(made, list) else (made,)):
                if v is not None and content is not None and content.size <= SMALL:
                    self.contents[v] = content
                    self.learn(v, content.shape)

    def apply(self, rule: Callable[[ShapeData, Node], T | None], node: Node) -> T | None:
        """Return the result of a rule; None where a size is unknown, too complex, or a run-time error."""
        try:
            return rule(self, node)
        except _UNCOMPUTABLE:
            return None

    def learn(self, value: Value, dims: PartialDims) -> None:
        """Store the dims of `value` where they are more precise than inference, also as facts."""
        known = value.shape
        if value.constant or (known is None and not self.assumed):
            known = value.known_shape if self.assumed else types.shape(value)
        if known is not None and len(known) != len(dims):
            return
        is_known = known is not None and known == (names := as_dims(dims)) and (names is dims or None not in names)
        sizes = self._sizes(dims if known is None or is_known else [*map(better_dim, known, dims)])
        self._keep(value, sizes)
        if not (is_known or self.assumed or value.constant) and (facts := as_dims(sizes)) != value.shape:
            learn(value, facts, asked=True)

    def _sizes(self, dims: Sequence[str | Size | None]) -> Dims:
        if _SIZED.issuperset(map(type, dims)):  # no dim needs a symbol, the usual case
            return tuple(dims)  # type: ignore[arg-type]  # `cast` would take as long as the rest
        return tuple([self._symbol(d) if d is None or isinstance(d, str) else d for d in dims])

    def _symbol(self, name: str | None) -> Expr:
        """Return the symbol of a name, shared so that comparison is fast."""
        if name is None:
            return symbol(f"?{next(_unnamed)}@")
        found = self._symbols.get(name)
        if found is None:
            found = self._symbols[name] = symbol(name)
        return found


def learn_shapes(graph: Graph, data: ShapeData | None = None) -> ShapeData:
    """Store the shapes of the values of a graph and its bodies as facts. Returns the data of the sweep."""
    data = ShapeData() if data is None else data
    for node in data.sweep(graph):
        for body in node.bodies.values():
            learn_shapes(body, data)
    return data


def _facts(values: Sequence[Value | None]) -> Facts:
    return [None if v is None else _FACTS(v) for v in values] if None in values else [*map(_FACTS, values)]


def _is_same(a: Array | None, b: Array | None) -> bool:
    return a is b or (a is not None and b is not None and a.shape == b.shape and bool(a.tolist() == b.tolist()))


def as_dims(dims: PartialDims) -> tuple[Any, ...]:
    """Return sizes as dims of a value: numbers and names, None for an unknown size."""
    return dims if Expr not in map(type, dims) else tuple([d.name if type(d) is Expr else d for d in dims])


def type_outputs(node: Node) -> None:
    """Set element types of results by type variables, downstream of operators unknown to inference."""
    graph = graph_of(node)
    if graph is None:
        return
    defined = graph.signature(node.op)
    if defined is not None:
        kinds = [None if v is None else types.dtype(v) if v.constant else v.dtype for v in node.inputs]
        type_results(node, defined, kinds)
        return
    _type_by_own(node)


def _type_by_own(node: Node) -> None:
    """Set the element types of the results of onnxruntime's own operators."""
    from onnxopt.operators.operands import contrib_types

    own = contrib_types().get(node.op)
    if own is None or _is_function(node):
        return
    for i, v in enumerate(node.outputs):
        if v is not None and not v.dtype:
            x = next((x for k in own.alike(i) for x in node.inputs[k : k + 1] if x is not None), None)
            if x is not None:
                v.dtype = types.dtype(x)
            elif i < len(own.outputs) and own.outputs[i] == "f":
                v.dtype = TensorProto.FLOAT


def _is_function(node: Node) -> bool:
    """Whether the model defines the operator of a foreign domain."""
    label = function_label(node.domain, node.proto.op_type, node.proto.overload)
    return node.graph is None or label in node.graph.model.functions


def better_dim(known: int | str | None, found: Size | None) -> int | str | Size | None:
    """Return the more precise of two true dims: a number, then an expression of input symbols."""
    if isinstance(known, int) or found is None:
        return known
    if isinstance(found, int) or known is None:
        return found
    return known if "@" in found.name and "@" not in known else found
