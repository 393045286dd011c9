"""Guards that rules of several passes share."""

from __future__ import annotations

from onnxopt.graph.value import Value
from onnxopt.rewrite.match import Match


def quantized(m: Match, x: Value) -> bool:
    """Is the match between DequantizeLinear and QuantizeLinear? Runtimes look for exactly that structure."""
    if x.producer is not None and x.producer.op == "DequantizeLinear":
        return True
    return any(user.op == "QuantizeLinear" for v in m.anchor.outputs if v is not None for user in v.users)
