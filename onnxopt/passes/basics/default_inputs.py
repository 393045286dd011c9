"""Optional inputs equal to their default."""

from __future__ import annotations

from typing import Final

from onnxopt.analysis.broadcasting import distinct
from onnxopt.graph import Graph, Value
from onnxopt.operators import PICKS, RECURRENT
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.element_types import element_kind

_STATES: Final = (5, 6)  # initial states of a recurrent operator
_MAX_EXAMINED: Final = 32  # values examined


@register
class DefaultInputs(GraphPass):
    """Removes initial states of recurrent networks that are zero, for any size.

    Applies when: the state is a constant of zeros, or zeros of a computed shape, perhaps sliced, reshaped or
    concatenated.
    """

    info = PassInfo("default-inputs", opt_level=1, ops=RECURRENT)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for op in RECURRENT:
            for node in graph.by_op.get(op, ()):
                for i in _STATES:
                    value = node.input(i)
                    if value is None or not _is_zero(value):
                        continue
                    if ctx.spend("zero_state", at=node):
                        node.set_input(i, None)


def _is_zero(value: Value) -> bool:
    """Whether every element is +0, followed through operators that move or concatenate elements."""
    asked = [value]
    for value in asked:
        if value.constant:
            array = distinct(value.array)
            if element_kind(array) not in "fiu" or array.tobytes().strip(b"\0") or array.any():  # E8M0 has no zero
                return False
            continue
        node = value.producer
        if node is None or node.has_references or len(asked) > _MAX_EXAMINED:
            return False
        if node.op == "ConstantOfShape":
            fill = node.attr("value")
            if fill is not None and fill.tobytes().strip(b"\0"):
                return False
        elif node.op in ("Cast", "Concat") or node.op in PICKS:
            handed_on = node.inputs if node.op == "Concat" else node.inputs[:1]
            asked += [v for v in handed_on if v is not None and v not in asked]
        else:
            return False
    return True
