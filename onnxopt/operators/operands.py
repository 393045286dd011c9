"""Axes and element types of operands: of operators in general, of an Einsum, and of onnxruntime's own operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from onnxopt.operators import FORMS

# How axes run through each operator of the default domain. Tests check the table by execution.
#
#   operands   operands whose axes run with the result's, aligned at the last axis: a number, or `all`
#   along      how the axes are named along which elements depend on one another:
#     -          none: each element of the result is computed from the elements at the same place
#     axis       by attribute; a trailing N means: up to opset N all axes from there on are joined
#     axes:i     by the attribute `axes`, or the constant operand i
#     axis:i     by the constant operand i
#     pads       the padded axes, by position in the list
#     scale      by the attribute `axis`, if the scale has an element for each index along the axis
#     perm       none; the result has the operand's axes in this order
#     last:n     the last n axes
#     from:axis  the attribute names the first of the last axes
#
# Operators whose form (`operators/__init__.py`) determines the axes have no line: unary, bounded, broadcast and reduce.

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


_LINES_BY_FORM: Final = {"unary": "0 -", "bounded": "0 -", "broadcast": "all -", "reduce": "0 axes:1"}

AXES: Final[dict[str, AxisRule]] = {
    **{op: _rule(*_LINES_BY_FORM[form].split()) for op, form in FORMS.items() if form in _LINES_BY_FORM},
    **{op: _rule(*words) for op, *words in map(str.split, _AXIS_MAPS.strip().splitlines())},
}


Letters: TypeAlias = tuple[str, ...]
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Equation(NamedTuple):
    """The equation `bij,bjk->bik`: `terms` and `result` have a letter for each axis of an operand and of the result.

    The axes of an ellipsis are `.1`, `.2`, …, counted from the last.
    """

    terms: tuple[Letters, ...]
    result: Letters

    @property
    def has_dots(self) -> bool:
        """Return whether an operand has an ellipsis with axes."""
        return any(letter[0] == "." for term in self.terms for letter in term)

    @property
    def has_diagonal(self) -> bool:
        """Return whether a term has a letter twice."""
        return any(len(set(term)) < len(term) for term in self.terms)


def read_equation(text: str, ranks: Sequence[int | None]) -> Equation | None:
    """Return the equation of operands of these ranks, or None if the text does not fit the ranks.

    A rank may be unknown, except of a term with an ellipsis.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        return None
    terms = [_letters(part, rank) for part, rank in zip(parts, ranks)]
    found = [term for term in terms if term is not None]
    if len(found) < len(terms):
        return None
    most = max(sum(letter[0] == "." for letter in term) for term in found)
    if not arrow:  # the ellipsis, and letters that occur once, in alphabetical order
        right = "..." + "".join(sorted(c for c in _LETTERS if left.count(c) == 1))
    before, given, behind = right.partition("...")
    result = _letters(right, len(before + behind) + (most if given else 0))
    return Equation(tuple(found), result) if result is not None and len(set(result)) == len(result) else None


def _letters(term: str, rank: int | None) -> Letters | None:
    """Return a letter for each axis of a term, or None if the term does not fit the rank."""
    before, dots, behind = term.partition("...")
    meant = 0 if rank is None else rank - len(before + behind)
    if not _LETTERS.issuperset(before + behind) or meant < 0 or (not dots and meant) or (dots and rank is None):
        return None
    return (*before, *(f".{i}" for i in range(meant, 0, -1)), *behind)


# Element types of onnxruntime's own operators. A test compares the table with the schemas.
#
# Each line lists the type symbols of the operands, then of the results. Operands with equal symbols have equal types.
#
#     T    float32 or a narrower float: all operands and results T of a node are narrow, or none
#     f    always float32
#     -    a type independent of the model's floats
#
# Further letters stand for types of quantized numbers and of scales. A result with two letters has the type of the
# first letter with an operand. `heavy`: dominates the run time, as products and attention do. `half`: has no bfloat16
# kernel.

CONTRIB_DOMAIN: Final = "com.microsoft"

_CONTRIB_TYPES: Final = """
SimplifiedLayerNormalization                T T                             > T f
com.microsoft::Attention              heavy T T T - T T -                   > T T
com.microsoft::BiasAdd                half  T T T                           > T
com.microsoft::BiasGelu                     T T                             > T
com.microsoft::BiasSoftmax            half  T T                             > T
com.microsoft::BiasSplitGelu          half  T T                             > T
com.microsoft::DecoderMaskedMultiHeadAttention heavy half T T T - T T T - - - T > T T T
com.microsoft::EmbedLayerNormalization half - - T T T T T - -               > T - T
com.microsoft::FastGelu                     T T                             > T
com.microsoft::FusedConv        heavy half  T T T T                         > T
com.microsoft::FusedGemm        heavy half  T T T                           > T
com.microsoft::FusedMatMul            heavy T T                             > T
com.microsoft::FusedMatMulActivation  heavy T T                             > T
com.microsoft::GatedRelativePositionBias heavy half T T T T T T -           > T
com.microsoft::GatherBlockQuantized         - - T -                         > T
com.microsoft::Gelu                         T                               > T
com.microsoft::GemmFastGelu           heavy T T T                           > T
com.microsoft::GroupNorm              half  T f f                           > T
com.microsoft::GroupQueryAttention    heavy T T T T T - - T T - T T f f T T - > T T T T
com.microsoft::LongformerAttention heavy half T T T T T T -                 > T
com.microsoft::MatMulBnb4             heavy T - T                           > T
com.microsoft::MatMulNBits            heavy T - T T - T                     > T
com.microsoft::MoE                    heavy T T T T T T T T                 > T
com.microsoft::MultiHeadAttention     heavy T T T T - T T T - -             > T T T
com.microsoft::NhwcConv         heavy half  T T T                           > T
com.microsoft::NhwcFusedConv    heavy half  T T T T                         > T
com.microsoft::PackedAttention  heavy half  T T T - - T                     > T
com.microsoft::PackedMultiHeadAttention heavy half T T T T - - T            > T
com.microsoft::QGemm                        - s - - s - - s q               > qs
com.microsoft::QLinearAdd                   q s q q s q s q                 > q
com.microsoft::QLinearConcat                s q                             > q
com.microsoft::QLinearGlobalAveragePool     q s q s q                       > q
com.microsoft::QLinearLeakyRelu             q s q s q                       > q
com.microsoft::QLinearMul                   q s q q s q s q                 > q
com.microsoft::QLinearSigmoid               q s q s q                       > q
com.microsoft::QLinearSoftmax               q s q s q                       > q
com.microsoft::QuickGelu                    T                               > T
com.microsoft::RelativePositionBias   half  T - -                           > T
com.microsoft::RemovePadding          half  T -                             > T - - -
com.microsoft::RestorePadding         half  T -                             > T
com.microsoft::RotaryEmbedding              T - T T                         > T
com.microsoft::SkipGroupNorm          half  T f f T T                       > T T
com.microsoft::SkipLayerNormalization       T T T T T                       > T f f T
com.microsoft::SkipSimplifiedLayerNormalization T T T T                     > T f f T
com.microsoft::SparseAttention        heavy T T T T T - - - - T T           > T T T
com.microsoft::TransposeMatMul        heavy T T                             > T
com.microsoft::Trilu                        T -                             > T
"""


class Contrib(NamedTuple):
    """Symbols of operands and results. `heavy`: dominates the run time. `types`: narrower floats allowed for T."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    heavy: bool
    types: tuple[str, ...]

    def alike(self, result: int) -> list[int]:
        """Return the indices of operands of which the first present one has the type of a result."""
        symbols = self.outputs[result] if result < len(self.outputs) else ""
        return [i for symbol in symbols for i, given in enumerate(self.inputs) if given == symbol != "-"]


@cache
def contrib_types() -> dict[str, Contrib]:
    """Return the table by qualified operator name."""
    found = {}
    for line in _CONTRIB_TYPES.strip().splitlines():
        given, made = (part.split() for part in line.split(">"))
        name, *words = given
        symbols = [word for word in words if word not in ("heavy", "half")]
        types = ("float16",) if "half" in words else ("float16", "bfloat16")
        found[name] = Contrib(tuple(symbols), tuple(made), "heavy" in words, types)
    return found
