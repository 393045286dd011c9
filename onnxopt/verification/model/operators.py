"""Properties of the standard's operators, in a single table, as known to the verifier.

Independent of the optimizer's table: the verifier must not share its mistakes.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

STANDARD: Final = ("", "ai.onnx")

# Roles of operands. An operand missing in the table is data.
DATA: Final = "data"
INDEX: Final = "index"  # indexes the first operand
LENGTH: Final = "length"  # number of positions: at most the size, not the size minus 1
END: Final = "end"  # start or end of a part of the first operand: an index that decides sizes of the result
SIZE: Final = "size"  # sizes, axes or steps that decide sizes of the result
SETTING: Final = "setting"  # a small number without influence on sizes
BOUND: Final = "bound"  # a breakpoint for the data

# operators | operands | traits | range of the results
#
# Elements:  moves (the result's elements are some of the data's), whole (all elements of the first operand, each once),
#            joined (from several operands), picks (elements of the first operand, by blocks or windows), bends (moves,
#            except beyond a bound or between integers), within (no result lies beyond the elements of the first
#            operand), affine (adds, scales), product (sums of products with a weight), commutes (bit for bit), signed
#            (nonnegative operands give nonnegative results), exact (never rounds; implied by moves, bends, forgets and
#            measures), computes (takes any integers), steady (large floats test as much as small ones), forgets (the
#            result is independent of magnitudes), close (computed within few roundings), retypes,
#            fills (computed from sizes).
# Shapes:    like (shape of the first operand), broadcast (of all operands), measures (numbers of a shape), open
#            (elements of the data decide sizes), target (an operand is a shape), window (slides over axes), global
#            (over all of them), sized (float operands after the first decide sizes, or fill).
# Decisions: compares, rounds, jumps (at a threshold, or at ties), others (non-floats from floats), steps (stepped
#            floats), mutual (operands are each other's bounds), ranks (positions of extreme elements), turns (negates),
#            words (compares strings), rare (settings matter for rare numbers: infinities, repeated indices, zeros).
# Hiding:    mutes (negative numbers vanish), flat (numbers beyond a bound become equal), levels (numbers on one side of
#            a bound become equal), cuts (only large numbers change), drops (some numbers have no effect), pools (to a
#            single position), matrix, recurrent, normalizes.
# Running:   bodies, control (bodies with inputs defined by the standard), draws (random numbers), drawing (depending on
#            elements of operands, not only on shapes).
_ROLES: Final = """
Identity | | moves whole like
Cast | | moves whole like steps retypes close
CastLike | | moves whole like retypes close
Flatten Transpose | | moves whole
Dropout | data setting setting | moves whole like draws drawing
Reshape | data size | moves whole target
Squeeze Unsqueeze | data size | moves whole
Slice | data end end size size | moves
Split Tile | data size | moves
Expand | data size | moves target
Pad | data size data size | moves sized
Gather GatherElements GatherND | data index | moves
Concat | | moves joined
Where | | moves joined broadcast drops

Min Max | | bends joined broadcast mutual cuts flat levels
Clip | data bound bound | bends like cuts flat levels
Relu | | bends like mutes flat levels | 0..
Abs | | bends like close | 0..
Round Floor Ceil | | bends like rounds jumps steps | integer

Add Mul | | affine broadcast commutes close
Sub Div | | affine broadcast close
Neg | | affine like exact turns close
Sum Mean | | computes steady broadcast
Mod | | computes broadcast mutual jumps steps
Pow BitwiseAnd BitwiseOr BitwiseXor | | computes broadcast
BitShift | data setting | computes broadcast exact
Sign | | computes like jumps steps levels exact | -1..1 integer
Sqrt | | computes like close | 0.. nan
BitwiseNot | | computes like
MatMul Gemm | | computes steady matrix product signed
Einsum | | computes
OneHot | data size | computes exact sized rare
ScatterElements ScatterND Scatter | data index | computes like exact rare
TopK | data size | computes jumps exact within ranks
CumSum | data setting | computes like signed
Trilu | data setting | computes like exact
Unique | | computes jumps open exact within
Compress | | computes open exact within
ReverseSequence | data length | computes like exact within
DepthToSpace | | computes exact within picks
SpaceToDepth | | computes window exact within picks
TfIdfVectorizer | | computes words | 0..
ReduceSum | data size | computes steady signed
ReduceMean | data size | computes steady pools within
ReduceMax | data size | computes drops pools exact within
ReduceMin | data size | computes drops exact within
ReduceProd | data size | computes signed
ReduceL1 ReduceL2 ReduceSumSquare | data size | computes | 0..

Shape Size | | forgets measures | 0.. integer
SequenceLength | | measures open | 0.. integer
Equal | | forgets broadcast commutes mutual compares jumps others levels words | 0..1 integer
Less LessOrEqual Greater GreaterOrEqual | | forgets broadcast mutual compares jumps others levels | 0..1 integer
ArgMax ArgMin | | forgets jumps others ranks | 0.. integer
NonZero | | forgets jumps others open | 0.. integer
IsNaN | | forgets others like | 0..1 integer
IsInf | | forgets others like rare | 0..1 integer
Not | | forgets like turns | 0..1 integer
And Or Xor | | forgets broadcast commutes | 0..1 integer
NonMaxSuppression | data data setting setting bound | computes jumps others open exact | 0.. integer

ConstantOfShape | size | computes exact fills
Range | size size size | computes fills sized
HannWindow HammingWindow BlackmanWindow | size | computes
ReduceLogSum ReduceLogSumExp AffineGrid CenterCropPad | data size | computes
MelWeightMatrix | size size size setting setting | computes
Resize | data size size size | sized
Upsample | data size | sized within
MaxUnpool | data setting size | computes
Col2Im DFT | data size size | computes
STFT | data size size size | window computes
RoiAlign | data data index | computes
SplitToSequence SequenceErase | data setting | computes open exact
SequenceInsert | data data setting | computes open exact
SequenceAt | data setting | computes exact
SequenceConstruct ConcatFromSequence | | exact
Optional OptionalGetElement OptionalHasElement | | open exact | nan
StringNormalizer StringSplit | | words open

Conv ConvTranspose | | window product
ConvInteger QLinearConv AveragePool LpPool | | window
FusedConv | | window open
MaxPool | | window drops exact within picks
GlobalAveragePool | | global window pools within
GlobalMaxPool | | global window pools drops exact within
GlobalLpPool | | global window
LSTM GRU RNN | data data data data length | recurrent
InstanceNormalization LayerNormalization GroupNormalization RMSNormalization | | like normalizes
Attention LinearAttention RotaryEmbedding TensorScatter SwiGLU BitCast Det | |
DeformConv CausalConvWithState MaxRoiPool GridSample MatMulInteger QLinearMatMul StringConcat RegexFullMatch | |
QuantizeLinear | | like jumps steps cuts exact rare | integer
DynamicQuantizeLinear | | like jumps steps | 0..255 integer
Softmax | | like close | 0..1
Hardmax | | like jumps steps exact | 0..1 integer
LogSoftmax | | like | ..0
NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss | data index |

LeakyRelu Elu Celu Selu Gelu Mish Swish PRelu Atan Asinh Sinh | | like
BatchNormalization LRN LpNormalization MeanVarianceNormalization DequantizeLinear | | like
HardSwish | | like cuts flat levels
HardSigmoid | | like cuts flat levels close | 0..1
ThresholdedRelu | | like cuts mutes flat levels
Shrink | | like cuts levels
Sigmoid | | like close | 0..1
Tanh Erf Softsign Sin Cos | | like close | -1..1
Softplus Exp | | like close | 0..
Cosh | | like | 1..
Log Reciprocal Tan Asin Acos Acosh Atanh | | like | nan
CumProd | data setting | like
EyeLike | | exact | 0..1 integer

Bernoulli | | draws drawing | 0..1 integer
Multinomial | | draws drawing open | 0.. integer
RandomNormal RandomNormalLike RandomUniform RandomUniformLike | | draws open
If Loop Scan SequenceMap | | bodies open control
BeamSearch GreedySearch Sampling WhisperBeamSearch | | bodies open
TreeEnsembleClassifier TreeEnsembleRegressor TreeEnsemble LinearClassifier SVMClassifier | | jumps open
"""


class Operator(NamedTuple):
    """A row of the table."""

    roles: tuple[str, ...]
    traits: frozenset[str]
    low: float = -math.inf  # least number made
    high: float = math.inf  # largest number made
    integer: bool = False  # all numbers made are integers
    nan: bool = False  # may make NaN from numbers

    def role(self, k: int) -> str:
        """Return the role of operand `k`."""
        return self.roles[k] if k < len(self.roles) else DATA


def _rows() -> dict[str, Operator]:
    found: dict[str, Operator] = {}
    for line in filter(None, _ROLES.splitlines()):
        names, roles, traits, *range_ = (cell.split() for cell in line.split("|"))
        words = range_[0] if range_ else []
        low, _, high = next((w for w in words if ".." in w), "..").partition("..")
        ends = float(low or -math.inf), float(high or math.inf)
        row = Operator(tuple(roles), frozenset(traits), *ends, "integer" in words, "nan" in words)
        found.update(dict.fromkeys(names, row))
    return found


OPERATORS: Final = _rows()
_OPAQUE: Final = Operator((), frozenset(("open",)), nan=True)


def having(*traits: str) -> frozenset[str]:
    """Return the operators with any of the traits."""
    return frozenset(name for name, row in OPERATORS.items() if not row.traits.isdisjoint(traits))


def operator(kind: str, domain: str = "") -> Operator:
    """Return the row of an operator; a row of an unknown operator if missing."""
    return OPERATORS.get(kind, _OPAQUE) if domain in STANDARD else _OPAQUE


def operands(*roles: str) -> dict[str, tuple[int, ...]]:
    """Return {operator: indices of operands with any of the roles}."""
    every = ((name, tuple(k for k, role in enumerate(row.roles) if role in roles)) for name, row in OPERATORS.items())
    return {name: found for name, found in every if found}


# (operator, operand): axis of the first operand that an index or length refers to, and its attribute.
AXIS: Final[dict[tuple[str, int], tuple[int, str]]] = {
    ("Gather", 1): (0, "axis"),
    ("GatherElements", 1): (0, "axis"),
    ("ScatterElements", 1): (0, "axis"),
    ("OneHot", 0): (0, ""),  # of the result, as long as the second operand says
    ("NegativeLogLikelihoodLoss", 1): (1, ""),
    ("SoftmaxCrossEntropyLoss", 1): (1, ""),
    ("ReverseSequence", 1): (0, "time_axis"),
    ("RoiAlign", 2): (0, ""),
    **{(kind, 4): (0, "") for kind in ("LSTM", "GRU", "RNN")},
}
# Operand of the weight, axis of the data, and axis of the weight of equal size (times the groups).
WEIGHTS: Final[dict[str, tuple[int, int, int]]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "FusedConv"), (1, 1, 1)),
    "QLinearConv": (3, 1, 1),
    "ConvTranspose": (1, 1, 0),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), (1, 1, 0)),
    **dict.fromkeys(("MatMul", "MatMulInteger"), (1, -1, -2)),
    "Gemm": (1, 1, 0),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2, 2)),
}

WITH_BODIES: Final = having("bodies")
COMPARING: Final = having("compares")
MUTUAL: Final = having("mutual")
HANDED_ON: Final = having("moves", "bends")
AFFINE: Final = having("affine")
FORGETTING: Final = having("forgets")
STEADY: Final = (HANDED_ON - having("rounds")) | AFFINE | FORGETTING | having("steady")
CUTTING: Final = having("cuts")
MUTING: Final = having("mutes")
RARE: Final = having("rare")
LEVELLING: Final = having("levels")
DROPPING: Final = MUTING | CUTTING | having("drops")
MATRICES: Final = having("matrix")
GIVE_OTHERS: Final = having("others")
MEASURING: Final = having("measures")
WINDOWS: Final = having("window")
WINDOWED: Final = WINDOWS - having("global") - {"SpaceToDepth", "STFT"}  # with kernels, strides and pads
EXACT: Final = HANDED_ON | FORGETTING | MEASURING | having("exact")
SIZED: Final = having("sized")
# Kinds of uses of integers: see `inputs.uses`.
_LIMITED: Final = {INDEX: INDEX, LENGTH: INDEX, END: INDEX, SIZE: SIZE, SETTING: SIZE}
SINKS: Final[dict[str, dict[int, str]]] = {
    name: {k: _LIMITED[row.roles[k]] for k in found}
    for name, found in operands(*_LIMITED).items()
    for row in [OPERATORS[name]]
}
