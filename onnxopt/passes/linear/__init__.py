"""Conv, MatMul and Gemm: what is around them goes into their weights, and several are one."""
