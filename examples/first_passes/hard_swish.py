"""HardSwish from the exported form x * HardSigmoid(x) with a slope of 1/6."""

from onnxopt import PassInfo, RewritePass, op, register, rewrite, var


@rewrite(op.Mul(var("x"), op.HardSigmoid(var("x"), alpha=1 / 6, beta=0.5)))
def hard_swish(m, x):
    """x HardSigmoid(x; 1/6, 1/2) = HardSwish(x)."""
    m.require(m.opset >= 14, "HardSwish came with opset 14")
    return m.op.HardSwish(x)


@register
class HardSwish(RewritePass):
    """A product with a HardSigmoid becomes HardSwish."""

    info = PassInfo("hard-swish", opt_level=2)
    rules = (hard_swish,)
