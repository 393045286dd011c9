"""A quantizer and its inverse behind every MatMul."""

from dataclasses import dataclass

import numpy as np

from onnxopt import GraphInterpreter, PassInfo, option, register


@register
@dataclass(frozen=True)
class QdqMatMul(GraphInterpreter):
    """Quantizes the result of every MatMul to int8 and back. Keeps: results quantized already."""

    info = PassInfo("qdq-matmul", opt_level=3, tolerance=0.05)
    step: float = option(0.05, "the scale: the value of one integer step")

    def call_operator(self, node, args):
        result = super().call_operator(node, args)
        if node.op != "MatMul" or any(user.op == "QuantizeLinear" for user in node.output.users):
            return result
        scale, zero = self.match.const(np.float32(self.step)), self.match.const(np.int8(0))
        return self.op.DequantizeLinear(self.op.QuantizeLinear(result, scale, zero), scale, zero)
