"""Matrix products and additive terms become a Gemm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Final

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.linear import added_by_gemm
from onnxopt.analysis.shapes.sizes import known_order
from onnxopt.graph import Graph, Model, Shape, Value
from onnxopt.graph.node import present, producer, sole_reader
from onnxopt.pipeline import PassContext, PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, const, one_of, op, quantized, rewrite, var
from onnxopt.rewriting.index_maps import constant_target, elements

_RUNTIMES_OWN: Final = ("gemm_input_shape", "gemm_output_shape")
_CAST: Final = r"InsertedPrecisionFreeCast_gemm_(in|out)put_reshape_arg(_token_\d+)?"


@rewrite(op.Add(op.MatMul(var("x"), var("w"), name="product"), var("b")))
def fold_matmul_add(m: Match, x: Value, w: Value, b: Value) -> Value:
    """x W + b = Gemm(x, W, b) for matrices."""
    m.require(m.rank(x) == 2 and m.rank(w) == 2, "not matrices")
    m.require(m.dtype(x) in FLOATS, "not a floating point product")
    m.require(not quantized(m, x) and not quantized(m, w), "the product is quantized")
    rows, columns = m.dims(x)[0], m.dims(w)[1]
    m.require(m.rank(b) in (0, 1, 2), "the rank of what is added is unknown or higher")
    dims = m.dims(b)
    padded = (1,) * (2 - len(dims)) + dims
    m.require(padded[0] in (1, rows) and padded[1] in (1, columns) and None not in padded, "it may widen the product")
    m.require(m.opset >= 7 or dims == (rows, columns), "before opset 7 a Gemm has to be told to broadcast")
    return m.op.Gemm(x, w, b)


def with_bias(x: str, w: str, b: str, name: str) -> Call:
    return op.Gemm(var(x), var(w), const(b).opt(), name=name)


@rewrite(op.Add(with_bias("x", "w", "b", "gemm"), with_bias("y", "v", "c", "other")))
def sum_of_products(m: Match, x: Value, w: Value, b: Array | None, y: Value, v: Value, c: Array | None) -> Value:
    """Gemm(x, W, b) + Gemm(y, V, c) = Gemm(x, W, Gemm(y, V, b + c))."""
    m.require(m.gemm is not m.other, "one product is added to itself, and would be computed twice")
    m.require(types.same_shape(m.gemm.output, m.other.output), "not provably the same shape")
    m.require(m.dtype(x) in FLOATS, "not a floating point product")
    m.require(not any(quantized(m, value) for value in (x, w, y, v)), "a product is quantized")
    terms = [(term, node) for term, node in ((b, m.gemm), (c, m.other)) if term is not None]
    m.require(all(term.size in (1, *term.shape[-1:]) for term, _ in terms), "the bias differs from row to row")
    lengths = {term.size for term, _ in terms} - {1}
    m.require(len(lengths) < 2 and 0 not in lengths, "the biases are not as long as each other")
    total = sum(added_by_gemm(node, term) for term, node in terms)
    bias = m.const(total, like=m.value("w"), hint=m.value("c" if b is None else "b").name) if terms else None
    return m.op.Gemm(x, w, m.op.Gemm(y, v, bias, like=m.other, beta=1.0), like=m.gemm, beta=1.0)


@rewrite(op.MatMul(var("x"), op.Transpose(var("w"), perm=[1, 0], shared=True), name="product"))
def matmul_of_transpose(m: Match, x: Value, w: Value) -> Value:
    """x Wᵀ = Gemm(x, W, transB) for matrices."""
    m.require(m.rank(x) == 2, "not matrices")
    m.require(m.dtype(x) in FLOATS, "not a floating point product")
    m.require(m.opset >= 11, "a Gemm needs a bias before opset 11")
    m.require(not quantized(m, x) and not quantized(m, w), "the product is quantized")
    reader = m.product.output.only_user
    m.require(reader is None or reader.op != "Add", "what is added may be the bias")
    return m.op.Gemm(x, w, transB=1)


@rewrite(op.Gemm(op.Transpose(var("x"), perm=[1, 0]), var("w"), var("b").opt(), name="gemm"))
def transpose_of_first(m: Match, x: Value, w: Value, b: Value | None) -> Value:
    """Gemm(xᵀ, W) = Gemm(x, W, transA)."""
    return m.op.Gemm(x, w, b, like=m.gemm, transA=int(not m.gemm.attr("transA")))


@rewrite(op.Gemm(var("x"), op.Transpose(var("w"), perm=[1, 0], shared=True), var("b").opt(), name="gemm"))
def transpose_of_second(m: Match, x: Value, w: Value, b: Value | None) -> Value:
    """Gemm(x, Wᵀ) = Gemm(x, W, transB)."""
    return m.op.Gemm(x, w, b, like=m.gemm, transB=int(not m.gemm.attr("transB")))


def _merges_otherwise(m: Match, x: Value, target: Value, is_wide: bool) -> bool:
    """Return whether other rules leave fewer Reshapes or Transposes."""
    # Two Reshapes merge; `flatten-rows` makes them with constant targets, and relies on the merge.
    if producer(x, "Reshape") is not None and (target.constant or x.only_user is not None):
        return True
    # A Reshape would remain, with no less to compute, or both Transposes.
    return is_wide and (target.constant or _is_turned(m, x))


@rewrite(
    op.Reshape(
        one_of("Gemm", "MatMul")(
            one_of("Flatten", "Reshape")(var("x"), const("rows").opt(), name="inner"),
            const("w"),
            var("b").opt(),
            name="product",
        ),
        var("target"),
        name="outer",
    )
)
def product_of_rows(m: Match, x: Value, rows: Array | None, w: Array, b: Value | None, target: Value) -> Value:
    """Reshape(Gemm(Reshape(x, rows), W, b), leading dims of x) = x W + b; likewise Flatten(x).

    Saves a node, as onnxruntime merges leading dims by itself; if x is not wide enough yet, saves computing a target.
    For several products in a chain nodes would be added: see `flatten-rows`.
    """
    dims, result = m.dims(x), m.dims(m.outer.output)
    made = m.dims(m.inner.output) if rows is None else tuple(rows.tolist())
    m.require(len(made) == w.ndim == 2, "not rows of a matrix")
    m.require(m.opset >= 7, "operands do not broadcast before opset 7")
    m.require(len(dims) >= len(result) > 2, "the dims are unknown, or few")
    columns, n, is_wide = w.shape, len(result) - 1, len(dims) > len(result)
    if m.product.attr("transB"):
        columns = columns[::-1]
    if _merges_otherwise(m, x, target, is_wide):
        m.skip()
    last = prod(d if isinstance(d, int) else 0 for d in dims[n:])
    m.require((last, result[-1]) == columns and made[1] in (-1, last), "the rows are others")
    m.require(dims[:n] == result[:n] and not {None, 0} & {*dims[:n]}, "not provably the leading dims")
    _require_plain(m, b, columns[1])
    m.require(not quantized(m, x), "the product is quantized")
    weight = _columns_last(m, w)
    if is_wide:
        x = m.op.Reshape(x, m.ints([0] * n + [last]))
    product: Value = m.op.MatMul(x, weight)
    if b is None:
        return product
    total: Value = m.op.Add(product, b)
    return total


@rewrite(
    op.Transpose(
        op.Reshape(
            op.Gemm(op.Reshape(op.Transpose(var("x"), name="turn"), ..., name="merge"), ..., name="gemm"),
            var("target"),
            name="split",
        ),
        perm=[1, 0, 2],
    )
)
def rows_in_order(m: Match, x: Value, target: Value) -> Value:
    """Gemm(x[a b, c])ᵀ = Gemm(xᵀ[b a, c]), where ᵀ exchanges a and b: the rows are multiplied one by one.

    Reshapes merge a and b to rows, and split them. PyTorch's MultiheadAttention puts positions before batches.
    """
    dims, rows = m.dims(m.turn.output), m.dims(m.merge.output)
    perm = m.known(known_order(m.turn, m.rank(x)), "no order of the axes that there are")
    width = elements(dims[2:]) if len(dims) > 2 else None
    m.require(isinstance(width, int) and rows[1:] == (width,) != (0,), "not all axes behind the rows are merged")
    parts, made = _listed_sizes(m, target)
    m.require(made == (*dims[:2], *m.dims(m.gemm.output)[1:]) and None not in made, "the rows are split otherwise")
    bias = m.gemm.input(2)
    m.require(bias is None or m.rank(bias) == 1 or m.dims(bias)[:1] == (1,), "the bias may differ from row to row")
    m.require(not m.gemm.attr("transA", 0), "the first matrix is transposed")
    turned = m.op.Transpose(x, perm=[perm[1], perm[0], *perm[2:]])
    merged = m.op.Reshape(turned, m.ints([-1, width]))
    product = m.op.Gemm(merged, *m.gemm.inputs[1:], like=m.gemm)
    sizes = constant_target(rows, (made[1], made[0], made[2]))
    if sizes is not None:
        return m.op.Reshape(product, m.ints(sizes))
    m.require(m.opset >= 14, "a size of 0 copies a dim before opset 14")
    a, b, d = parts
    return m.op.Reshape(product, m.op.Concat(b, a, d, axis=0), like=m.split, allowzero=1)


def _is_turned(m: Match, x: Value) -> bool:
    """Whether the product is between two Transposes, of which `rows_in_order` needs one."""
    behind = sole_reader(m.outer.output, "Transpose")
    return producer(x, "Transpose") is not None and behind is not None and behind.attr("perm") == [1, 0, 2]


def _listed_sizes(m: Match, target: Value) -> tuple[Sequence[Value], Shape]:
    """Return the three sizes that a computed target lists one by one, and the dims of the result.

    Returns no sizes for a constant target, and no dims for another computed one.
    """
    from onnxopt.analysis.shapes.index_tensors import dim_of  # few models split rows

    concat = producer(target, "Concat")
    parts = present(concat.inputs) if concat is not None else []
    parts = parts if [types.length_of(v, 0) for v in parts] == [1, 1, 1] else []
    listed = tuple(map(dim_of, parts))
    return parts, m.dims(m.split.output) if target.constant else listed


def _columns_last(m: Match, w: Array) -> Value:
    """Return the weights of the product, transposed as the product does."""
    weight = m.value("w")
    if not m.product.attr("transB"):
        return weight
    m.require(weight.only_user is m.product, "the weights would be stored twice")
    return m.const(w.T, like=weight)


def _require_plain(m: Match, b: Value | None, columns: int) -> None:
    """Decline unless the product is x W + b for each row x, with one b for all rows."""
    plain = m.product.op == "MatMul"
    m.require(plain or not m.product.attr("transA"), "the first matrix is transposed")
    m.require(plain or m.product.attr("alpha") == m.product.attr("beta") == 1, "alpha or beta is not 1")
    m.require(b is None or m.rank(b) == 1 or m.shape(b) == (1, columns), "the bias differs from row to row")


@register
class GemmFusion(RewritePass):
    """x W + b = Gemm(x, W, b), Gemm(x, W, b) + Gemm(y, V, c) = Gemm(x, W, Gemm(y, V, b + c)); a Transpose of a matrix
    before a Gemm becomes its attribute. A Gemm between a Reshape to rows and a Reshape back becomes MatMul and Add, or
    reads the rows in the order in which a Transpose behind wants them.

    Applies when: both operands are matrices, and b broadcasts to the product; two added products have the same shape.
    Not done: integers, quantized products, products with other readers. `flatten-rows` makes matrices of higher ranks.
    On loading, onnxruntime fuses a remaining MatMul and Add, and gives its shapes, and Casts around float16, names
    without checking for collisions. Values with these names, in models saved by onnxruntime, are renamed; otherwise the
    result could not be loaded.
    """

    info = PassInfo("gemm-fusion", opt_level=2, ops=("MatMul", "Gemm"))
    rules = (
        fold_matmul_add,
        sum_of_products,
        matmul_of_transpose,
        transpose_of_first,
        transpose_of_second,
        rows_in_order,
        product_of_rows,
    )

    def run(self, model: Model, ctx: PassContext) -> None:
        super().run(model, ctx)
        for scope in model.scopes():
            sums = (v for add in scope.by_op.get("Add", ()) for v in present(add.inputs))
            products = [v for v in sums if producer(v, "MatMul") is not None]
            if products:
                _free_constants(scope, ctx)
                _free_casts(scope, products, ctx)


def _free_constants(scope: Graph, ctx: PassContext) -> None:
    """Rename the constants of a scope whose names onnxruntime would give to values of its own."""
    for value in [v for name, v in scope.initializers.items() if name.startswith(_RUNTIMES_OWN) and v.constant]:
        if not value.is_output and ctx.spend("name_of_runtime", at=value):
            value.replace_all_uses_with(scope.constant(value.array, value.name.removeprefix("gemm_")))
            scope.remove_initializer(value)


def _free_casts(scope: Graph, products: Sequence[Value], ctx: PassContext) -> None:
    """Rename the values named like the Casts that onnxruntime inserts around products of float16."""
    half = any(types.dtype(product) == TensorProto.FLOAT16 for product in products)
    made = (v for node in (scope if half else ()) for v in present(node.outputs) if v.name.startswith("Inserted"))
    for value in [v for v in made if re.fullmatch(_CAST, v.name)]:
        if not value.is_output and ctx.spend("name_of_runtime", at=value):
            scope.rename(value, "_value")
