"""x ** 3 as x * x * x, for accelerators that have no Pow."""

from dataclasses import dataclass

from onnxopt import PassInfo, RewritePass, const, op, option, register, rewrite, var


@rewrite(op.Pow(var("x"), const("n")))
def power_as_product(m, x, n):
    """x ** n = x * x * …, n times."""
    m.require(n.size == 1 and n.ndim <= (m.rank(x) or 0), "the exponent may widen the result")
    m.require(n.item() in range(2, m.options.largest + 1), "not a small whole exponent")
    product = x
    for _ in range(int(n.item()) - 1):
        product = m.op.Mul(product, x)
    return product


@register
@dataclass(frozen=True)
class PowersAsProducts(RewritePass):
    """Small whole powers become products, which round once for each factor."""

    info = PassInfo("powers-as-products", opt_level=3, after=("constant-folding",))
    largest: int = option(3, "the largest exponent to write out")
    rules = (power_as_product,)
