"""The registry of passes: the module of each pass, and the level and operators of a pass, known before its import.

A module is imported when one of its passes is requested.
"""

from __future__ import annotations

from typing import Final

from onnxopt.operators import MULTIDIRECTIONAL, REDUCTIONS
from onnxopt.pipeline.registry import register_later

MODULES: Final = {
    "conversions": ("convert-dtype", "convert-int32"),
    "basics.canonicalize": ("canonicalize", "lift-constants"),
    "basics.constant_folding": ("constant-folding",),
    "basics.dead_code": ("dead-code",),
    "basics.duplicates": ("common-subexpressions", "deduplicate-constants"),
    "basics.elim_identity": ("elim-identity",),
    "control_flow.branches": ("known-conditions", "inline-branches"),
    "control_flow.loops": ("simplify-loops", "inline-loops"),
    "control_flow.recurrence": ("batch-loops", "scan-axes", "default-inputs"),
    "control_flow.split_sequences": ("split-sequences",),
    "shapes.pack_scalars": ("pack-scalars",),
    "shapes.shape_arithmetic": ("shape-arithmetic",),
    "shapes.shape_sources": ("shape-sources",),
    "shapes.widen_indices": ("widen-indices",),
    "movement.axes": ("axes-first",),
    "movement.broadcasts": ("implicit-broadcast", "constants-once"),
    "movement.chains": ("reshape-chains", "gather-axes", "merge-chains"),
    "movement.flatten_rows": ("flatten-rows",),
    "movement.index_chains": ("index-chains",),
    "movement.lookups": ("gather-grids", "table-lookups"),
    "movement.pack_parts": ("pack-parts",),
    "movement.parts_of_concat": ("parts-of-concat", "slice-assignments"),
    "movement.splits": ("slices-to-split", "axes-before-split", "stacks-to-split"),
    "movement.transpose_propagation": ("transpose-propagation",),
    "movement.unmerge_batches": ("unmerge-batches",),
    "arithmetic.fold_signs": ("fold-signs",),
    "arithmetic.neutral_operands": ("neutral-operands", "clip-chains"),
    "arithmetic.reductions": ("simplify-reductions", "simplify-einsum"),
    "arithmetic.simplify_arithmetic": ("simplify-arithmetic",),
    "arithmetic.simplify_logic": ("simplify-logic",),
    "linear.conv_folding": ("conv-add-folding", "conv-bn-folding"),
    "linear.gemm_fusion": ("gemm-fusion",),
    "linear.linear_composition": ("linear-composition",),
    "linear.parallel": ("merge-parallel", "parallel-conv-merging"),
    "linear.scales": ("scale-propagation", "matmul-scale-folding", "term-propagation"),
    "linear.space_to_depth": ("space-to-depth",),
    "linear.windows": ("pad-folding", "conv-axes"),
    "fusion.fuse_activation": ("fuse-activation",),
    "fusion.fuse_attention": ("fuse-attention",),
    "fusion.fuse_normalization": ("fuse-normalization", "fuse-softmax"),
    "fusion.fuse_rotary": ("fuse-rotary",),
    "fusion.heads": ("attention-heads", "group-heads"),
}

for _module, _names in MODULES.items():
    for _name in _names:
        register_later(_name, f"{__name__}.{_module}")

# Level of a pass, and operators of which a model must have one, as in its PassInfo.
# Written by `python -m tests.pipeline.test_lazy_passes`.
NEEDS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "attention-heads": (3, ("Attention",)),
    "axes-before-split": (1, ("Split", "Gather")),
    "axes-first": (1, ("Unsqueeze", "Reshape", "Squeeze")),
    "batch-loops": (2, ("Loop",)),
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
    "scale-propagation": (2, ("Mul", "Div", "Attention")),
    "scan-axes": (1, ("Scan",)),
    "shape-sources": (1, ("Shape",)),
    "simplify-einsum": (2, ("Einsum",)),
    "simplify-logic": (1, ("And", "Cast", "Equal", "Not", "Where", "Xor")),
    "simplify-loops": (1, ("Loop", "Scan")),
    "simplify-reductions": (2, ("GlobalAveragePool", *sorted(REDUCTIONS))),
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
