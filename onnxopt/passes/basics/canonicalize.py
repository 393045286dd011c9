"""Canonical forms: one form for each construct, constants for descriptions of data, initializers for Constants."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import listed_by
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node, array_of
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, RewritePass, option, register
from onnxopt.proto.messages import Array, tensor_bytes
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var


@rewrite(op.CastLike(var("x"), var("like"), name="cast"))
def cast_like(m: Match, x: Value, like: Value) -> Value:
    """CastLike(x, like) = Cast(x, to = type of like): the data of `like` does not matter."""
    to = m.dtype(like)
    m.require(to, "the type of the second input is unknown")
    m.require(m.cast.attr("round_mode", "up") == "up", "runtimes round up, whatever it says")
    return m.op.Cast(x, to=to, saturate=m.cast.attr("saturate") if m.opset >= 19 else None)


def numbers(m: Match, dims: Shape) -> list[int]:
    m.require(all(isinstance(d, int) for d in dims), "a dimension is dynamic")
    return [d for d in dims if isinstance(d, int)]


@rewrite(op.Shape(var("x"), name="node"))
def shape_of_static(m: Match, x: Value) -> Value:
    """Shape(x) is a constant where the dims it lists are numbers; shape-arithmetic knows parts of others."""
    return m.ints(numbers(m, m.known(m.shape(x), "the rank is unknown")[listed_by(m.node)]))


@rewrite(op.Gather(op.Shape(var("x"), name="node", shared=True), const("indices"), axis=lambda a: a in (0, -1)))
def dims_of_shape(m: Match, x: Value, indices: Array) -> Value:
    """Gather(Shape(x), i) is a constant where dim i is a number, even beside unknown dims."""
    dims = m.dims(x)[listed_by(m.node)]
    m.require(((indices >= -len(dims)) & (indices < len(dims))).all(), "an index is out of range")
    picked = tuple(dims[int(i)] for i in indices.reshape(-1))
    return m.const(np.array(numbers(m, picked), np.int64).reshape(indices.shape))


@rewrite(op.Dropout(var("x"), ..., name="node"))
def dropout_in_inference(m: Match, x: Value) -> tuple[Value, Value | None]:
    """Dropout(x) = x when not training, or when nothing is dropped; its mask is all true."""
    node = m.node
    ratio, training = array_of(node.input(1)), node.input(2)
    if m.opset >= 12 and training is not None and (ratio is None or ratio.any()):
        m.require(training.constant, "training_mode is computed")
        m.require(not training.array.any(), "training_mode is set")
    m.require(m.opset >= 7 or node.attr("is_test", 0), "is_test is not set")
    if 1 not in node.used_outputs():
        return x, None
    m.require(m.opset >= 12, "the mask is used, and before opset 12 runtimes do not fill it")
    m.require(not all(v is not None and v.is_output for v in node.outputs), "each output would be a node of its own")
    dims = m.known(types.static_shape(x), "the mask is used, its shape dynamic")
    m.require(math.prod(dims) <= 1 << 16, "the mask is used, and large")
    return x, m.const(np.ones(dims, bool))


@rewrite(op.SequenceAt(op.SequenceConstruct(var("first"), ..., name="sequence", shared=True), const("position")))
def element_of_sequence(m: Match, first: Value, position: Array) -> Value:
    """SequenceAt(SequenceConstruct(x0, x1, …), i) = xi."""
    elements = [first, *(v for v in m.sequence.inputs[1:] if v is not None)]
    m.require(position.size == 1, "the position is no number")
    i = int(position.item())
    m.require(-len(elements) <= i < len(elements), "the position is out of range")
    return elements[i]


@rewrite(op.ConcatFromSequence(op.SequenceConstruct(var("first"), ..., name="sequence"), name="node", new_axis=0))
def concat_of_sequence(m: Match, first: Value) -> Value:
    """ConcatFromSequence(SequenceConstruct(x0, x1, …)) = Concat(x0, x1, …)."""
    return m.op.Concat(first, *m.sequence.inputs[1:], axis=m.node.attr("axis"))


@rewrite(op.SequenceLength(op.SequenceConstruct(var("first"), ..., name="sequence", shared=True)))
def length_of_sequence(m: Match, first: Value) -> Value:
    """SequenceLength(SequenceConstruct(x0, …, xn-1)) = n."""
    return m.ints(len(m.sequence.inputs))


@rewrite(op.Range(var("start"), var("limit"), var("delta"), name="node"))
def range_of_scalars(m: Match, start: Value, limit: Value, delta: Value) -> Value:
    """Range([a], b, c) = Range(a, b, c): onnxruntime takes one computed element, but not a constant of rank 1."""
    given = (start, limit, delta)
    lists = [v.constant and v.array.size == 1 and v.array.ndim > 0 for v in given]
    if not any(lists):
        m.skip()
    scalars = [m.const(v.array.reshape(()), like=v) if is_list else v for v, is_list in zip(given, lists)]
    return m.op.Range(*scalars, like=m.node)


# `...`: in this order only
@rewrite(
    one_of("Add", "Mul", "And", "Or", "Xor", "Equal")(
        var("c", constant=True), var("x", constant=False), ..., name="node"
    )
)
def constant_on_the_right(m: Match, c: Value, x: Value) -> Value:
    """c + x = x + c: rules downstream need to look in one place only."""
    return m.op[m.node.op](x, c, like=m.node)


@register
class Canonicalize(RewritePass):
    """Makes descriptions of data constant: types, static shapes, positions in sequences, inference switches.

    Applies when: the described type, dim or position is known from the model alone.
    Keeps: the tensor arithmetic itself.
    Not done: dynamic dims; training Dropout; a mask whose shape is dynamic.
    """

    info = PassInfo("canonicalize", opt_level=1)
    rules = (
        cast_like,
        shape_of_static,
        dims_of_shape,
        dropout_in_inference,
        element_of_sequence,
        concat_of_sequence,
        length_of_sequence,
        range_of_scalars,
        constant_on_the_right,
    )


@register
@dataclass(eq=False, repr=False)
class LiftConstants(GraphPass):
    """Constant() -> y becomes the initializer y; so does Identity(constant) -> y for an output y of a body.

    Applies when: the constant is dense and the scope holds initializers (not in functions, nor in bodies before IR 4).
    Keeps: the tensor as it is, with its documentation; a Constant that is itself a graph output.
    """

    info = PassInfo("lift-constants", opt_level=1, ops=("Constant", "Identity"))
    max_copy: int = option(1024, "an outer constant that a body only hands out is copied up to this many bytes")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if not graph.holds_initializers:
            return
        for node in list(graph.by_op.get("Constant", ())):
            value = node.outputs[0]
            if value is None or not value.constant or (value.output_count and graph.is_bound_by_name):
                continue
            attribute = node.attributes.get("value")
            if attribute is not None:
                value.tensor = tensor = attribute.t
                tensor.name = value.name
            else:
                value.array = node.constant_array()
            graph.add_initializer(value, removed=True)
            graph.remove(node)
            ctx.count("constant_to_initializer")
        if not graph.is_bound_by_name:
            for node in list(graph.by_op.get("Identity", ())):
                self._copy_into_body(node, graph, ctx)

    def _copy_into_body(self, node: Node, graph: Graph, ctx: PassContext) -> None:
        """Replace an Identity of a small outer constant by an initializer of the body: outputs must belong to
        the body."""
        source, value = node.inputs[0], node.outputs[0]
        if source is None or value is None or not source.constant or not value.is_output:
            return
        if tensor_bytes(*source.constant_type()) > self.max_copy:
            return
        value.array = source.array
        graph.add_initializer(value, removed=True)
        graph.remove(node)
        ctx.count("constant_body_output")
