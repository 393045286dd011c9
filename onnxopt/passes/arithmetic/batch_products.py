"""Products of matrices whose batch dims were merged for them alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxopt.graph import Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import SAME_ORDER
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.rewriting import Match, Pattern, either, one_of, op, quantized, rewrite, var


def reshaped(x: Pattern, name: str) -> Pattern:
    return one_of(*SAME_ORDER)(x, ..., name=name)


_PRODUCT = op.MatMul(var("p"), var("q"), name="product")


@rewrite(either(reshaped(_PRODUCT, "outer"), reshaped(reshaped(_PRODUCT, "middle"), "outer")))
def product_of_batches(m: Match, p: Value, q: Value) -> Value:
    """Reshape(MatMul(Reshape(a, [-1, m, k]), Reshape(b, [-1, k, n])), [batch, heads, m, n]) = MatMul(a, b)."""
    wanted, made = m.shape(m.outer.output), m.shape(m.product.output)
    m.require(wanted is not None and None not in wanted and len(wanted) > 3, "the dims are unknown, or few")
    assert wanted is not None
    ones = 0  # behind the matrices
    while len(wanted) > 4 and wanted[-1] == 1 and made is not None and made[1:] != wanted[-2:]:
        wanted, ones = wanted[:-1], ones + 1
    m.require(made is not None and made[1:] == wanted[-2:], "not the matrices of one batch")
    a, b = (_before(m, v, wanted[:-2]) for v in (p, q))
    m.require(a is not None and b is not None, "not provably the same batches of the same matrices")
    assert a is not None and b is not None
    m.require(not quantized(m, a) and not quantized(m, b), "the product is quantized")
    product: Value = m.op.MatMul(a, b, like=m.product)
    behind = np.arange(len(wanted), len(wanted) + ones)
    return m.op.Unsqueeze(product, m.const(behind)) if ones else product


def _before(m: Match, operand: Value, batches: Shape) -> Value | None:
    """The matrices of an operand in these batches, before they were merged."""
    matrices = m.shape(operand)
    first = operand.producer
    turned = first if first is not None and first.op == "Transpose" else None
    if matrices is None or (turned is not None and turned.attr("perm") != [0, 2, 1]):
        return None
    if turned is not None:
        matrices = (matrices[0], *matrices[:0:-1])
    found: list[tuple[Value, list[int]]] = []
    for x in _reshaped_from(m.product, turned, operand):
        dims = m.shape(x)
        ones = None if dims is None or None in dims else _beside_ones(dims, (*batches, *matrices[1:]))
        if ones is not None:
            found.append((x, ones))
    if not found:
        return None
    x, ones = min(found, key=lambda other: len(other[1]))
    x, rank = m.op.Squeeze(x, m.ints(ones)) if ones else x, len(batches) + 2
    return m.op.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2]) if turned is not None else x


def _beside_ones(dims: Shape, wanted: Shape) -> list[int] | None:
    """The axes of one element without which these dims are what is wanted; None where they never are."""
    ones: list[int] = []
    for axis, dim in enumerate(dims):
        at = axis - len(ones)
        if at == len(wanted) or dim != wanted[at]:
            if dim != 1:
                return None
            ones.append(axis)
    return ones if len(dims) - len(ones) == len(wanted) else None


def _reshaped_from(product: Node, transpose: Node | None, operand: Value) -> Iterator[Value]:
    """What is reshaped for the product alone, step by step."""
    reader, value = product, operand
    if transpose is not None and transpose.inputs[0] is not None and operand.only_user is product:
        reader, value = transpose, transpose.inputs[0]
    while value.only_user is reader and value.producer is not None and value.producer.op in SAME_ORDER:
        reader, source = value.producer, value.producer.inputs[0]
        if source is None or reader.graph is not product.graph:
            return
        value = source
        yield value


@register
class BatchProducts(RewritePass):
    """Reshape(MatMul(Reshape(a), Reshape(b))) = MatMul(a, b), where the Reshapes merge the batch dims, and take them
    apart.

    Applies when: all dims but those in front are the same in a, b and the result, but for some of one element; the
    Reshapes are there for the product alone. Exporters of Einsum and of bmm write attention like that.
    """

    info = PassInfo("batch-products", opt_level=2, after=("shape-arithmetic",), ops=("MatMul",))
    rules = (product_of_batches,)
