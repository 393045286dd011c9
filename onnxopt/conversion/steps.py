"""New nodes in place of a node."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto

from onnxopt.conversion.known import Known
from onnxopt.proto.messages import make_node


class Steps:
    """A list of new nodes of the standard, each with a single result. Names of results derive from `base`."""

    def __init__(self, known: Known, base: str) -> None:
        self._known, self._base = known, base
        self.nodes: list[NodeProto] = []

    def __call__(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of the result: `name`, or a new name."""
        node = make_node(op, "", "", attributes)
        node.input.extend(inputs)
        node.output.append(name or self._known.fresh(f"{self._base}_{op.lower()}"))
        self.nodes.append(node)
        return str(node.output[0])

    def constant(self, array: Any, dtype: Any = np.int64) -> str:
        return self("Constant", value=np.array(array, dtype))
