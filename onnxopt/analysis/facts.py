"""Types and shapes found by onnx's shape inference on a skeleton without weights, stored as facts of values.

A fact (`Value.dtype`, `Value.shape`) stays true, since a rewrite keeps the contents of surviving values. Facts become
more precise: when an Unsqueeze or Shape becomes constant, inference replaces a symbol by a number. Readers of such a
value are marked as changed (`learn`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from onnx import GraphProto, TypeProto, ValueInfoProto

from onnxopt.analysis.inference import Vagueness, downstream, infer_nodes, skeleton, typed_alike, unsettled
from onnxopt.graph.dims import as_symbol, is_invented
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.proto.messages import tensor_type

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
    graph, since = model.graph, model.inferred_clock
    model.inferred_clock = model.clock
    changed = set(model.marked_since(since))
    better = _infer(model, unsettled(graph, since))
    if better and since >= 0:
        _infer(model, downstream(graph, better, changed))


def _infer(model: Model, part: list[Node]) -> list[Value]:
    """Infer these nodes. Returns the values with more precise types, if the nodes are not the whole graph."""
    if not part:
        return []
    like = typed_alike(model.graph, part)
    inferred = infer_nodes(model, [n for n in part if like.keys().isdisjoint(n.outputs)], like)
    if inferred is None:
        _read_inputs(model.graph, skeleton(model, ()).graph.input)
        return []
    given = (d.dim_param for i in model.proto.graph.input for d in i.type.tensor_type.shape.dim)
    own = {as_symbol(name) for name in given if name}
    return _Facts(own, f"@{next(_runs)}", like).add(model, part, inferred.graph)


class _Facts:
    """The results of an inference run, merged with known facts.

    Both are true, so two dims of the same axis are equal: `same` maps a symbol to a more precise symbol or number.
    Facts of a body hold for its own values only, since the body may not run.
    """

    def __init__(self, own: set[str], suffix: str, like: Mapping[Value, Value]) -> None:
        self.own = own  # symbols of the inputs
        self.like = like  # values with the type of another value
        self.suffix = suffix  # made unique by a suffix: invented names repeat in every run without meaning
        self.found: list[tuple[Value, Shape]] = []
        self.same: dict[str, int | str] = {}
        self.open = False  # whether the rank of some value is unknown

    def add(self, model: Model, nodes: list[Node], proto: GraphProto) -> list[Value]:
        """Add the results. Returns the values with more precise types, if the nodes are not the whole graph."""
        again = model.is_vague  # the last run left something unknown
        partial = len(nodes) < model.graph.size
        untyped = [v for n in nodes for v in n.outputs if v is not None and not v.dtype] if partial else []
        self._read(model.graph, nodes, proto)
        vague = Vagueness()
        model.is_vague = self.open or any(vague.has(dims) for _, dims in self.found)
        model.is_vague |= again and partial  # the rest is unchanged
        best: dict[Shape, Shape] = {}
        better = [v for v in untyped if v.dtype]
        for value, dims in self.found:
            known = best.get(dims)
            if known is None:
                known = best[dims] = tuple(map(self._best, dims))
            if known != value.shape:
                if partial:
                    better.append(value)
                learn(value, known, again and not value.unasked, renamed=True)
        if self.same and partial:
            better += self._rename(model.graph)
        return better

    def _rename(self, graph: Graph) -> list[Value]:
        """Replace equal symbols in all values not inferred in this run. Returns the renamed values.

        When two sizes turn out to be equal, expressions of both become more precise.
        """
        renamed = []
        for node in graph:
            for value in node.outputs:
                if value is not None and value.shape is not None and not self.same.keys().isdisjoint(value.shape):
                    learn(value, tuple(map(self._best, value.shape)), renamed=True)
                    renamed.append(value)
        return renamed

    def _read(self, graph: Graph, nodes: Iterable[Node], proto: GraphProto) -> None:
        by_name: dict[str, tuple[int, Shape | None]] = {}
        decoded: dict[bytes, tuple[int, Shape | None]] = {}  # cached: a network has few different types
        for info in (*proto.input, *proto.value_info, *proto.output):
            key = info.type.SerializeToString()
            if key not in decoded:
                decoded[key] = self._decoded(info.type)
            data_type, dims = decoded[key]
            if data_type and (dims is not None or info.name not in by_name):
                by_name[info.name] = data_type, dims
        everywhere = graph.owner is None
        merged: dict[tuple[Shape | None, Shape | None], Shape | None] = {}
        for value in (*graph.inputs, *(v for n in nodes for v in n.outputs if v is not None)):
            data_type, dims = by_name.get(self.like.get(value, value).name, (0, None))
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
                for a in copy.attribute[:]:
                    if a.name in node.bodies:
                        self._read(node.bodies[a.name], node.bodies[a.name], a.g)

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


def _read_inputs(graph: Graph, infos: Iterable[ValueInfoProto]) -> None:
    types = {i.name: tensor_type(i.type) for i in infos}
    for value in graph.inputs:
        if value.name in types:
            value.dtype, value.shape = types[value.name]
