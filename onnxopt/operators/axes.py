"""How axes run through each operator of the default domain, a line for each. Tests check the table by execution.

  operands   operands whose axes run with the result's, aligned at the last axis: a number, or `all`
  along      how the axes are named along which elements depend on one another:
    -          none: each element of the result is computed from the elements at the same place
    axis       by attribute; a trailing N means: up to opset N all axes from there on are joined
    axes:i     by the attribute `axes`, or the constant operand i
    axis:i     by the constant operand i
    pads       the padded axes, by position in the list
    scale      by the attribute `axis`, if the scale has an element for each index along the axis
    perm       none; the result has the operand's axes in this order
    last:n     the last n axes
    from:axis  the attribute names the first of the last axes

Operators whose form (`table.py`) determines the axes have no line: unary, bounded, broadcast and reduce.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from onnxopt.operators.table import FORMS

_AXIS_MAPS: Final = """
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
    """A line of the table. everything: the axes of all operands run with the result's, else the first operand's.

    named, operand: the parts of `along` before and behind the colon.
    """

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
for _line in filter(None, _AXIS_MAPS.splitlines()):
    _op, *_words = _line.split()
    AXES[_op] = _rule(*_words)
