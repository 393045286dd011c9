"""What -O0 to -O3 run, as pipeline text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from onnxopt.errors import UsageError
from onnxopt.passes.needs import NEEDS
from onnxopt.pipeline import Fixpoint, PassInfo, Sequential, get_pass, parse_pipeline
from onnxopt.pipeline.later import Later

_EXACT: Final = (
    "lift-constants,canonicalize,shape-arithmetic,widen-indices,elim-identity,neutral-operands,constant-folding,"
    "known-conditions,inline-branches,inline-loops,simplify-loops,scan-axes,default-inputs,split-sequences,"
    "merge-chains,index-chains,gather-grids,shape-sources,pack-scalars,reshape-chains,gather-axes,table-lookups,"
    "slice-assignments,common-subexpressions,clip-chains,fold-signs,simplify-logic,slices-to-split,stacks-to-split,axes-before-split,"
    "axes-first,parts-of-concat"
)
_ARITHMETIC: Final = (
    "batch-loops,simplify-arithmetic,simplify-reductions,simplify-einsum,unmerge-batches,implicit-broadcast,"
    "constants-once,pack-parts"
)
_OPERATORS: Final = "fuse-normalization,fuse-activation,fuse-softmax"
_FOLDS: Final = (
    "space-to-depth,conv-axes,conv-bn-folding,conv-add-folding,pad-folding,matmul-scale-folding,scale-propagation,"
    "term-propagation"
)
_ALGEBRA: Final = "linear-composition,parallel-conv-merging"
_FORMS: Final = "transpose-propagation,flatten-rows,gemm-fusion"
_CLEAN: Final = "dead-code,deduplicate-constants"


def _level(folds: str, forms: str) -> str:
    """First all that shrinks; then what weighs one form against another, which has to see the settled graph.

    The lists keep the order that passes declare (`after`, `before`). Any other that does ends in as many nodes.
    """
    return f"fixpoint({_EXACT},{folds},{_CLEAN}),fixpoint({_EXACT},{folds},{forms},{_CLEAN})"


LEVELS: Final = (
    "",  # writes back the bytes it read
    f"fixpoint({_EXACT},{_CLEAN})",
    _level(f"{_ARITHMETIC},{_FOLDS}", f"{_FORMS},group-heads"),
    _level(
        f"{_ARITHMETIC},{_OPERATORS},{_FOLDS},{_ALGEBRA}",
        f"{_FORMS},merge-parallel,fuse-rotary,fuse-attention,attention-heads,group-heads",
    ),
)

_OWN: Final = {"convert-dtype": "--dtype float16"}  # the judge has to know it, too


def converting(pipeline: Sequential, dtype: str, keep_io: bool) -> Sequential:
    """The pipeline, then the conversion to a narrower type, and the pipeline again: weights are folded before they are
    rounded, and what the Casts leave to do is done."""
    convert = get_pass("convert-dtype")(dtype=dtype, keep_io=keep_io)  # type: ignore[call-arg]
    clean = pipeline.passes or parse_pipeline("elim-identity,dead-code").passes
    return Sequential((*pipeline.passes, convert, *clean))


def option_for(info: PassInfo) -> str:
    """What has a run include the pass: `-O2`, an option of its own, or `--with NAME` where no level has it."""
    if info.name in re.split("[(),]", LEVELS[-1]):
        return f"-O{info.opt_level}"
    return _OWN.get(info.name, f"--with {info.name}")


@cache
def _later() -> dict[str, Later]:
    return {name: Later(name, level, ops) for name, (level, ops) in NEEDS.items()}


@cache
def _alone(level: int) -> Sequential:
    """Nothing in it changes: whoever optimizes a thousand small models need not read it a thousand times."""
    return parse_pipeline(LEVELS[level], _later())


def pipeline_for(level: int, extra: Sequence[str] = ()) -> Sequential:
    """The pipeline of a level, 0 to 3. The passes named in `extra` join its last fixed point, placed by their own
    `after` and `before`, else at the end. Raises UsageError for a name that does not exist, or has its own option."""
    if not extra:
        return _alone(level)
    pipeline = parse_pipeline(LEVELS[level])
    for name in extra:
        if (own := _OWN.get(get_pass(name).info.name)) is not None:
            raise UsageError(f"{name} is no pass that runs with the others", f"say {own}")
    from onnxopt.pipeline.manager import in_order

    inner = pipeline.passes[-1].children if pipeline.passes else ()
    joined = Fixpoint(tuple(in_order([*inner, *(get_pass(name)() for name in extra)])))
    return Sequential((*pipeline.passes[:-1], joined))
