"""The passes, one file each. Importing this package registers them."""

from onnxopt.passes import (
    canonicalize,
    common_subexpressions,
    constant_folding,
    conv_add_folding,
    conv_bn_folding,
    dead_code,
    deduplicate_constants,
    default_inputs,
    elim_identity,
    flatten_rows,
    gemm_fusion,
    lift_constants,
    merge_chains,
    sequences,
    shape_arithmetic,
    simplify_arithmetic,
)

__all__ = [
    "canonicalize",
    "common_subexpressions",
    "constant_folding",
    "conv_add_folding",
    "conv_bn_folding",
    "dead_code",
    "deduplicate_constants",
    "default_inputs",
    "elim_identity",
    "flatten_rows",
    "gemm_fusion",
    "lift_constants",
    "merge_chains",
    "sequences",
    "shape_arithmetic",
    "simplify_arithmetic",
]
