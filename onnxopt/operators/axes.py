"""How axes run through each operator of the default domain, one line an operator. The tests check them by running.

    operands   those whose axes run with the result's, aligned at the last axis: their numbers, or `all`
    along      what names the axes along which elements hang on one another, for all others do not:
        -          no axis: each element of the result is made of the elements at its place
        axis       this attribute; axes joined up to opset N where the line ends in N: all from that axis on
        axes:i     the attribute `axes`, or operand i, a constant
        axis:i     operand i, a constant
        pads       an axis that is padded, by its place in the list
        scale      the attribute `axis`, where the scale has an element for each place along it
        perm       no axis, but the result has the axes of the operand in this order
        last:n     nothing: the last n axes, by their place
        from:axis  the attribute names the first of them, and they are the last ones

Operators whose form (`table.py`) says it have no line: unary, bounded, broadcast and reduce.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from onnxopt.operators.table import FORMS

_TABLE: Final = """
Concat              all    axis
CumProd             0      axis:1
CumSum              0      axis:1
DequantizeLinear    0      scale
Gather              0      axis
GatherElements      all    axis
Hardmax             0      axis 12
LayerNormalization  0      from:axis
LogSoftmax          0      axis 12
LpNormalization     0      axis
MatMul              all    last:2
Pad                 0      pads
QuantizeLinear      0      scale
RMSNormalization    0      from:axis
ScatterElements     all    axis
Slice               0      axes:3
Softmax             0      axis 12
Split               0      axis
TopK                0      axis
Transpose           0      perm
Trilu               0      last:2
"""


class AxisRule(NamedTuple):
    """A line. everything: the axes of all operands run with the result's; else those of the first do. named, operand:
    `along` before and behind the colon."""

    everything: bool
    along: str
    named: str
    operand: str
    joined_up_to: int = 0


def _rule(operands: str, along: str, *joined_up_to: str) -> AxisRule:
    named, _, operand = along.partition(":")
    return AxisRule(operands == "all", along, named, operand, *map(int, joined_up_to))


_BY_FORM: Final = {
    "unary": _rule("0", "-"),
    "bounded": _rule("0", "-"),
    "broadcast": _rule("all", "-"),
    "reduce": _rule("0", "axes:1"),
}

AXES: Final[dict[str, AxisRule]] = {op: _BY_FORM[form] for op, form in FORMS.items() if form in _BY_FORM}
for _line in filter(None, _TABLE.splitlines()):
    _op, *_words = _line.split()
    AXES[_op] = _rule(*_words)
