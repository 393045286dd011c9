"""Inference of types: rules of operators (`shapes/`), else onnx's inference of the operator, node by node.

Facts and new results are both true, so two dims of the same axis are equal: the more precise one replaces the other
everywhere. Facts of a body hold for its own values only, since the body may not run.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from onnx import TypeProto

from onnxopt.analysis import types
from onnxopt.analysis.inference import SCAN_OF_AXES, believed_types, graph_of, joined, known, recurred, with_numbers
from onnxopt.analysis.shapes.integers import CONTENTS
from onnxopt.analysis.shapes.sizes import SHAPE_RULES, Dims
from onnxopt.analysis.shapes.sweep import ShapeData, as_dims, better_dim
from onnxopt.analysis.shapes.symbolic import Expr
from onnxopt.analysis.types import learn
from onnxopt.graph.dims import as_symbol, is_invented, rename_dims
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model, function_label, values_read
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.operators import CONTROL_FLOW
from onnxopt.operators.signatures import tabled
from onnxopt.proto.messages import of_any_shape, tensor_type

if TYPE_CHECKING:
    from onnxopt.analysis.calls import Functions

_RESULTS: Final = attrgetter("results")
_MOST_SHAPES: Final = 1 << 12  # shapes: a network has few different ones

# -- types of a node's results ---------------------------------------------------------------------------------


def infer_new(node: Node) -> None:
    """Infer the types of the results of a node made for a graph. Unknown dims stay unknown."""
    graph = graph_of(node)
    if graph is None:
        return
    ruled, data = _is_ruled(node, graph), ShapeData(assumed=True)
    ruled_dims = data.visit(node) if ruled else {}
    names = dict(zip(ruled_dims, map(as_dims, ruled_dims.values())))
    inferred = {} if _are_settled(node, names) else believed_types(node)
    for v in node.results:
        _set_type(v, inferred.get(v))
        if v.shape is None and (dims := _most_precise(_dims_in(inferred.get(v)), ruled_dims.get(v))) is not None:
            v.shape = tuple(d if _is_settled(d, node) else None for d in dims)
        graph.model.is_vague |= v.shape is None or None in v.shape  # inference may know more


def _is_ruled(node: Node, graph: Graph) -> bool:
    """Whether rules give types that a test compares with those of onnx."""
    op = node.op
    if node.bodies or (graph.model.functions and (node.has_references or graph.model.has_function(op))):
        return False
    return tabled(op, graph.opset()) is not None and (op in SHAPE_RULES or op in CONTENTS)


def _are_settled(node: Node, ruled: Mapping[Value, Shape]) -> bool:
    """Whether types and all dims of the results are known, from rules or facts: numbers, symbols, dims of operands."""
    for v in node.outputs:
        if v is None:
            continue
        dims = ruled[v] if v in ruled else v.shape
        if not v.dtype or dims is None or not (_are_named(dims) or all(_is_settled(d, node) for d in dims)):
            return False
    return True


@lru_cache(_MOST_SHAPES)
def _are_named(dims: Shape | None) -> bool:
    """Whether all dims are known, as numbers or symbols of the file."""
    return dims is not None and all(
        d >= 0 if isinstance(d, int) else d is not None and not is_invented(d) for d in dims
    )


def _is_settled(dim: Dim, node: Node) -> bool:
    if isinstance(dim, int):
        return dim >= 0
    return dim is not None and (not is_invented(dim) or any(dim in (v.shape or ()) for v in node.operands))


def _most_precise(inferred: Shape | None, ruled: Dims | None) -> Shape | None:
    """Return the more precise of the dims from inference and from rules."""
    if inferred is None or ruled is None or len(inferred) != len(ruled):
        return inferred if ruled is None else as_dims(ruled)
    return tuple(d.name if isinstance(d, Expr) else d for d in map(better_dim, inferred, ruled))


def _dims_in(kind: TypeProto | None) -> Shape | None:
    """Return the dims of a type; negative ones, which exporters write for dynamic sizes, are unknown."""
    dims = tensor_type(kind)[1] if kind is not None else None
    return None if dims is None else tuple(None if isinstance(d, int) and d < 0 else d for d in dims)


def _set_type(value: Value, kind: TypeProto | None) -> None:
    """Note the element type, or the type of a value that is no tensor."""
    if kind is not None and kind.WhichOneof("value") is not None:
        value.dtype = value.dtype or tensor_type(kind)[0]
        if not value.dtype and kind.WhichOneof("value") != "tensor_type":
            value.graph.model.containers[value] = kind


# -- a run over the model --------------------------------------------------------------------------------------


def infer_facts(model: Model) -> None:
    """Infer the main graph and its bodies. Functions are polymorphic, and get no facts.

    The first run infers all nodes, each further run the nodes changed since, and readers of values with more precise
    types.
    """
    since, model.inferred_clock = model.inferred_clock, model.clock
    allowed, model.inference_allowed = model.inference_allowed, False
    try:
        _Inference(model).infer(None if since < 0 else model.marked_since(since))
    finally:
        model.inference_allowed = allowed


class _Inference:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.data = ShapeData(assumed=True)
        self.was_vague = model.is_vague  # the last run left something unknown
        dims = (dim for info in model.proto.graph.input for dim in info.type.tensor_type.shape.dim)
        self.input_symbols = {as_symbol(dim.dim_param) for dim in dims}
        self.equal: dict[str, int | str] = {}  # symbols, and the more precise symbol or number of each
        self.todo: Container[Node] | None = None  # nodes to infer in any case; None for all
        self.refined: set[Value] = set()
        self.repeats_body = False  # whether a body is inferred once more
        self.declared: dict[Graph, dict[str, TypeProto]] = {}
        self.functions: Functions | None = None  # read when a call is inferred

    def infer(self, changed: Iterable[Node] | None) -> None:
        """Infer all nodes, or the `changed` nodes and readers of refined types, until no symbols turn out equal."""
        graph = self.model.graph
        infos = {i.name: i.type for i in graph.proto.input}
        for v in graph.inputs:
            _set_type(v, _symbolic(infos.get(v.name)))
            self._store(v, _dims_in(_symbolic(infos.get(v.name))))
        for v in graph.initializers.values():
            if not v.constant and not v.is_input:  # changed by training
                v.dtype, v.shape = v.constant_type()
        self.todo = None if changed is None else _with_owners(changed)
        if not graph.owners:
            self.data = self.model.sizes or ShapeData(kept=True)
            self.data.forget_removed(graph)
        kept, self.data.assumed = self.data, True
        self._scope(graph)
        kept.assumed = False
        while self.equal:
            self.todo, self.refined = _with_owners(self._rename()), set()
            self.data = ShapeData(assumed=True)
            self._scope(graph)
        if self.data.kept:
            self.model.sizes = self.data
        scopes = [scope for scope in self.model.scopes() if not scope.root.is_function]
        is_open = not all(_are_named(v.shape) for v in graph.inputs)
        self.model.is_vague = is_open or any(map(_leaves_unknown, chain.from_iterable(scopes)))

    def _rename(self) -> list[Node]:
        """Replace symbols by equal ones in all values. Returns the readers."""
        readers = list[Node]()
        for scope in self.model.scopes():
            for v in chain(scope.inputs, *map(_RESULTS, scope)):
                if v.shape is not None and not self.equal.keys().isdisjoint(v.shape):
                    learn(v, tuple(map(self._representative, v.shape)), renamed=True)
                    readers += v.users
        self.equal = {}
        return readers

    def _scope(self, graph: Graph) -> None:
        for node in graph:
            if node.op != "Constant":
                if self.todo is None or node in self.todo or (self.refined and self._reads_refined(node)):
                    self._visit(node)

    def _reads_refined(self, node: Node) -> bool:
        """Whether a value with a more precise type is read, and something is unknown of the results."""
        reads = values_read(node) if node.bodies else node.inputs
        return bool(node.bodies or _leaves_unknown(node)) and not self.refined.isdisjoint(reads)

    def _visit(self, node: Node) -> None:
        """Infer the bodies and then the results of a node."""
        for body in node.bodies.values() if node.bodies else ():
            self._type_inputs(node, body)
            self._scope(body)
        untyped = [v for v in node.outputs if v is not None and not v.dtype]
        self._type_results(node)
        for v in untyped:
            if v.dtype:
                self.refined.add(v)
        if node.op == "Loop" and not self.repeats_body and node.bodies:
            self._type_states(node)

    def _type_results(self, node: Node) -> None:
        """Store the types of results: by shape rules alone if the rules say everything, else by inference too."""
        graph, data = node.scope, self.data
        ruled = _is_ruled(node, graph)
        if self.todo is not None and data.kept:
            if ruled and data.is_current(node) and _are_settled(node, {}):
                return
            data.forget_outdated(node.inputs)
        ruled_dims = data.visit(node) if ruled or graph.knows(node.op) or node.domain else {}
        names = dict(zip(ruled_dims, map(as_dims, ruled_dims.values())))
        if not (ruled and _are_settled(node, names)):
            inferred = self._inferred(node)
            for v in node.results:
                _set_type(v, inferred.get(v))
                if not v.constant:
                    self._store(v, _most_precise(_dims_in(inferred.get(v)), ruled_dims.get(v)))
            return
        for w in node.outputs:
            if w is None or w.constant or (w.shape is not None and w in names and w.shape == names[w]):
                continue
            if w.shape is None:
                self._learn(w, names[w])
            else:
                self._store(w, names.get(w))
        data.note(node, ruled_dims)

    def _store(self, value: Value, dims: Shape | None) -> None:
        """Merge dims with the known shape."""
        merged = self._merged_shape(value.shape, dims, value.graph is self.model.graph)
        if merged is not None:
            self._learn(value, self.data.named(value, merged))

    def _learn(self, value: Value, sizes: Shape) -> None:
        if sizes != value.shape:
            self.refined.add(value)
            learn(value, sizes, self.was_vague and not value.unasked, renamed=True)

    def _merged_shape(self, old: Shape | None, new: Shape | None, everywhere: bool) -> Shape | None:
        """Return the shape merged from two shapes of the same value."""
        if new is None or (old is not None and len(old) != len(new)):
            return old
        if old is None or old == new:
            return new
        return tuple(self._merged_dim(a, b, everywhere) for a, b in zip(old, new))

    def _merged_dim(self, old: Dim, new: Dim, everywhere: bool) -> Dim:
        """Return the more precise of two equal dims: a number, then a symbol of inputs, then the older.

        Two different numbers, possible only in code that never runs, give the newer, as a second run would.
        """
        a, b = self._representative(old), self._representative(new)
        if a is None or b is None or a == b:
            return b if a is None else a
        if isinstance(a, int) and isinstance(b, int):
            return b
        if isinstance(a, int) or (isinstance(b, str) and (is_invented(b) or not is_invented(a))):
            a, b = b, a  # b is more precise
        if everywhere and isinstance(a, str) and a not in self.input_symbols:
            self.equal[a] = b
        return b

    def _representative(self, dim: Dim) -> Dim:
        while isinstance(dim, str) and dim in self.equal:
            dim = self.equal[dim]
        return dim

    # -- types without rules -------------------------------------------------------------------------------

    def _inferred(self, node: Node) -> dict[Value, TypeProto]:
        """Return the types of results by inference; of operators that only the file defines, as declared."""
        is_call = function_label(node.domain, node.proto.op_type, node.proto.overload) in self.model.functions
        if is_call:
            from onnxopt.analysis.calls import Functions, call_types  # few models have functions

            self.functions = self.functions or Functions(self.model)
            found = call_types(node, self.functions)
        else:
            found = self._types_of_bodies(node) if node.bodies and node.op in CONTROL_FLOW else believed_types(node)
        if not found and not node.scope.knows(node.op):
            declared = self._declared_in(node.scope)
            found = {v: declared[v.name] for v in node.results if v.name in declared}
            if is_call:
                found = {v: of_any_shape(kind) for v, kind in found.items()}
        return found

    def _declared_in(self, scope: Graph) -> dict[str, TypeProto]:
        """Return the declared types of a scope. A dim name in a body holds for a single execution."""
        if scope not in self.declared:
            infos = (*scope.proto.value_info, *scope.proto.output)
            found = {i.name: _symbolic(i.type) for i in infos if i.type.WhichOneof("value")}
            if scope.owner is not None:
                for kind in found.values():
                    rename_dims(kind, lambda name: "")
            self.declared[scope] = found
        return self.declared[scope]

    def _type_inputs(self, node: Node, body: Graph) -> None:
        """Store the types of the inputs of a body. Runtimes check the declared shapes of a Loop's first two only."""
        is_fed = node.op in CONTROL_FLOW and not (node.op == "Scan" and node.scope.opset() < SCAN_OF_AXES)
        checked = 2 if node.op == "Loop" else 0
        for i, (v, info) in enumerate(zip(body.inputs, body.proto.input)):
            given = known(x) if is_fed and i >= checked and (x := node.input(i)) is not None else None
            kind = info.type if given is None else given[0]
            if node.op == "SequenceMap" and kind.HasField("sequence_type"):
                kind = kind.sequence_type.elem_type
            _set_type(v, kind if i < checked else of_any_shape(kind))
            if i < checked or (node.op == "SequenceMap" and given is not None):
                self._store(v, _numbers(_dims_in(kind)))
        states = recurred(node, node.scope.opset(), types.shape) if node.op == "Scan" else {}
        for v, (kind, _) in states.items():
            if v.graph is body:
                self._store(v, _dims_in(kind))

    def _types_of_bodies(self, node: Node) -> dict[Value, TypeProto]:
        """Return the types of results from those of the bodies; symbols of a single iteration mean nothing outside."""
        if node.op == "Scan":
            self._store_collected(node)
        for v, *made in zip(node.outputs, *(b.outputs[node.op == "Loop" :] for b in node.bodies.values())):
            kinds = [fact[0] for fact in map(known, made) if fact is not None]
            if v is not None and kinds:
                _set_type(v, _type_behind(node, kinds))
        if node.op == "If":
            return {v: kind for v, (kind, _) in (joined(node, {}, completing=False) or {}).items()}
        found = {} if node.op == "SequenceMap" else recurred(node, node.scope.opset(), types.shape)
        for kind, _ in found.values():
            rename_dims(kind, lambda name: "" if is_invented(name) else name)
        return {v: kind for v, (kind, _) in found.items()}

    def _store_collected(self, scan: Node) -> None:
        """Store the declared shapes of the outputs that a Scan collects: runtimes check these."""
        body, states = scan.bodies["body"], len(scan.inputs) - int(scan.attr("num_scan_inputs", 0))
        for v, info in list(zip(body.outputs, body.proto.output))[states:]:
            if (numbers := _numbers(_dims_in(info.type))) is not None and v.graph is body:
                self._store(v, with_numbers(v.shape, numbers))

    def _type_states(self, loop: Node) -> None:
        """Infer the body once more with the shapes of states that all iterations keep."""
        body = loop.bodies["body"]
        for v in body.inputs[2:]:
            if v in self.data.dims:
                self._store(v, as_dims(self.data.dims[v]))
        if any(v in self.refined and v.shape is not None for v in body.inputs[2:]):
            todo, self.todo, self.repeats_body = self.todo, (), True
            self._scope(body)
            self.todo, self.repeats_body = todo, False


def _type_behind(node: Node, kinds: Sequence[TypeProto]) -> TypeProto:
    """Return the type of a result of a node with bodies; `kinds`: of the value in each body."""
    if node.op == "SequenceMap":
        kind = TypeProto(sequence_type=TypeProto.Sequence(elem_type=kinds[0]))
        rename_dims(kind, lambda name: "")
        return kind
    return kinds[0] if node.op == "If" and all(kind == kinds[0] for kind in kinds) else of_any_shape(kinds[0])


def _leaves_unknown(node: Node) -> bool:
    """Whether a type, a rank or a dim of a result is unknown, or has an invented name."""
    for v in node.outputs:
        if v is not None and not v.constant and not (v.dtype and _are_named(v.shape)):
            return True
    return False


def _with_owners(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes, and the owners of the bodies around them."""
    found: set[Node] = set()
    for inner in nodes:
        node: Node | None = inner
        while node is not None and node not in found:
            found.add(node)
            node = node.graph.owner if node.graph is not None else None
    return found


def _symbolic(kind: TypeProto | None) -> TypeProto:
    """Return a declared type with dim names turned into symbols."""
    copy = TypeProto()
    if kind is not None:
        copy.CopyFrom(kind)
        rename_dims(copy, as_symbol)
    return copy


def _numbers(dims: Shape | None) -> Shape | None:
    return None if dims is None else tuple(d if isinstance(d, int) else None for d in dims)
