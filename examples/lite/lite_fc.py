"""Multiply and add become FC, an operator of the accelerator's own (Paddle Lite's `lite_fc_fuse_pass`)."""

from onnxopt import PassInfo, RewritePass, const, declare_domain, declare_reference, op, register, rewrite, var

declare_domain("lite", 1, ["FC"])
declare_reference("""
    <domain: "lite", opset_import: ["" : 17]> FC <in_num_col_dims: int = 1> (x, w, b) => (y)
    {
      rows = Flatten <axis: int = @in_num_col_dims> (x)
      product = MatMul (rows, w)
      sum = Add (product, b)
      outer = Shape <start: int = 0, end: int = @in_num_col_dims> (x)
      columns = Shape (b)
      sizes = Concat <axis: int = 0> (outer, columns)
      y = Reshape (sum, sizes)
    }
""")


@rewrite(op.Add(op.MatMul(var("x"), const("w"), name="mul"), const("b")))  # the pattern
def mul_add_as_fc(m, x, w, b):
    """x W + b = FC(x, W, b)."""
    rank = m.rank(x)
    m.require(w.ndim == 2 and w.dtype == "float32", "the weight is no float matrix")
    m.require(b.shape == (w.shape[1],), "the bias is not one for each column")
    m.require(rank is not None and rank >= 2, "the rank of the input is unknown")
    return m.op.FC(x, m.value("w"), m.value("b"), domain="lite", in_num_col_dims=rank - 1)  # the fused operator


@register
class LiteFCFuse(RewritePass):
    """Multiply and add become one FC of the domain `lite`.

    Applies when: the weight is a constant float matrix and the bias a constant vector.
    """

    info = PassInfo("lite-fc-fuse", opt_level=1, before=("gemm-fusion",))
    rules = (mul_add_as_fc,)
