"""The passes, one file each. Importing this package registers them."""

from onnxopt.passes import (
    canonicalize,
    constant_folding,
    conv_add_folding,
    conv_bn_folding,
    dead_code,
    deduplicate_constants,
    elim_identity,
    lift_constants,
)

__all__ = [
    "canonicalize",
    "constant_folding",
    "conv_add_folding",
    "conv_bn_folding",
    "dead_code",
    "deduplicate_constants",
    "elim_identity",
    "lift_constants",
]
