"""RotaryEmbedding, written out."""

from __future__ import annotations

from onnx import NodeProto

from onnxopt.conversion.boundaries import before
from onnxopt.conversion.call import Call


@before(23, "RotaryEmbedding")
def _rotary_embedding(call: Call) -> list[NodeProto]:
    """RotaryEmbedding(x, cos, sin) = Concat(cos·a - sin·b, sin·a + cos·b, rest), where x = Concat(a, b, rest).

    With `interleaved`, elements of a and b alternate. The last of three axes joins all heads.
    """
    op, x, positions = call.op, call.input(0), call.input(3)
    flat = call.rank() == 3
    heads = 2 if flat else 1
    if flat:
        x = op("Reshape", x, op.constant([0, 0, call.attr("num_heads"), -1]))
    tables = [op("Gather", call.input(i), positions) if positions else call.input(i) for i in (1, 2)]
    rotated, last, step = call.attr("rotary_embedding_dim"), op.constant([-1]), op.constant([2])
    zero, end = op.constant([0]), op.constant([2**62])
    half = op.constant([rotated // 2]) if rotated else op("Slice", op("Shape", tables[0]), last, end)
    whole, inner = op.constant([rotated]), x
    if rotated:
        inner = op("Slice", x, zero, whole, last)
        tables = [op("Slice", t, zero, half, last) for t in tables]
    cos, sin = (op("Unsqueeze", t, op.constant([heads])) for t in tables)
    if call.attr("interleaved"):
        a, b = (op("Slice", inner, start, end, last, step) for start in (zero, op.constant([1])))
    else:
        a, b = op("Slice", inner, zero, half, last), op("Slice", inner, half, end, last)
    real = op("Sub", op("Mul", cos, a), op("Mul", sin, b))
    imaginary = op("Add", op("Mul", sin, a), op("Mul", cos, b))
    if call.attr("interleaved"):
        pairs = op("Concat", op("Unsqueeze", real, last), op("Unsqueeze", imaginary, last), axis=-1)
        parts = [op("Reshape", pairs, op("Shape", inner))]
    else:
        parts = [real, imaginary]
    if rotated:
        parts.append(op("Slice", x, whole, end, last))
    y = op("Concat", *parts, axis=-1, name="" if flat else call.made[0])
    if flat:
        op("Reshape", y, op("Shape", call.input(0)), name=call.made[0])
    return op.nodes
