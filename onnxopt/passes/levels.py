"""What -O0 to -O3 run: passes, iterated in this order to a fixed point."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt.passes.canonicalize import Canonicalize
from onnxopt.passes.common_subexpressions import CommonSubexpressions
from onnxopt.passes.constant_folding import ConstantFolding
from onnxopt.passes.conv_add_folding import ConvAddFolding
from onnxopt.passes.conv_bn_folding import ConvBnFolding
from onnxopt.passes.dead_code import DeadCode
from onnxopt.passes.deduplicate_constants import DeduplicateConstants
from onnxopt.passes.elim_identity import ElimIdentity
from onnxopt.passes.lift_constants import LiftConstants
from onnxopt.passes.merge_chains import MergeChains
from onnxopt.pipeline import Pass, get_pass


def passes_for(level: int) -> list[Pass]:
    """The passes of a level. O0 runs none, and writes back the bytes it read."""
    if level <= 0:
        return []
    ranked = level >= 3
    passes: list[Pass] = [
        LiftConstants(),
        Canonicalize(),
        ElimIdentity(),
        ConstantFolding(),
        CommonSubexpressions(),
        MergeChains(),
        ConvBnFolding(ranked=ranked),
        ConvAddFolding(ranked=ranked),
        DeadCode(),
        DeduplicateConstants(),
    ]
    return [p for p in passes if p.info.opt_level <= level]


def passes_named(names: Sequence[str]) -> list[Pass]:
    """The passes of these names, with their default options. Raises UsageError for a name that does not exist."""
    return [get_pass(n)() for n in names]
