"""What each operator of the standard does, as the judge knows it: one table, which all sets of operators come from.

The table is the judge's own. Nothing of it is taken from the optimizer's, whose mistakes the judge would share.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

STANDARD: Final = ("", "ai.onnx")

# What an operand is. An operand that the table does not name is data.
DATA: Final = "data"
INDEX: Final = "index"  # places in the first operand
LENGTH: Final = "length"  # how many of its places: one more than an index may be
END: Final = "end"  # where a part of the first operand begins or ends: an index that decides sizes of the result
SIZE: Final = "size"  # sizes, axes or steps that decide sizes of the result
SETTING: Final = "setting"  # a small number that decides no size
BOUND: Final = "bound"  # a number at which the operator changes what it does with the data

# operators | operands | traits | range of all that it makes
#
# Elements:  moves (those of the result are some of the data's), whole (all of the first operand's, each once), joined
#            (of several operands), bends (moves, but for numbers beyond a bound or between integers), affine (adds,
#            scales), computes (takes any integers), steady (large floats say as much as small ones), forgets (the
#            result says nothing of how large numbers are).
# Shapes:    like (the result has the shape of the first operand), broadcast (of all operands together), measures (makes
#            numbers of a shape), open (elements of the data decide sizes), target (an operand is a shape), window (goes
#            over axes), global (over all of them), resizes (axes).
# Decisions: compares, rounds, jumps (at a threshold, or where numbers tie), others (makes no floats of floats), steps
#            (makes steps of floats), mutual (operands are each other's bounds), words (compares strings).
# Hiding:    mutes (nothing is left of negative numbers), flat (numbers beyond a bound become one), levels (so do those
#            on one side of it), cuts (the same until numbers are large), drops (some numbers leave no trace), pools (to
#            one position), matrix.
# Running:   bodies, draws (random numbers), drawing (of the elements that it reads, not of their shape alone).
_TABLE: Final = """
Identity | | moves whole like
Cast | | moves whole like steps
CastLike | | moves whole
Flatten Transpose | | moves whole
Dropout | data setting setting | moves whole like draws drawing
Reshape | data size | moves whole target
Squeeze Unsqueeze | data size | moves whole
Slice | data end end size size | moves resizes
Split Tile | data size | moves
Expand | data size | moves target
Pad | data size data size | moves resizes
Gather GatherElements GatherND | data index | moves
Concat | | moves joined
Where | | moves joined broadcast drops

Min Max | | bends joined broadcast mutual cuts flat levels
Clip | data bound bound | bends like cuts flat levels
Relu | | bends like mutes flat levels | 0..
Abs | | bends like | 0..
Round Floor Ceil | | bends like rounds jumps steps | integer

Add Sub Mul Div | | affine broadcast
Neg | | affine like
Sum Mean | | computes steady broadcast
Mod | | computes broadcast mutual jumps steps
Pow BitwiseAnd BitwiseOr BitwiseXor | | computes broadcast
BitShift | data setting | computes broadcast
Sign | | computes like jumps steps levels | -1..1 integer
Sqrt | | computes like | 0.. nan
BitwiseNot | | computes like
MatMul | | computes steady matrix
Gemm | | computes steady matrix
Einsum | | computes
OneHot | index size | computes
ScatterElements ScatterND Scatter | data index | computes like
TopK | data size | computes jumps
CumSum | data setting | computes like
Trilu | data setting | computes like
Unique | | computes jumps open
Compress | | computes open
ReverseSequence | data length | computes like
DepthToSpace | | computes resizes
SpaceToDepth | | computes resizes window
TfIdfVectorizer | | computes words | 0..
ReduceSum | data size | computes steady
ReduceMean | data size | computes steady pools
ReduceMax | data size | computes drops pools
ReduceMin | data size | computes drops
ReduceProd | data size | computes
ReduceL1 ReduceL2 ReduceSumSquare | data size | computes | 0..
ReduceLogSum ReduceLogSumExp | data size | computes

Shape Size | | forgets measures | 0.. integer
SequenceLength | | measures open | 0.. integer
Equal | | forgets broadcast mutual compares jumps others levels words | 0..1 integer
Less LessOrEqual Greater GreaterOrEqual | | forgets broadcast mutual compares jumps others levels | 0..1 integer
ArgMax ArgMin | | forgets jumps others | 0.. integer
NonZero | | forgets jumps others open | 0.. integer
IsNaN IsInf | | forgets others like | 0..1 integer
Not | | forgets like | 0..1 integer
And Or Xor | | forgets broadcast | 0..1 integer
NonMaxSuppression | data data setting setting bound | computes jumps others open | 0.. integer

ConstantOfShape | size | computes
Range | size size size | computes
HannWindow HammingWindow BlackmanWindow | size | computes
MelWeightMatrix | size size size setting setting | computes
Resize | data size size size | resizes
Upsample | data size | resizes
AffineGrid CenterCropPad | data size | computes
MaxUnpool | data setting size | computes
Col2Im DFT | data size size | computes
STFT | data size size size | window resizes computes
RoiAlign | data data index | computes
SplitToSequence SequenceErase | data setting | computes open
SequenceInsert | data data setting | computes open
SequenceAt | data setting | computes
SequenceConstruct ConcatFromSequence | |
StringNormalizer StringSplit | | words open
StringConcat RegexFullMatch | |

Conv ConvInteger QLinearConv ConvTranspose | | window resizes
FusedConv | | window resizes open
DeformConv CausalConvWithState | |
MaxPool | | window resizes drops
AveragePool LpPool | | window resizes
GlobalAveragePool | | global window resizes pools
GlobalMaxPool | | global window resizes pools drops
GlobalLpPool | | global window resizes
MaxRoiPool GridSample | |
MatMulInteger QLinearMatMul | |
LSTM GRU RNN | data data data data length |
BatchNormalization | | like
InstanceNormalization LayerNormalization GroupNormalization RMSNormalization | | like
LRN LpNormalization MeanVarianceNormalization | | like
Attention LinearAttention RotaryEmbedding TensorScatter | |
Det | |
QuantizeLinear | | like jumps steps cuts | integer
DynamicQuantizeLinear | | like jumps steps | 0..255 integer
DequantizeLinear | | like
Softmax | | like | 0..1
Hardmax | | like jumps steps | 0..1 integer
LogSoftmax | | like | ..0
NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss | data index |

LeakyRelu Elu Celu Selu Gelu Mish Swish | | like
SwiGLU | |
PRelu | | like
HardSwish | | like cuts flat levels
HardSigmoid | | like cuts flat levels | 0..1
ThresholdedRelu | | like cuts mutes flat levels
Shrink | | like cuts levels
Sigmoid | | like | 0..1
Tanh Erf Softsign Sin Cos | | like | -1..1
Softplus Exp | | like | 0..
Cosh | | like | 1..
Log Reciprocal Tan Asin Acos Acosh Atanh | | like | nan
Atan Asinh Sinh | | like
BitCast | |
CumProd | data setting | like
EyeLike | | | 0..1 integer

Bernoulli | | draws drawing | 0..1 integer
Multinomial | | draws drawing open | 0.. integer
RandomNormal RandomNormalLike RandomUniform RandomUniformLike | | draws open
If Loop Scan SequenceMap BeamSearch GreedySearch Sampling WhisperBeamSearch | | bodies open
TreeEnsembleClassifier TreeEnsembleRegressor TreeEnsemble LinearClassifier SVMClassifier | | jumps open
"""


class Operator(NamedTuple):
    """One row of the table. `low`, `high`: the range of all numbers that it makes; `nan`: it makes NaN of numbers."""

    roles: tuple[str, ...]
    traits: frozenset[str]
    low: float = -math.inf
    high: float = math.inf
    integer: bool = False
    nan: bool = False

    def role(self, k: int) -> str:
        return self.roles[k] if k < len(self.roles) else DATA


def _rows() -> dict[str, Operator]:
    found: dict[str, Operator] = {}
    for line in filter(None, _TABLE.splitlines()):
        names, roles, traits, *range_ = (cell.split() for cell in line.split("|"))
        words = range_[0] if range_ else []
        low, _, high = next((w for w in words if ".." in w), "..").partition("..")
        ends = float(low or -math.inf), float(high or math.inf)
        row = Operator(tuple(roles), frozenset(traits), *ends, "integer" in words, "nan" in words)
        found.update(dict.fromkeys(names, row))
    return found


OPERATORS: Final = _rows()
_UNKNOWN: Final = Operator((), frozenset(("open",)), nan=True)
_WITH: Final[dict[str, set[str]]] = {}
for _name, _row in OPERATORS.items():
    for _trait in _row.traits:
        _WITH.setdefault(_trait, set()).add(_name)


def having(*traits: str) -> frozenset[str]:
    """The operators that have one of these traits."""
    return frozenset().union(*(_WITH[trait] for trait in traits))


def operator(kind: str, domain: str = "") -> Operator:
    """The row of an operator; of one that the table does not know, a row that says nothing."""
    return OPERATORS.get(kind, _UNKNOWN) if domain in STANDARD else _UNKNOWN


def operands(*roles: str) -> dict[str, tuple[int, ...]]:
    """By operator, the operands that have one of these roles."""
    every = ((name, tuple(k for k, role in enumerate(row.roles) if role in roles)) for name, row in OPERATORS.items())
    return {name: found for name, found in every if found}


# (operator, operand): along which axis of the first operand an index or a length is meant, and the attribute for it.
AXIS: Final[dict[tuple[str, int], tuple[int, str]]] = {
    ("Gather", 1): (0, "axis"),
    ("GatherElements", 1): (0, "axis"),
    ("ScatterElements", 1): (0, "axis"),
    ("NegativeLogLikelihoodLoss", 1): (1, ""),
    ("SoftmaxCrossEntropyLoss", 1): (1, ""),
    ("ReverseSequence", 1): (0, "time_axis"),
    ("RoiAlign", 2): (0, ""),
    **{(kind, 4): (0, "") for kind in ("LSTM", "GRU", "RNN")},
}
# Where a weight stands; which axis of the data is as long as which axis of the weight (times the groups).
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
DRAWING: Final = having("draws")
COMPARING: Final = having("compares")
MUTUAL: Final = having("mutual")
HANDED_ON: Final = having("moves", "bends")
AFFINE: Final = having("affine")
FORGETTING: Final = having("forgets")
STEADY: Final = (HANDED_ON - having("rounds")) | AFFINE | FORGETTING | having("steady")
CUTTING: Final = having("cuts")
MUTING: Final = having("mutes")
LEVELLING: Final = having("levels")
DROPPING: Final = MUTING | CUTTING | having("drops")
MATRICES: Final = having("matrix")
DECIDING: Final = having("jumps")
GIVE_OTHERS: Final = having("others")
STEPPED: Final = having("steps")
MEASURING: Final = having("measures")
WINDOWS: Final = having("window")
# By operator, the operands whose elements decide sizes of the result.
OPENING: Final = operands(END, SIZE)
# What index, and sizes, integers may become: see `inputs.uses`.
_LIMITED: Final = {INDEX: INDEX, LENGTH: INDEX, END: INDEX, SIZE: SIZE, SETTING: SIZE}
SINKS: Final[dict[str, dict[int, str]]] = {
    name: {k: _LIMITED[row.roles[k]] for k in found}
    for name, found in operands(*_LIMITED).items()
    for row in [OPERATORS[name]]
}
