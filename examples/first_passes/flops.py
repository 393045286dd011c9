"""Floating point operations of convolutions and matrix products."""

from math import prod

from onnxopt import model_pass, register, shape


@register
@model_pass(opt_level=0)
def count_flops(model, ctx):
    """Counts two for each multiplication of Conv and MatMul; a symbolic dim counts as 1."""
    for node in model.nodes():
        if node.op in ("Conv", "MatMul"):
            weight, result = shape(node.inputs[1]) or (), shape(node.output) or ()
            summed = weight[1:] if node.op == "Conv" else weight[-2:-1]
            ctx.count(node.op, 2 * prod(d for d in (*summed, *result) if isinstance(d, int)))
