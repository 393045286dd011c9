"""Element types of onnxruntime's own operators, one line per operator; a test compares the table with the schemas.

Each line lists the type symbols of the operands, then of the results. Operands with equal symbols have equal types.

    T    float32 or a narrower float: all operands and results T of a node are narrow, or none
    f    always float32
    -    a type independent of the model's floats

Further letters stand for types of quantized numbers and of scales. A result with two letters has the type of the
first letter with an operand. `heavy`: dominates the run time, as products and attention do. `half`: has no bfloat16
kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from onnxopt.startup.record import record

DOMAIN: Final = "com.microsoft"

_TABLE: Final = """
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


@record(frozen=True)
class Contrib:
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
def table() -> dict[str, Contrib]:
    """Return the table by qualified operator name."""
    found = {}
    for line in _TABLE.strip().splitlines():
        given, made = (part.split() for part in line.split(">"))
        name, *words = given
        symbols = [word for word in words if word not in ("heavy", "half")]
        types = ("float16",) if "half" in words else ("float16", "bfloat16")
        found[name] = Contrib(tuple(symbols), tuple(made), "heavy" in words, types)
    return found
