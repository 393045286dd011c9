"""Views of a model file: without quantizers, with a renamed interface, without parts of no effect."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxopt.errors import ModelError
from onnxopt.proto.functions import inlined
from onnxopt.proto.messages import body_graphs, tensor_to_array
from onnxopt.verification import VerifyOptions
from onnxopt.verification.model.nodes import (
    bodies_of,
    domain_of,
    first_of,
    in_order,
    inside,
    operator_names,
    overridable,
    reads_of,
)
from onnxopt.verification.model.operators import STANDARD, WITH_BODIES
from onnxopt.verification.model.ranges import ANY, Range, Ranges

# -- parts without effect ---------------------------------------------------------------------------------
# Removed: inputs of branches, constant false training modes of Dropout, dead nodes, declared shapes, and overridable
# defaults.

_MODE: Final = 2  # operand of Dropout: training mode


def leave_out_inputs(model: ModelProto) -> None:
    """Remove the inputs of If branches in place.

    The standard allows none, and nothing is passed; readers get the outer value of the same name.
    """
    for nodes, _ in _scopes(model):
        for node in inside(nodes):
            if node.op_type == "If" and node.domain in STANDARD:
                for branch in bodies_of(node):
                    del branch.input[:]


class _Modes(Ranges):
    """Forward analysis that finds Dropouts in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.training = set[str]()  # first results

    def transfer(self, node: NodeProto, reads: Sequence[Range | None]) -> Sequence[Range | None]:
        if node.op_type == "Dropout" and any((self.of(name) or ANY).high > 0 for name in node.input[_MODE:]):
            self.training.add(first_of(node))
        return super().transfer(node, reads)


def leave_out_false_modes(model: ModelProto) -> None:
    """Remove constant false `training_mode` operands of Dropout (the default) in place, also in bodies and functions.

    Overridable initializers are no constants.
    """
    given = overridable(model)
    known = [t for t in model.graph.initializer if t.name not in given]
    for nodes, tensors in ((model.graph.node, known), *((f.node, []) for f in model.functions)):
        found = _Modes()
        found.constants.update((t.name, t) for t in tensors)
        found.follow(nodes)
        for node in inside(nodes):
            if node.op_type == "Dropout" and node.domain in STANDARD and first_of(node) not in found.training:
                del node.input[_MODE:]


def leave_out_unread(model: ModelProto) -> None:
    """Remove dead nodes of the standard domain in place, if the graph or function has bodies.

    Operators of custom domains may have side effects, and stay with their operands.
    """
    for nodes, outputs in _scopes(model):
        if any(map(bodies_of, nodes[:])) and not WITH_BODIES.isdisjoint(operator_names(nodes)):
            prune(nodes, outputs)


def _scopes(model: ModelProto) -> list[tuple[Any, Sequence[str]]]:
    """Return the nodes and outputs of the main graph and of each function."""
    return [(model.graph.node, [o.name for o in model.graph.output]), *((f.node, f.output) for f in model.functions)]


def prune(nodes: Any, outputs: Iterable[str]) -> None:
    """Remove nodes of the standard domain without effect on `outputs`, in place, also in bodies."""
    for node in nodes:
        for body in bodies_of(node):
            prune(body.node, (o.name for o in body.output))
    reads = [list(reads_of(node)) for node in nodes]
    needed, dead = set(outputs), []
    for i in reversed(in_order(nodes, reads)):
        if needed.isdisjoint(nodes[i].output) and all(not domain_of(n.domain) for n in inside([nodes[i]])):
            dead.append(i)
        else:
            needed.update(reads[i])
    for i in sorted(dead, reverse=True):
        del nodes[i]


def forget_defaults(proto: ModelProto) -> None:
    """Remove overridable initializers, which onnx's inference takes for constants."""
    graph, given = proto.graph, overridable(proto)
    names = [t.name for t in graph.initializer], [t.values.name for t in graph.sparse_initializer]
    for tensors, its in zip((graph.initializer, graph.sparse_initializer), names):
        for k in reversed([k for k, name in enumerate(its) if name in given]):
            del tensors[k]


def forget_claims(graph: GraphProto) -> None:
    """Remove declared shapes of results, which may be wrong, in place, also in bodies."""
    del graph.value_info[:]
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for body in bodies_of(node):
            forget_claims(body)


# -- renamed interfaces -----------------------------------------------------------------------------------


def _named(graph: GraphProto) -> tuple[list[ValueInfoProto], list[TensorProto]]:
    """Return (declared values, initializers) of a graph and its bodies."""
    graphs = [graph, *(body for node in inside(graph.node) for body in bodies_of(node))]
    tensors = [t for g in graphs for t in (*g.initializer, *(s.values for s in g.sparse_initializer))]
    return [i for g in graphs for i in (*g.input, *g.output, *g.value_info)], tensors


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename values and dims of a graph and its bodies as in `names`, in place.

    A value that already has a new name gets a fresh name.
    """
    infos, tensors = _named(graph)
    named = [*infos, *tensors]
    fields = [field for node in inside(graph.node) for field in (node.input, node.output)]
    dims = [d for i in infos for d in i.type.tensor_type.shape.dim if d.dim_param]
    values = _apart(names, {i.name for i in named}.union(*fields))
    symbols = _apart(names, {d.dim_param for d in dims})
    for i in named:
        i.name = values.get(i.name, i.name)
    for field in fields:
        field[:] = [values.get(name, name) for name in field]
    for d in dims:
        d.dim_param = symbols.get(d.dim_param, d.dim_param)


def _apart(names: Mapping[str, str], there: set[str]) -> dict[str, str]:
    """Return `names` limited to names in `there`, with fresh names for displaced values."""
    found = {name: new for name, new in names.items() if name in there}
    for new in [*found.values()]:
        if new in there and new not in found:
            other = f"{new}_"
            while other in there or other in found.values():
                other += "_"
            found[new] = other
    return found


# -- views of both files ----------------------------------------------------------------------------------

View = Callable[["ModelProto"], None]


def renaming(options: VerifyOptions) -> View | None:
    """Return the view of a result with the original's names; None for equal names."""
    return (lambda model: rename(model.graph, options.original_names)) if options.rename else None


def views(options: VerifyOptions) -> tuple[View | None, View | None]:
    """Return the changes to make to original and result after reading; None for no change."""

    def as_compared(model: ModelProto) -> None:
        if options.dtype:  # what is rounded inside a function is rounded where the function is called
            with contextlib.suppress(ModelError):  # too large: the calls stay
                inlined(model, Path())
        if options.rename:
            rename(model.graph, options.original_names)

    without = partial(pass_through, keep=options.keep) if options.strip_qdq else None
    return without, as_compared if options.rename or options.dtype else None


def pass_through(model: ModelProto, keep: Collection[str] = ()) -> None:
    """Replace each DequantizeLinear after a QuantizeLinear of equal scale and zero point by an Identity, in place.

    The Identity reads the QuantizeLinear's input. Quantizers without readers are removed. keep: names of nodes, or of
    their first input or outputs, not replaced.
    """
    for graph in (model.graph, *model.functions):
        _pass_through(graph, {*keep}, {}, {})
    for nodes, outputs in _scopes(model):
        prune(nodes, outputs)


def _pass_through(
    graph: GraphProto | FunctionProto, keep: set[str], numbers: Mapping[str, bytes], quantizers: Mapping[str, NodeProto]
) -> None:
    """Process a graph and its bodies.

    numbers: constants of enclosing graphs; quantizers: nodes of enclosing graphs, by result.
    """
    numbers = {**numbers, **{t.name: _number(t) for t in getattr(graph, "initializer", ())}}
    quantizers = dict(quantizers)
    for node in graph.node:
        for _, body in body_graphs(node):
            _pass_through(body, keep, numbers, quantizers)
        if node.op_type == "Constant":
            numbers.update((node.output[0], _number(a.t)) for a in node.attribute if a.name == "value")
        elif not keep.isdisjoint([*filter(None, [node.name]), *node.input[:1], *node.output]):
            continue
        elif node.op_type == "QuantizeLinear":
            quantizers[node.output[0]] = node
        elif node.op_type == "DequantizeLinear" and node.input[0] in quantizers:
            _pass_on(node, quantizers[node.input[0]], numbers)


def _pass_on(node: NodeProto, quantizer: NodeProto, numbers: Mapping[str, bytes]) -> None:
    """Make a DequantizeLinear the Identity of the quantized value, if the scaling is equal."""
    if _scaling(node, numbers) == _scaling(quantizer, numbers):
        node.op_type, node.domain, node.input[:] = "Identity", "", [quantizer.input[0]]
        del node.attribute[:]


def _number(tensor: TensorProto) -> bytes:
    """Return a constant's data, or its name if the data is external, for comparison."""
    elsewhere = tensor.data_location == 1 or not (tensor.HasField("raw_data") or tensor.int32_data or tensor.float_data)
    return tensor.name.encode() if elsewhere else bytes(tensor_to_array(tensor).tobytes())


def _scaling(node: NodeProto, numbers: Mapping[str, bytes]) -> tuple[object, ...]:
    """Return scale, zero point and layout of a quantizer, for comparison. A zero point of 0 equals none."""
    reads = [numbers.get(name, name) for name in (*node.input[1:], "", "")[:2]]
    if isinstance(reads[1], bytes) and not any(reads[1]):
        reads[1] = ""
    layout = {a.name: a.i for a in node.attribute}
    return (*reads, layout.get("axis", 1), layout.get("block_size", 0))
