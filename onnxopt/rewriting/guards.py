"""Guards that rules of several passes share."""

from __future__ import annotations

from onnxopt.graph.value import Value
from onnxopt.protos import Array
from onnxopt.rewriting.match import Match


def quantized(m: Match, x: Value) -> bool:
    """Is the match between DequantizeLinear and QuantizeLinear? Runtimes look for exactly that structure."""
    if x.producer is not None and x.producer.op == "DequantizeLinear":
        return True
    return any(user.op == "QuantizeLinear" for v in m.anchor.outputs if v is not None for user in v.users)


def widens(m: Match, x: Value, c: Value) -> bool:
    """May broadcasting with the constant `c` give more dims, or larger ones, than `x` has?"""
    dims = c.constant_type()[1]
    if not dims:
        return False
    shape = m.shape(x)
    if shape is None or len(shape) < len(dims):
        return True
    return any(d not in (1, n) for d, n in zip(dims, shape[len(shape) - len(dims) :]))


def ends_formula(x: Value, factor: Array) -> bool:
    """Does `x` times `factor` end a normalization or a Gelu that is written out?

    Runtimes find these by their formulas and run each as one operator: a factor that went on into the weights of the
    next product would leave one node fewer in the model and several more in the runtime.
    """
    return _normalized(x) or (factor.size == 1 and factor.item() == 0.5 and _gated(x))


def _normalized(x: Value) -> bool:
    """Is it y / sqrt(…) or y (1 / sqrt(…)), the end of a LayerNormalization or RMSNormalization but for its scale?"""
    node = x.producer
    if node is not None and node.op == "Mul":
        inverse = (v.producer for v in node.inputs if v is not None)
        return any(n is not None and n.op in ("Div", "Reciprocal") and _made_by(n.inputs[-1], "Sqrt") for n in inverse)
    return node is not None and node.op == "Div" and _made_by(node.inputs[1], "Sqrt")


def _gated(x: Value) -> bool:
    """Is it y (1 + erf(…)) or y (1 + tanh(…)), twice a Gelu?"""
    node = x.producer
    gates = node.inputs if node is not None and node.op == "Mul" else ()
    sums = (v.producer for v in gates if v is not None)
    return any(
        n is not None and n.op == "Add" and any(_made_by(v, f) for v in n.inputs for f in ("Erf", "Tanh")) for n in sums
    )


def _made_by(value: Value | None, op: str) -> bool:
    return value is not None and value.producer is not None and value.producer.op == op
