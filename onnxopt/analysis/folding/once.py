"""Common subexpressions in constant folding: shared weights are permuted, cast and scaled once for all layers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from onnxopt.analysis import kernels
from onnxopt.graph.node import Node
from onnxopt.proto.messages import Array, attribute_bytes


class Once:
    """Cache of kernel results for equal calls on the same values, and of their copies for the model."""

    def __init__(self) -> None:
        self._results: dict[Hashable, list[Array]] = {}
        self._stored: dict[int, tuple[Array, Array]] = {}  # by id of the computed array, which is kept alive

    def evaluate(self, node: Node, inputs: Sequence[Array | None], opset: int) -> list[Array] | None:
        """Return the results of `kernels.evaluate`, cached."""
        if all(v is None or len(v.users) < 2 for v in node.inputs):
            return kernels.evaluate(node, inputs, opset)
        call = node.op, tuple(node.inputs), len(node.outputs), attribute_bytes(node.proto)
        results = self._results.get(call) or kernels.evaluate(node, inputs, opset)
        if results is not None:
            self._results[call] = results
        return results

    def stored(self, computed: Array) -> Array:
        """Return a read-only C-contiguous copy, the same for the same array."""
        if id(computed) not in self._stored:
            array = np.array(computed, order="C")
            array.flags.writeable = False
            self._stored[id(computed)] = computed, array
        return self._stored[id(computed)][1]
