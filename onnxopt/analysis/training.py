"""Which nodes are, or may be, in training: they update statistics or draw at random."""

from __future__ import annotations

from onnxopt.graph.node import Node


def may_train(node: Node) -> bool:
    """Is it a BatchNormalization or Dropout that is not known to be in inference? Opsets say so in their own ways."""
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
