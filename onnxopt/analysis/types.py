"""Element types and shapes of values on demand: known facts, else inference.

A fact (`Value.dtype`, `Value.shape`) stays true, since a rewrite keeps the contents of surviving values. Facts become
more precise: when an Unsqueeze or Shape becomes constant, inference replaces a symbol by a number. Readers of such a
value are marked as changed (`learn`).

Inference runs when a rule queries a value without facts, at most once between two calls of `refresh_allowed`: cost
stays linear. Each round of passes begins with all facts (`settle`), so the result equals that of a second run. Types of
nodes just made by a pass, outside the graph, are inferred from their inputs, operator by operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from onnx import GraphProto, TypeProto

from onnxopt.analysis.inference import (
    DATA_UP_TO,
    Call,
    Known,
    Vagueness,
    call_of,
    downstream,
    graph_of,
    infer_nodes,
    infer_operator,
    unsettled,
)
from onnxopt.analysis.misread import is_misread
from onnxopt.graph.dims import as_symbol, is_invented
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.proto.messages import array_to_tensor, body_graphs, tensor_bytes, tensor_type, tensor_type_proto

_runs = itertools.count()


def learn(value: Value, dims: Shape, asked: bool = False, renamed: bool = False) -> None:
    """Set the shape of `value` to `dims`, which must be true and at least as precise as the known shape.

    Readers are marked if `dims` is more precise; for an unknown shape only if it was `asked` for before; also if a size
    is `renamed` to a symbol not known to be equal before.
    """
    known, value.shape = value.shape, dims
    if asked if known is None else renamed or any(map(_says_more, dims, known)):
        model = value.graph.model
        model.learnt += 1
        for user in value.users:
            model.mark(user)


def _says_more(new: Dim, known: Dim) -> bool:
    """Whether `new` is more precise: a number before a symbol, an input's symbol before an invented one."""
    return new != known and (known is None or isinstance(new, int) or (is_invented(known) and not is_invented(new)))


def infer(model: Model) -> None:
    """Infer the main graph and its bodies. Functions are polymorphic, and get no facts.

    Infers changed nodes first, and nodes downstream only if their inputs became more precise.
    """
    from onnxopt.analysis.shapes.computed import are_types_computed

    graph, since = model.graph, model.inferred_clock
    model.inferred_clock = model.clock
    if since < 0 and are_types_computed(model):
        return
    changed = set(model.marked_since(since))
    better = _infer(model, unsettled(graph, since), since >= 0)
    if better and since >= 0:
        _infer(model, downstream(graph, better, changed), False)


def _infer(model: Model, part: list[Node], again: bool) -> list[Value]:
    """Infer these nodes, `again` by rules where they suffice. Returns the values with more precise types, if the nodes
    are not the whole graph."""
    from onnxopt.analysis.shapes.computed import compute_types

    part, better = compute_types(model.graph, part) if again and not model.graph.owners else (part, [])
    inferred = infer_nodes(model, part) if part else None
    if inferred is None:
        return better
    return better + _Facts(_own_symbols(model), f"@{next(_runs)}").add(model, part, inferred.graph)


def _own_symbols(model: Model) -> set[str]:
    given = (d.dim_param for i in model.proto.graph.input for d in i.type.tensor_type.shape.dim)
    return {as_symbol(name) for name in given if name}


class _Facts:
    """The results of an inference run, merged with known facts.

    Both are true, so two dims of the same axis are equal: `same` maps a symbol to a more precise symbol or number.
    Facts of a body hold for its own values only, since the body may not run.
    """

    def __init__(self, own: set[str], suffix: str) -> None:
        self.own = own  # symbols of the inputs
        self.suffix = suffix  # made unique by a suffix: invented names repeat in every run without meaning
        self.found: list[tuple[Value, Shape]] = []
        self.same: dict[str, int | str] = {}
        self.open = False  # whether the rank of some value is unknown

    def add(self, model: Model, nodes: list[Node], proto: GraphProto) -> list[Value]:
        """Add the results. Returns the values with more precise types, if the nodes are not the whole graph."""
        again = model.is_vague  # the last run left something unknown
        partial = len(nodes) < model.graph.size
        untyped = [v for n in nodes for v in n.results if not v.dtype] if partial else []
        self._read(model.graph, nodes, proto)
        vague = Vagueness()
        model.is_vague = self.open or any(vague.has(dims) for _, dims in self.found)
        model.is_vague |= again and partial  # the rest is unchanged
        better = [v for v in untyped if v.dtype] + self._learn_found(again, partial)
        return better + self._rename(model.graph) if self.same and partial else better

    def _learn_found(self, again: bool, partial: bool) -> list[Value]:
        """Store the found shapes as facts. Returns the values with more precise shapes, if `partial`."""
        best: dict[Shape, Shape] = {}
        better = []
        for value, dims in self.found:
            known = best.get(dims)
            if known is None:
                known = best[dims] = tuple(map(self._best, dims))
            if known != value.shape:
                if partial:
                    better.append(value)
                learn(value, known, again and not value.unasked, renamed=True)
        return better

    def _rename(self, graph: Graph) -> list[Value]:
        """Replace equal symbols in all values not inferred in this run. Returns the renamed values.

        When two sizes turn out to be equal, expressions of both become more precise.
        """
        renamed = []
        for node in graph:
            for value in node.results:
                if value.shape is not None and not self.same.keys().isdisjoint(value.shape):
                    learn(value, tuple(map(self._best, value.shape)), renamed=True)
                    renamed.append(value)
        return renamed

    def _read(self, graph: Graph, nodes: Iterable[Node], proto: GraphProto) -> None:
        by_name = self._by_name(proto)
        everywhere = graph.owner is None
        merged: dict[tuple[Shape | None, Shape | None], Shape | None] = {}
        for value in itertools.chain(graph.inputs, *(n.results for n in nodes)):
            data_type, dims = by_name.get(value.name, (0, None))
            value.dtype = value.dtype or data_type
            pair = value.shape, dims
            if pair not in merged:
                merged[pair] = self._both(*pair, everywhere)
            dims = merged[pair]
            if dims is not None:
                self.found.append((value, dims))
            else:
                self.open = True
        if graph.owners:
            for node, copy in zip(nodes, proto.node):
                for name, body in body_graphs(copy):
                    if name in node.bodies:
                        self._read(node.bodies[name], node.bodies[name], body)

    def _by_name(self, proto: GraphProto) -> dict[str, tuple[int, Shape | None]]:
        """Return the inferred types by name."""
        found: dict[str, tuple[int, Shape | None]] = {}
        decoded: dict[bytes, tuple[int, Shape | None]] = {}  # cached: a network has few different types
        for info in (*proto.input, *proto.value_info, *proto.output):
            key = info.type.SerializeToString()
            if key not in decoded:
                decoded[key] = self._decoded(info.type)
            data_type, dims = decoded[key]
            if data_type and (dims is not None or info.name not in found):
                found[info.name] = data_type, dims
        return found

    def _decoded(self, kind: TypeProto) -> tuple[int, Shape | None]:
        """Return (element type, shape), with invented names made unique to this run."""
        data_type, dims = tensor_type(kind)
        if dims is None or all(type(d) is int for d in dims):
            return data_type, dims
        return data_type, tuple(d if type(d) is not str or self._is_ours(d) else d + self.suffix for d in dims)

    def _is_ours(self, symbol: str) -> bool:
        """Whether a symbol was in the skeleton: an input's, a computed or an invented one."""
        return symbol in self.own or "@" in symbol or symbol.startswith("{")

    def _both(self, known: Shape | None, new: Shape | None, everywhere: bool) -> Shape | None:
        """Return the shape merged from two shapes of the same value."""
        if new is None or (known is not None and len(known) != len(new)):
            return known
        if known is None or known == new:
            return new
        return tuple(self._merged(a, b, everywhere) for a, b in zip(known, new))

    def _merged(self, known: Dim, new: Dim, everywhere: bool) -> Dim:
        """Return the more precise of two equal dims: a number, then a symbol of inputs, then the older.

        Two different numbers, possible only in code that never runs, give the newer, as a second run would.
        """
        a, b = self._best(known), self._best(new)
        if a is None or b is None or a == b:
            return b if a is None else a
        if isinstance(a, int) and isinstance(b, int):
            return b
        if isinstance(a, int) or (isinstance(b, str) and (is_invented(b) or not is_invented(a))):
            a, b = b, a  # b is more precise
        if everywhere and isinstance(a, str) and a not in self.own:
            self.same[a] = b
        return b

    def _best(self, dim: Dim) -> Dim:
        while isinstance(dim, str) and dim in self.same:
            dim = self.same[dim]
        return dim


NOTHING: Final[Mapping[Value, Known]] = MappingProxyType({})


def dtype(value: Value | None) -> int:
    """Return the ONNX element type; 0 if unknown (or not a tensor), and without a value."""
    if value is None:
        return 0
    if value.constant:
        return value.constant_type()[0]
    if not value.dtype:
        _find_out(value)
    return value.dtype


def shape(value: Value | None) -> Shape | None:
    """Return the dims as int, symbol (equal symbols are equal sizes) or None (unknown).

    None for unknown rank, and without a value.
    """
    if value is None:
        return None
    if value.constant:
        return value.constant_type()[1]
    if value.shape is None:
        _find_out(value)
    return value.shape


def dims_of(value: Value | None) -> Shape:
    """Return the dims of an operand; none for an absent one, or for unknown rank."""
    return shape(value) or ()


def full_shape(value: Value | None) -> Shape | None:
    """Return the shape if no dim is unknown, else None."""
    dims = shape(value)
    return None if dims is None or None in dims else dims


def length_of(value: Value | None, axis: int) -> int | None:
    """Return the number of elements along an axis; None if unknown."""
    dims = dims_of(value)
    length = dims[axis] if -len(dims) <= axis < len(dims) else None
    # In code that never runs, an axis may be missing, or a size negative.
    return length if isinstance(length, int) and length >= 0 else None


def rank(value: Value | None) -> int | None:
    dims = shape(value)
    return None if dims is None else len(dims)


def static_shape(value: Value | None) -> tuple[int, ...] | None:
    """Return the shape if every dim is a number, else None."""
    dims = shape(value)
    sizes = tuple(d for d in dims or () if isinstance(d, int))
    return sizes if dims is not None and len(sizes) == len(dims) else None


def same_shape(a: Value, b: Value) -> bool:
    """Whether the shapes are proven equal: all dims are equal numbers or symbols."""
    x, y = shape(a), shape(b)
    return x is not None and x == y and None not in x


def foresee(nodes: Iterable[Node], values: Sequence[Value]) -> list[tuple[int, Shape | None]]:
    """Return (element type, shape) of each value, from facts known now; `nodes`, in order, are not in the graph yet.

    Stores no facts, so that a check does not influence later decisions.
    """
    made = [v for node in nodes for v in node.results]
    before = [(v.dtype, v.shape, v.unasked) for v in made]
    models = {v.graph.model for v in values}
    flags = [(model, model.inference_allowed, model.is_vague) for model in models]
    for model in models:
        model.inference_allowed = False
    found = []
    for v in values:
        if v.producer is not None and v.producer.graph is None:
            found.append((dtype(v), shape(v)))
        else:
            found.append((v.known_dtype, v.known_shape))
    for v, (kind, dims, unasked) in zip(made, before):
        v.dtype, v.shape, v.unasked = kind, dims, unasked
    for model, allowed, vague in flags:
        model.inference_allowed, model.is_vague = allowed, vague
    return found


def refresh_allowed(model: Model) -> None:
    """Allow the next query without facts to run inference again, if the model changed."""
    model.inference_allowed = True
    model.analyses.clear()


def update(model: Model) -> None:
    """Run inference again if the model changed: symbols may have become numbers."""
    if model.inferred_version != model.version:
        infer(model)
        model.inferred_version = model.version


def settle(model: Model) -> None:
    """Run inference again if more may be known now; else allow it for the next query without facts."""
    model.inference_allowed = True
    if model.is_vague:
        update(model)


def is_open(value: Value) -> bool:
    """Whether the rank or a dim is known neither as a number nor by a name of the file."""
    dims = shape(value)
    return dims is None or any(d is None or is_invented(d) for d in dims)


def _find_out(value: Value) -> None:
    """Infer a value: through the graph, or for a new node by the operator alone."""
    node, model = value.producer, value.graph.model
    is_made = node is not None and node.graph is None
    if not is_made and model.inference_allowed and model.inferred_version != model.version:
        model.inference_allowed = False
        update(model)
    if value.unasked and value.shape is None:
        _infer_made(value)


def _infer_made(value: Value) -> None:
    """Infer the type of a value made by a pass, and of its operands, each once."""
    stack = [value]
    while stack:
        asked = stack[-1]
        node = asked.producer
        waiting = [v for v in node.operands if v.unasked and v is not asked] if node is not None else []
        first, asked.unasked = asked.unasked, False
        if waiting and first:
            stack += waiting
            continue
        stack.pop()
        if node is not None and (not asked.dtype or asked.shape is None):
            infer_node(node)


def as_call(node: Node, given: Mapping[Value, Known] = NOTHING) -> Call | None:
    """Return the arguments of operator inference, with `given` replacing known facts; None if impossible."""
    return call_of(node, lambda v: _known(v, given))


def _known(value: Value, given: Mapping[Value, Known]) -> Known | None:
    if value in given:
        return given[value]
    kind = dtype(value)
    small = value.constant and tensor_bytes(*value.constant_type()) <= DATA_UP_TO
    return (
        (tensor_type_proto(kind, shape(value)), array_to_tensor(value.array, "") if small else None) if kind else None
    )


def infer_node(node: Node) -> None:
    """Infer the types of the results by the operator alone."""
    graph = graph_of(node)
    if graph is None or node.op == "Constant":
        return
    from onnxopt.analysis.shapes.computed import is_type_computed

    if is_type_computed(node, graph, partly=True) or is_misread(node, graph.opset()):
        return
    found = infer_operator(*call) if (call := as_call(node)) is not None else {}
    for i, v in enumerate(node.outputs):
        made = found.get(f"o{i}")
        if v is not None and made is not None:
            kind, dims = tensor_type(made)
            v.dtype = v.dtype or kind
            v.shape = v.shape if v.shape is not None else dims
            graph.model.is_vague |= dims is None or None in dims  # inference may know more
