"""What onnx's own inference finds out of a model, over a skeleton without weights: facts, which values hold.

A fact (`Value.dtype`, `Value.shape`) never turns false: a rewrite keeps what a surviving value holds. Facts grow: where
an `Unsqueeze` or a `Shape` has become a constant, inference finds a number for what was a symbol, and a value that is
known better is looked at again, as one that changed is (`learn`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final

from onnx import GraphProto, TypeProto, ValueInfoProto

from onnxopt.analysis.inference import infer_nodes, skeleton, typed_alike
from onnxopt.graph.dim_names import as_symbol, as_written, rename_dims
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.protos import tensor_type

_OTHER: Final = "types of values that are no tensors"
_runs = itertools.count()


def learn(value: Value, dims: Shape, asked: bool = False, renamed: bool = False) -> None:
    """`dims` are true of `value`, and say at least as much as what is known. Where they say more, the model is
    another for those who ask; also where nothing was known, if somebody `asked` before, and where a size is called by
    the name of another one, that was not known to be the same (`renamed`)."""
    known, value.shape = value.shape, dims
    if asked if known is None else renamed or any(map(_says_more, dims, known)):
        model = value.graph.model
        model.learnt += 1
        for user in value.users:
            model.mark(user)


def _says_more(new: Dim, known: Dim) -> bool:
    """A number says more than a symbol, that of an input more than one that inference invented."""
    return new != known and (known is None or isinstance(new, int) or (is_invented(known) and not is_invented(new)))


def is_invented(dim: Dim) -> bool:
    """A symbol that inference gave to what has no name in the model."""
    return isinstance(dim, str) and "@" in dim


def infer(model: Model) -> None:
    """Run inference over the main graph and its bodies; function bodies are polymorphic and get no facts.

    First where something changed. Only if more is known of what comes of that, behind it, too.
    """
    graph, since = model.graph, model.inferred_clock
    model.inferred_clock = model.clock
    changed = set(model.marked_since(since))
    better = _infer(model, unsettled(graph, since))
    if better and since >= 0:
        _infer(model, _behind(graph, better, changed))


def _infer(model: Model, part: list[Node]) -> list[Value]:
    """Infer these nodes. If they are not all, the values of which more is known than before."""
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


def unsettled(graph: Graph, since: int = -1) -> list[Node]:
    """The nodes of whose results something is unknown, in order. Of the rest nothing more can be found, nor where
    nothing changed `since`."""
    if graph.owners:
        return list(graph)
    if since < 0:
        return _open(graph, set(graph))
    marked, vague = set(graph.model.marked_since(since)), _Vague()
    return [n for n in graph if n in marked and vague.is_in(n)]


def _behind(graph: Graph, better: Iterable[Value], done: set[Node]) -> list[Node]:
    """What reads these values, unless it was `done` with them, and what comes of it, as far as something is unknown."""
    reached: set[Node] = set()
    vague = _Vague()
    level = [n for v in better for n in v.users if n not in done and n.graph is graph]
    while level:
        level = [n for n in dict.fromkeys(level) if n not in reached and vague.is_in(n)]
        reached.update(level)
        level = [n for m in level for v in m.outputs if v is not None for n in v.users]
    return _open(graph, reached)


def _open(graph: Graph, nodes: set[Node]) -> list[Node]:
    """Those of whose results something is unknown, in order; if they are half of all, all."""
    vague = _Vague()
    found = [n for n in graph if n in nodes and vague.is_in(n)]
    return list(graph) if 2 * len(found) > graph.size else found


class _Vague:
    """Which shapes have a dim without a number, or a name of the file's: a network has few shapes."""

    def __init__(self) -> None:
        self.known: dict[Shape | None, bool] = {None: True}

    def is_in(self, node: Node) -> bool:
        for v in node.outputs:
            if v is not None and (not v.dtype or self.has(v.shape)):
                return True
        return False

    def has(self, dims: Shape | None) -> bool:
        found = self.known.get(dims)
        if found is None:
            found = self.known[dims] = any(d is None or is_invented(d) for d in dims or ())
        return found


def other_types(model: Model) -> dict[str, TypeProto]:
    """Types of the values of the main graph that are no tensors, by name: no facts of ours hold them."""
    known = model.analyses.get(_OTHER)
    if not isinstance(known, dict):
        inferred = infer_nodes(model, list(model.graph))
        infos = (*inferred.graph.value_info, *inferred.graph.output) if inferred is not None else ()
        known = {i.name: i.type for i in infos if i.type.WhichOneof("value") not in (None, "tensor_type")}
        for kind in known.values():
            rename_dims(kind, lambda name: str(as_written(name)))
        model.analyses[_OTHER] = known
    return known


class _Facts:
    """What one run of inference found, beside what was known before.

    Both are true, so the dims that they give to one axis are the same size, whatever they call it: `same` maps a symbol
    to one that says more, a number at best. So do two symbols of earlier runs become one. What a body says is true of
    its own values: outside, where it may not run, it says nothing.
    """

    def __init__(self, own: set[str], suffix: str, like: Mapping[Value, Value]) -> None:
        self.own = own  # symbols of the inputs
        self.like = like  # which values have the types of others
        self.suffix = suffix  # inference invents names anew in every run: the same name of two runs means nothing
        self.found: list[tuple[Value, Shape]] = []
        self.same: dict[str, int | str] = {}
        self.open = False  # is the rank of some value unknown?

    def add(self, model: Model, nodes: list[Node], proto: GraphProto) -> list[Value]:
        """If the nodes are not all, the values of which more is known now."""
        again = model.is_vague  # something was left open the last time
        partial = len(nodes) < model.graph.size
        untyped = [v for n in nodes for v in n.outputs if v is not None and not v.dtype] if partial else []
        self._read(model.graph, nodes, proto)
        vague = _Vague()
        model.is_vague = self.open or any(vague.has(dims) for _, dims in self.found)
        model.is_vague |= again and partial  # of the rest it is as it was
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
        """Values that inference did not look at again: what is equal has to be called the same everywhere. Those that
        were called otherwise: of two sizes that turn out to be one, more is known of what is made of both."""
        renamed = []
        for node in graph:
            for value in node.outputs:
                if value is not None and value.shape is not None and not self.same.keys().isdisjoint(value.shape):
                    learn(value, tuple(map(self._best, value.shape)), renamed=True)
                    renamed.append(value)
        return renamed

    def _read(self, graph: Graph, nodes: Iterable[Node], proto: GraphProto) -> None:
        by_name: dict[str, tuple[int, Shape | None]] = {}
        decoded: dict[bytes, tuple[int, Shape | None]] = {}  # a network has few types
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
        """Element type and shape, names that inference made up made unlike those of other runs."""
        data_type, dims = tensor_type(kind)
        if dims is None or all(type(d) is int for d in dims):
            return data_type, dims
        return data_type, tuple(d if type(d) is not str or self._is_ours(d) else d + self.suffix for d in dims)

    def _is_ours(self, symbol: str) -> bool:
        """Was inference given it: of an input, what was computed, or made up before?"""
        return symbol in self.own or "@" in symbol or symbol.startswith("{")

    def _both(self, known: Shape | None, new: Shape | None, everywhere: bool) -> Shape | None:
        """What two shapes of one value say."""
        if new is None or (known is not None and len(known) != len(new)):
            return known
        if known is None or known == new:
            return new
        return tuple(self._merged(a, b, everywhere) for a, b in zip(known, new))

    def _merged(self, known: Dim, new: Dim, everywhere: bool) -> Dim:
        """Of two dims that are the same size, the one that says more: numbers, symbols of inputs, the older. Of two
        numbers, which meet where nothing can run, the newer: that is what a second run knows."""
        a, b = self._best(known), self._best(new)
        if a is None or b is None or a == b:
            return b if a is None else a
        if isinstance(a, int) and isinstance(b, int):
            return b
        if isinstance(a, int) or (isinstance(b, str) and (is_invented(b) or not is_invented(a))):
            a, b = b, a  # b says more
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
