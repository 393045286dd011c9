"""Element types and shapes of values: onnx's own inference over a skeleton without weights, on demand.

Facts live on the values (`Value.dtype`, `Value.shape`). Rewrites keep what a surviving value holds, so a fact
never turns false; only new values lack facts. Inference therefore runs when a rule asks about a value without
facts, and at most once between two calls of `refresh_allowed`, which keeps the cost linear.

Facts grow: where an `Unsqueeze` or a `Shape` has become a constant, inference finds a number for what was a symbol. A
value that is known better is looked at again, as one that changed is (`learn`), and a round of passes begins with all
that inference knows (`settle`): so what is written is what a second run would make of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from onnx import GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto, shape_inference
from onnx.defs import OpSchema

from onnxopt.analysis.local import infer_made
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.schema import find_schema
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.graph.writer import node_protos
from onnxopt.protos import tensor_bytes, tensor_type
from onnxopt.worker.limits import IS_LIMITED, spare

# Larger constants cannot be shapes, axes or indices that inference would read.
_DATA_UP_TO: Final = 4096
_DECLARED: Final = {"tensor(float)": TensorProto.FLOAT, "tensor(int64)": TensorProto.INT64}
# Bytes that one inference may take beyond what it is given; for each node several times what it needs.
_SPARE: Final = 1 << 28
_SPARE_PER_NODE: Final = 1 << 12
_MANY: Final = 1 << 22  # elements of vectors
_OTHER: Final = "types of values that are no tensors"
_runs = itertools.count()


def dtype(value: Value) -> int:
    """ONNX element type; 0 when unknown (or not a tensor)."""
    if value.constant:
        return value.constant_type()[0]
    if not value.dtype:
        _find_out(value)
    return value.dtype


def shape(value: Value) -> Shape | None:
    """Dims as int, symbol (equal symbols are equal sizes) or None (unknown); None for unknown rank."""
    if value.constant:
        return value.constant_type()[1]
    if value.shape is None:
        _find_out(value)
    return value.shape


def rank(value: Value) -> int | None:
    dims = shape(value)
    return None if dims is None else len(dims)


def static_shape(value: Value) -> tuple[int, ...] | None:
    """The shape if every dim is a number."""
    dims = shape(value)
    if dims is None or not all(isinstance(d, int) for d in dims):
        return None
    return tuple(d for d in dims if isinstance(d, int))


def same_shape(a: Value, b: Value) -> bool:
    """Proven equal: every pair of dims is the same number or the same symbol."""
    x, y = shape(a), shape(b)
    return x is not None and x == y and None not in x


def refresh_allowed(model: Model) -> None:
    """Let the next question about a value without facts run inference again, if the model changed since."""
    model.inference_allowed = True
    model.analyses.clear()


def update(model: Model) -> None:
    """Infer again if the model changed since: what was a symbol may be a number by now."""
    if model.inferred_version != model.version:
        infer(model)
        model.inferred_version = model.version


def settle(model: Model) -> None:
    """Infer again where more may be known by now; else when a value without facts is asked for."""
    model.inference_allowed = True
    if model.is_vague:
        update(model)


def learn(value: Value, dims: Shape) -> None:
    """`dims` are true of `value`, and say at least as much as what is known. Where they say more, the model is
    another for those who ask."""
    known, value.shape = value.shape, dims
    if known is not None and any(map(_says_more, dims, known)):
        model = value.graph.model
        model.learnt += 1
        for user in value.users:
            model.mark(user)


def _says_more(new: Dim, known: Dim) -> bool:
    """A number says more than a symbol, that of an input more than one that inference invented."""
    return new != known and (known is None or isinstance(new, int) or (_is_invented(known) and not _is_invented(new)))


def _is_invented(dim: Dim) -> bool:
    return isinstance(dim, str) and "@" in dim


def _find_out(value: Value) -> None:
    if value.unasked:
        infer_made(value)
        if value.shape is not None:
            return
    _infer_once(value.graph.model)


def _infer_once(model: Model) -> None:
    if model.inference_allowed and model.inferred_version != model.version:
        model.inference_allowed = False
        infer(model)
        model.inferred_version = model.version


def infer(model: Model) -> None:
    """Run inference over the main graph and its bodies; function bodies are polymorphic and get no facts."""
    skeleton = _skeleton(model)
    inferred = _inferred(skeleton, model)
    if inferred is None:
        _read_infos(model.graph, [*skeleton.graph.input], set())
        return
    own = {d.dim_param for i in skeleton.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    _Facts(own, f"@{next(_runs)}").add(model, inferred.graph)


def other_types(model: Model) -> dict[str, TypeProto]:
    """Types of the values of the main graph that are no tensors, by name: no facts of ours hold them."""
    known = model.analyses.get(_OTHER)
    if not isinstance(known, dict):
        inferred = _inferred(_skeleton(model), model)
        infos = (*inferred.graph.value_info, *inferred.graph.output) if inferred is not None else ()
        known = {i.name: i.type for i in infos if i.type.WhichOneof("value") not in (None, "tensor_type")}
        model.analyses[_OTHER] = known
    return known


def _inferred(skeleton: ModelProto, model: Model) -> ModelProto | None:
    """With the values of shapes followed through the model; without, once they turned out to be too many.

    onnx writes each element of a vector down on its way, whatever it is: a Range over a number from the file takes all
    memory there is, if it is let.
    """
    room = _SPARE + _SPARE_PER_NODE * len(skeleton.graph.node)
    for follow_values in (True, False) if model.values_fit else (False,):
        try:
            with spare(room):
                if follow_values and not _are_few(skeleton):
                    raise MemoryError
                return shape_inference.infer_shapes(skeleton, data_prop=follow_values)
        except MemoryError:
            model.values_fit = False
        except Exception:  # inference is an optional source of facts: a model it cannot read has none
            return None
    return None


def _are_few(skeleton: ModelProto) -> bool:
    """Where memory cannot be limited: are the vectors short that one sees without following values?"""
    if IS_LIMITED:
        return True
    inferred = shape_inference.infer_shapes(skeleton)
    lengths = {
        i.name: i.type.tensor_type.shape.dim[0].dim_value
        for infos in (inferred.graph.value_info, inferred.graph.input, inferred.graph.output)
        for i in infos
        if len(i.type.tensor_type.shape.dim) == 1
    }
    lengths |= {t.name: t.dims[0] for t in skeleton.graph.initializer if len(t.dims) == 1}
    return int(sum(lengths.get(name, 0) for node in skeleton.graph.node for name in node.input)) < _MANY


def _skeleton(model: Model) -> ModelProto:
    proto, graph = model.proto, model.graph
    skeleton = ModelProto(ir_version=max(proto.ir_version, 4))
    skeleton.opset_import.extend(proto.opset_import)
    skeleton.functions.extend(proto.functions)
    target = skeleton.graph
    target.name = proto.graph.name
    live = {v.name: v for v in graph.inputs}
    target.input.extend(i for i in proto.graph.input if i.name in live)
    for value in graph.initializers.values():
        if value.is_input:
            continue
        data_type, dims = value.constant_type()
        if value.constant and tensor_bytes(data_type, dims) <= _DATA_UP_TO:
            tensor = graph.tensor_of(value)
            copy = target.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = value.name
        else:
            target.initializer.add(name=value.name, data_type=data_type, dims=dims)
    opaque: dict[str, Value] = {}
    for node in graph:
        schema = find_schema(node.op, graph.opset(node.domain))
        if schema is None:
            opaque.update((v.name, v) for v in node.outputs if v is not None)
        elif node.domain == "ai.onnx.ml":
            target.value_info.extend(_declared(node, schema))
    target.node.extend(node_protos(graph, graph))
    # What the file says of interior values may be wrong; only where inference knows nothing is it all there is.
    if opaque:
        claims = [i for i in proto.graph.value_info if i.name in opaque]
        target.value_info.extend(claims)
        said = {i.name for i in claims}
        target.value_info.extend(_fact(v) for n, v in opaque.items() if n not in said and v.dtype and not v.is_output)
        target.output.extend(i for i in proto.graph.output if i.name in opaque)
    target.output.extend(ValueInfoProto(name=v.name) for v in graph.outputs if v.name not in opaque)
    return skeleton


def _fact(value: Value) -> ValueInfoProto:
    """What was found out of a value that inference knows nothing of."""
    info = ValueInfoProto(name=value.name)
    info.type.tensor_type.elem_type = value.dtype
    if value.shape is not None:
        dims = info.type.tensor_type.shape.dim
        for d in value.shape:
            if isinstance(d, int):
                dims.add(dim_value=d)
            else:
                dims.add(dim_param=d or "")
    return info


def _declared(node: Node, schema: OpSchema) -> Iterator[ValueInfoProto]:
    """Types of results that the schema names: for most operators of classical models there is no inference."""
    for v, output in zip(node.outputs, schema.outputs):
        kind = _DECLARED.get(output.type_str)
        if v is not None and kind and not v.is_output:
            info = ValueInfoProto(name=v.name)
            info.type.tensor_type.elem_type = kind
            yield info


class _Facts:
    """What one run of inference found, beside what was known before.

    Both are true, so the dims that they give to one axis are the same size, whatever they call it: `same` maps a symbol
    to one that says more, a number at best. So do two symbols of earlier runs become one. What a body says is true of
    its own values: outside, where it may not run, it says nothing.
    """

    def __init__(self, own: set[str], suffix: str) -> None:
        self.own = own  # symbols of the inputs
        self.suffix = suffix  # inference invents names anew in every run: the same name of two runs means nothing
        self.found: list[tuple[Value, Shape]] = []
        self.same: dict[str, int | str] = {}

    def add(self, model: Model, proto: GraphProto) -> None:
        self._read(model.graph, proto)
        model.is_vague = any(d is None or _is_invented(d) for _, dims in self.found for d in dims)
        for value, dims in self.found:
            known = tuple(map(self._best, dims)) if self.same else dims
            if known != value.shape:
                learn(value, known)

    def _read(self, graph: Graph, proto: GraphProto) -> None:
        by_name: dict[str, tuple[int, Shape | None]] = {}
        for info in (*proto.input, *proto.value_info, *proto.output):
            data_type, dims = tensor_type(info.type)
            if data_type and (dims is not None or info.name not in by_name):
                by_name[info.name] = data_type, dims
        for value in (*graph.inputs, *(v for n in graph for v in n.outputs if v is not None)):
            data_type, dims = by_name.get(value.name, (0, None))
            value.dtype = value.dtype or data_type
            if dims is not None and not all(type(d) is int for d in dims):
                dims = tuple(d if not isinstance(d, str) or d in self.own else d + self.suffix for d in dims)
            if dims is None or (value.shape is not None and len(value.shape) != len(dims)):
                dims = value.shape
            elif value.shape is not None and dims != value.shape:
                dims = tuple(self._merged(a, b, everywhere=graph.owner is None) for a, b in zip(value.shape, dims))
            if dims is not None:
                self.found.append((value, dims))
        if graph.owners:
            for node, copy in zip(graph, proto.node):
                for a in copy.attribute:
                    if a.name in node.bodies:
                        self._read(node.bodies[a.name], a.g)

    def _merged(self, known: Dim, new: Dim, everywhere: bool) -> Dim:
        """Of two dims that are the same size, the one that says more: numbers, symbols of inputs, the older."""
        a, b = self._best(known), self._best(new)
        if a is None or b is None or a == b:
            return b if a is None else a
        if isinstance(a, int) or (isinstance(b, str) and (_is_invented(b) or not _is_invented(a))):
            a, b = b, a  # b says more
        if everywhere and isinstance(a, str) and a not in self.own:
            self.same[a] = b
        return b

    def _best(self, dim: Dim) -> Dim:
        while isinstance(dim, str) and dim in self.same:
            dim = self.same[dim]
        return dim


def _read_infos(graph: Graph, infos: list[ValueInfoProto], own: set[str]) -> None:
    types = {i.name: tensor_type(i.type) for i in infos}
    for value in graph.inputs:
        if value.name in types:
            value.dtype, value.shape = types[value.name]
