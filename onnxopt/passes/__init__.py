"""The passes, one file each, called as they are. Importing this package makes their names known; a file is imported
when somebody asks for its pass."""

from onnxopt.pipeline.registry import register_later

for _name in (
    "canonicalize",
    "clip-chains",
    "common-subexpressions",
    "constant-folding",
    "conv-add-folding",
    "conv-bn-folding",
    "convert-dtype",
    "dead-code",
    "deduplicate-constants",
    "default-inputs",
    "elim-identity",
    "flatten-rows",
    "fuse-activation",
    "fuse-attention",
    "fuse-normalization",
    "gemm-fusion",
    "implicit-broadcast",
    "index-chains",
    "inline-branches",
    "inline-loops",
    "lift-constants",
    "linear-composition",
    "matmul-scale-folding",
    "merge-chains",
    "merge-parallel",
    "pad-folding",
    "parallel-conv-merging",
    "reshape-chains",
    "scale-propagation",
    "shape-arithmetic",
    "simplify-arithmetic",
    "simplify-einsum",
    "slices-to-split",
    "split-sequences",
    "transpose-propagation",
):
    register_later(_name, f"{__name__}.{_name.replace('-', '_')}")
