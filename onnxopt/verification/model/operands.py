"""What operators of the standard do with the numbers that they read: hand them on, compute with them, or take them for
indices and sizes."""

from __future__ import annotations

from typing import Final

STANDARD: Final = ("", "ai.onnx")
_INDEX: Final = "index"
_SIZE: Final = "size"

# (operator, operand): along which axis of what it reads first that is an index, the attribute that says which, and how
# many more there are than rows: lengths.
INDEXED: Final[dict[tuple[str, int], tuple[int, str, int]]] = {
    ("Gather", 1): (0, "axis", 0),
    ("GatherElements", 1): (0, "axis", 0),
    ("ScatterElements", 1): (0, "axis", 0),
    ("NegativeLogLikelihoodLoss", 1): (1, "", 0),
    ("SoftmaxCrossEntropyLoss", 1): (1, "", 0),
    ("ReverseSequence", 1): (0, "time_axis", 1),
    **{(kind, 4): (0, "", 1) for kind in ("LSTM", "GRU", "RNN")},
}
_SECOND_INDEXES: Final = ("GatherND", "ScatterND", "Scatter")
_SECOND_SIZES: Final = (
    "Reshape", "Expand", "Tile", "Split", "Squeeze", "Unsqueeze", "TopK", "CumSum", "BitShift", "Trilu", "ReduceSum",
    "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum",
    "ReduceLogSumExp", "CenterCropPad", "SequenceAt", "SequenceErase", "SplitToSequence",
)  # fmt: skip
_ALL_SIZES: Final = (
    "ConstantOfShape", "Range", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "Resize",
    "Upsample", "NonMaxSuppression", "MaxUnpool", "Col2Im", "AffineGrid", "DFT", "STFT", "SequenceInsert", "RoiAlign",
)  # fmt: skip
# (operator, operand): what it is there, if it is no data.
SINKS: Final[dict[str, dict[int, str]]] = {
    **{kind: {1: _INDEX} for kind in _SECOND_INDEXES},
    **{kind: {1: _SIZE} for kind in _SECOND_SIZES},
    **{kind: dict.fromkeys(range(6), _SIZE) for kind in _ALL_SIZES},
    **{kind: {k: _INDEX} for kind, k in INDEXED},
    "OneHot": {0: _INDEX, 1: _SIZE},
    "Slice": {1: _INDEX, 2: _INDEX, 3: _SIZE, 4: _SIZE},
    "Pad": {1: _SIZE, 3: _SIZE},
}
# What they make says nothing of how large the numbers were.
STOPS: Final = frozenset((
    "Shape", "Size", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "ArgMax", "ArgMin", "NonZero",
    "IsNaN", "IsInf", "And", "Or", "Xor", "Not",
))  # fmt: skip
TEXT: Final = frozenset(("StringSplit", "StringNormalizer", "TfIdfVectorizer", "Equal"))
AFFINE: Final = frozenset(("Add", "Sub", "Mul", "Div", "Neg"))
# Numbers pass as they are, or some of them.
HANDED_ON: Final = frozenset((
    "Identity", "Cast", "CastLike", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Slice", "Split",
    "Expand", "Tile", "Pad", "Gather", "GatherElements", "GatherND", "Concat", "Min", "Max", "Clip", "Where", "Relu",
    "Abs", "Round", "Floor", "Ceil", "Dropout",
))  # fmt: skip
FIRST_ONLY: Final = HANDED_ON - {"Concat", "Min", "Max", "Where"}
_COMPUTED: Final = frozenset((
    "Sum", "Mean", "Mod", "Sign", "Pow", "Sqrt", "MatMul", "Gemm", "Einsum", "OneHot", "ScatterElements", "ScatterND",
    "Scatter", "TopK", "CumSum", "Trilu", "Unique", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot",
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "Compress", "ReverseSequence", "DepthToSpace", "SpaceToDepth", "TfIdfVectorizer",
))  # fmt: skip
# Floats that are large there say as much as small ones: no sine, no exponential, nothing that is rounded.
_STEADILY: Final = frozenset(("Sum", "Mean", "ReduceSum", "ReduceMean", "MatMul", "Gemm"))
STEADY: Final = (HANDED_ON - {"Round", "Floor", "Ceil"}) | AFFINE | STOPS | _STEADILY
_KNOWN: Final = HANDED_ON | AFFINE | STOPS | _COMPUTED | frozenset(SINKS)


def known(kind: str) -> bool:
    """Is it known what becomes of integers there?"""
    return kind in _KNOWN
