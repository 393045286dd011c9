"""What is known of passes before they are imported: the level, and operators of which a model has to have one.

Written by the tests from what the passes say (`PassInfo.ops`); see tests/pipeline/test_lazy_passes.py.
"""

from typing import Final

from onnxopt.operators import MULTIDIRECTIONAL

NEEDS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "axes-before-split": (1, ("Split", "Gather")),
    "axes-first": (1, ("Unsqueeze", "Reshape", "Squeeze")),
    "clip-chains": (1, ("Clip",)),
    "constants-once": (2, ("Gemm", *sorted(MULTIDIRECTIONAL))),
    "conv-add-folding": (2, ("Conv", "ConvTranspose", "Gemm")),
    "conv-axes": (2, ("Squeeze",)),
    "conv-bn-folding": (2, ("BatchNormalization", "InstanceNormalization")),
    "default-inputs": (1, ("GRU", "LSTM", "RNN")),
    "flatten-rows": (2, ("MatMul", "Flatten", "Reshape", "Squeeze", "Unsqueeze")),
    "fold-signs": (1, ("Neg", "Abs", "Concat")),
    "fuse-attention": (3, ("Attention", "MatMul")),
    "fuse-rotary": (3, ("Concat",)),
    "fuse-softmax": (3, ("Exp", "Softmax")),
    "gather-axes": (1, ("Expand", "Gather", "GatherND", "Slice", "Tile")),
    "gather-grids": (1, ("Gather", "GatherElements", "GatherND")),
    "gemm-fusion": (2, ("MatMul", "Gemm")),
    "group-heads": (2, ("Gather",)),
    "index-chains": (1, ("Concat", "Gather", "Reshape", "Slice")),
    "inline-branches": (1, ("If",)),
    "inline-loops": (1, ("Loop",)),
    "known-conditions": (1, ("If",)),
    "lift-constants": (1, ("Constant", "Identity")),
    "linear-composition": (3, ("Conv", "Gemm", "MatMul")),
    "matmul-scale-folding": (2, ("MatMul",)),
    "merge-chains": (1, ("Cast", "Concat", "Flatten", "Reshape", "Squeeze", "Unsqueeze")),
    "merge-parallel": (3, ("MatMul", "Gemm", "Conv", "Split")),
    "neutral-operands": (1, ("Add", "And", "Div", "Max", "Min", "Mul", "Or", "Pow", "Sub")),
    "pack-parts": (2, ("Split",)),
    "pack-scalars": (1, ("Concat",)),
    "pad-folding": (2, ("Pad", "Conv", "ConvTranspose")),
    "parallel-conv-merging": (3, ("Conv",)),
    "parts-of-concat": (1, ("Concat",)),
    "reshape-chains": (1, ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")),
    "scale-propagation": (2, ("Mul", "Div")),
    "scan-axes": (1, ("Scan",)),
    "shape-sources": (1, ("Shape",)),
    "simplify-einsum": (2, ("Einsum",)),
    "simplify-logic": (1, ("And", "Cast", "Equal", "Greater", "Less", "Not", "Or", "Where", "Xor")),
    "simplify-loops": (1, ("Loop", "Scan")),
    "simplify-reductions": (
        2,
        ("GlobalAveragePool", "ReduceL1", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"),
    ),
    "slice-assignments": (1, ("ScatterElements", "ScatterND")),
    "slices-to-split": (1, ("Slice", "Gather", "ai.onnx.ml::ArrayFeatureExtractor", "Split")),
    "space-to-depth": (2, ("Concat", "Gather", "Transpose")),
    "split-sequences": (1, ("SplitToSequence",)),
    "stacks-to-split": (1, ("Reshape",)),
    "table-lookups": (1, ("Cast", "ArgMax", "ArgMin")),
    "term-propagation": (2, ("Add", "Sub")),
    "transpose-propagation": (2, ("Transpose",)),
    "unmerge-batches": (2, ("Reshape",)),
    "widen-indices": (1, ("Cast",)),
}
