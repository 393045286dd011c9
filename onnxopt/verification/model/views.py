"""Views of two files with intended differences: renamed interface, removed quantizers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from onnxopt.proto.messages import body_graphs, tensor_to_array
from onnxopt.verification import VerifyOptions
from onnxopt.verification.model.functions import inline
from onnxopt.verification.model.leave_out import prune

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto
View = Callable[["ModelProto"], None]


def views(options: VerifyOptions) -> tuple[View | None, View | None]:
    """Return the changes to make to original and result after reading; None for no change."""

    def without(model: ModelProto) -> None:
        pass_through(model, options.keep)

    def as_compared(model: ModelProto) -> None:
        if options.dtype:  # what is rounded inside a function is rounded where the function is called
            inline(model)
        if options.rename:
            from onnxopt.verification.model.renamed import rename

            rename(model.graph, options.original_names)

    return without if options.strip_qdq else None, as_compared if options.rename or options.dtype else None


def pass_through(model: ModelProto, keep: Collection[str] = ()) -> None:
    """Replace each DequantizeLinear after a QuantizeLinear of equal scale and zero point by an Identity, in place.

    The Identity reads the QuantizeLinear's input. Quantizers without readers are removed. keep: names of nodes, or of
    their first input or outputs, not replaced.
    """
    for graph in (model.graph, *model.functions):
        _pass_through(graph, {*keep}, {}, {})
    prune(model.graph.node, (o.name for o in model.graph.output))
    for function in model.functions:
        prune(function.node, function.output)


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
        elif node.op_type == "QuantizeLinear" and keep.isdisjoint(_names(node)):
            quantizers[node.output[0]] = node
        elif node.op_type == "DequantizeLinear" and keep.isdisjoint(_names(node)):
            quantizer = quantizers.get(node.input[0])
            if quantizer is not None and _scaling(node, numbers) == _scaling(quantizer, numbers):
                node.op_type, node.domain, node.input[:] = "Identity", "", [quantizer.input[0]]
                del node.attribute[:]


def _names(node: NodeProto) -> list[str]:
    return [*filter(None, [node.name]), *node.input[:1], *node.output]


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
