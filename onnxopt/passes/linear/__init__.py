"""Conv, MatMul and Gemm: neighbouring operators are folded into weights, and several products are merged."""
