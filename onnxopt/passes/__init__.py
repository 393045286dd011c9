"""The passes, a file each, named like the pass, in rooms by topic.

Importing this package registers the names; a file is imported when its pass is requested.
"""

from typing import Final

from onnxopt.pipeline.registry import register_later

ROOMS: Final = {
    "basics": (
        "canonicalize",
        "common-subexpressions",
        "constant-folding",
        "dead-code",
        "deduplicate-constants",
        "default-inputs",
        "elim-identity",
        "lift-constants",
    ),
    "control_flow": (
        "batch-loops",
        "inline-branches",
        "inline-loops",
        "known-conditions",
        "scan-axes",
        "simplify-loops",
        "split-sequences",
    ),
    "shapes": (
        "pack-scalars",
        "shape-arithmetic",
        "shape-sources",
    ),
    "dtypes": (
        "convert-dtype",
        "convert-int32",
        "widen-indices",
    ),
    "movement": (
        "axes-before-split",
        "axes-first",
        "constants-once",
        "flatten-rows",
        "gather-axes",
        "gather-grids",
        "implicit-broadcast",
        "index-chains",
        "merge-chains",
        "pack-parts",
        "parts-of-concat",
        "reshape-chains",
        "slice-assignments",
        "slices-to-split",
        "stacks-to-split",
        "transpose-propagation",
        "unmerge-batches",
    ),
    "arithmetic": (
        "clip-chains",
        "fold-signs",
        "neutral-operands",
        "simplify-arithmetic",
        "simplify-einsum",
        "simplify-logic",
        "simplify-reductions",
        "table-lookups",
    ),
    "linear": (
        "conv-add-folding",
        "conv-axes",
        "conv-bn-folding",
        "gemm-fusion",
        "group-heads",
        "linear-composition",
        "matmul-scale-folding",
        "merge-parallel",
        "pad-folding",
        "parallel-conv-merging",
        "scale-propagation",
        "space-to-depth",
        "term-propagation",
    ),
    "fusion": (
        "attention-heads",
        "fuse-activation",
        "fuse-attention",
        "fuse-normalization",
        "fuse-rotary",
        "fuse-softmax",
    ),
}

for _room, _names in ROOMS.items():
    for _name in _names:
        register_later(_name, f"{__name__}.{_room}.{_name.replace('-', '_')}")
