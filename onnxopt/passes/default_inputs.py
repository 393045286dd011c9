"""Inputs that say what their absence says."""

from __future__ import annotations

from typing import Final

from onnxopt.graph import Graph, Value
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register

_RECURRENT: Final = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
_HANDING_ON: Final = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)


@register
class DefaultInputs(GraphPass):
    """The initial state of a recurrent network is left out where it is zero, whatever its size.

    Applies when: it is a constant, or a fill of a computed shape, maybe cut or reshaped, of zeros.
    """

    info = PassInfo("default-inputs", opt_level=1)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for op, positions in _RECURRENT.items():
            for node in graph.by_op.get(op, ()):
                for i in positions:
                    value = node.input(i)
                    if value is None or not _is_zero(value):
                        continue
                    if ctx.spend("zero_state", at=node):
                        node.set_input(i, None)


def _is_zero(value: Value | None) -> bool:
    """Is every element +0? Follows operators that hand elements on."""
    for _ in range(16):
        if value is None:
            return False
        if value.constant:
            array = value.array
            return array.dtype.kind in "fiu" and not array.tobytes().strip(b"\0")
        node = value.producer
        if node is None or node.has_references:
            return False
        if node.op == "ConstantOfShape":
            fill = node.attr("value")
            return fill is None or not fill.tobytes().strip(b"\0")
        if node.op not in _HANDING_ON:
            return False
        value = node.inputs[0]
    return False
