"""Purity of nodes: a result that depends on the inputs only may be folded or shared."""

from __future__ import annotations

from typing import Final

from onnxopt.graph.node import Node
from onnxopt.graph.schema import is_deterministic, is_known
from onnxopt.operators import CONTROL_FLOW

# Quantization marks structure for runtimes; containers are no tensors; the rest is handled elsewhere.
_KEPT: Final = CONTROL_FLOW | {"DequantizeLinear", "DynamicQuantizeLinear", "Constant", "Dropout", "Optional"}


def is_computable(node: Node, opset: int) -> bool:
    """Whether a node computes tensors from its inputs only, deterministically. `opset`: of the node's domain."""
    if node.op in _KEPT or node.bodies or not node.inputs:
        return False
    if ("Sequence" in node.op and node.op != "ReverseSequence") or "Optional" in node.op:
        return False
    if not is_deterministic(node.op):
        return False
    if node.op == "Identity" and node.output.is_output:
        return False
    if not is_known(node.op, opset) or node.has_references:
        return False
    # In training mode BatchNormalization uses batch statistics, and its running statistics are state.
    return not node.attr("training_mode", 0) or not any(v is not None and v.is_used for v in node.outputs[1:])


def may_train(node: Node) -> bool:
    """Whether a BatchNormalization or Dropout may be in training mode, declared differently across opsets."""
    if node.op not in ("BatchNormalization", "Dropout"):
        return False
    if node.graph is None or node.has_references:
        return True
    opset = node.graph.opset()
    if opset < 7:
        return not node.attr("is_test", 0)
    if node.op == "Dropout":
        mode = node.input(2)
        return mode is not None and not (mode.constant and not mode.array.any())
    return bool(node.attr("training_mode", 0)) if opset >= 14 else len(node.outputs) > 1
