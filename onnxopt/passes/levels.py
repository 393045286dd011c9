"""Pipelines of -O0 to -O3, as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from onnxopt.errors import UsageError
from onnxopt.passes import NEEDS
from onnxopt.pipeline import Fixpoint, PassInfo, Sequential, get_pass, parse_pipeline
from onnxopt.pipeline.decorators import LazyPass

_EXACT_PASSES: Final = (
    "lift-constants,canonicalize,shape-arithmetic,widen-indices,elim-identity,neutral-operands,constant-folding,"
    "known-conditions,inline-branches,inline-loops,simplify-loops,scan-axes,default-inputs,split-sequences,"
    "merge-chains,index-chains,gather-grids,shape-sources,pack-scalars,reshape-chains,gather-axes,table-lookups,"
    "slice-assignments,common-subexpressions,clip-chains,fold-signs,simplify-logic,slices-to-split,axes-before-split,stacks-to-split,"
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
    """Return a pipeline: first passes that shrink the graph, then passes comparing forms, which need the settled graph.

    The lists respect the passes' `after` and `before`. Any other valid order gives the same number of nodes.
    """
    return f"fixpoint({_EXACT_PASSES},{folds},{_CLEAN}),fixpoint({_EXACT_PASSES},{folds},{forms},{_CLEAN})"


LEVELS: Final = (
    "",  # copies the input bytes
    f"fixpoint({_EXACT_PASSES},{_CLEAN})",
    _level(f"{_ARITHMETIC},{_FOLDS}", f"{_FORMS},group-heads"),
    _level(
        f"{_ARITHMETIC},{_OPERATORS},{_FOLDS},{_ALGEBRA}",
        f"merge-parallel,{_FORMS},fuse-rotary,fuse-attention,attention-heads,group-heads",
    ),
)

# verification has to know these conversions, too
_OWN: Final = {"convert-dtype": "--dtype float16", "convert-int32": "--int32"}


def converting(pipeline: Sequential, dtype: str, int32: bool, keep_io: bool) -> Sequential:
    """Return the pipeline, the conversion to narrower floats, and the pipeline again; then the conversion to int32.

    Weights are folded before rounding, and passes simplify around the new Casts. The conversion to int32 alternates
    with the pipeline until neither changes the model.
    """
    clean = pipeline.passes or parse_pipeline("elim-identity,dead-code").passes
    passes = pipeline.passes
    if dtype:
        passes += (get_pass("convert-dtype")(dtype=dtype, keep_io=keep_io), *clean)  # type: ignore[call-arg]
    if int32:
        passes += (Fixpoint((get_pass("convert-int32")(keep_io=keep_io), *clean)),)  # type: ignore[call-arg]
    return Sequential(passes)


def option_for(info: PassInfo) -> str:
    """Return the option to run the pass: `-O2`, an option of its own, or `--with NAME` outside of all levels."""
    if info.name in re.split("[(),]", LEVELS[-1]):
        return f"-O{info.opt_level}"
    return _OWN.get(info.name, f"--with {info.name}")


@cache
def _later() -> dict[str, LazyPass]:
    return {name: LazyPass(name, level, ops) for name, (level, ops) in NEEDS.items()}


@cache
def _alone(level: int) -> Sequential:
    """Return the immutable pipeline of a level, cached for runs over many small models."""
    return parse_pipeline(LEVELS[level], _later())


def pipeline_for(level: int, extra: Sequence[str] = ()) -> Sequential:
    """Return the pipeline of a level, 0 to 3, with the passes `extra` added to its last fixed point.

    They are placed by their own `after` and `before`, else at the end. Raises UsageError for an unknown name, or a pass
    with an option of its own.
    """
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
