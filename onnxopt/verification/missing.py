"""What a caller asked for, and this onnxruntime does not have: that it cannot run a result does not make it wrong."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.verification.options import DIFFERENT, UNVERIFIED
from onnxopt.wire import call_of

if TYPE_CHECKING:
    from onnxopt.verification.records import Verification

_UNIMPLEMENTED: Final = re.compile(r"to find kernel for (\w+)\((\d+)\)|not find an implementation for (\w+)\((\d+)\)")
_MADE_OF: Final = {"RandomUniformLike": ("Bernoulli",)}  # what onnxruntime writes out has another name then


def let_in(
    verdict: Verification, source: Path, domains: Collection[str] = (), target_opset: int | None = None
) -> Verification:
    """Not verified, where onnxruntime does not load the result for operators of `domains`, or for one of `source` in
    the version that `target_opset` made of it."""
    if verdict.status != DIFFERENT or verdict.cases:
        return verdict
    foreign = next((d for d in domains if f"{d}:" in verdict.message and "not a registered" in verdict.message), None)
    if foreign is not None:
        verdict.status = UNVERIFIED
        verdict.message = f"onnxruntime does not know the operators of {foreign}, which --allow-domain lets in"
        verdict.hint = "compare it in the runtime that knows them"
    elif target_opset is not None and (lacks := _lacks(verdict.message)) and _was_older(*lacks, source):
        verdict.status = UNVERIFIED
        verdict.message = f"{missing(verdict.message)}, which --target-opset asks for"
        verdict.hint = "compare it in the runtime that has it, or choose an older opset"
    return verdict


def _was_older(op: str, version: int, source: Path) -> bool:
    """Does `source` call it in an earlier version, or what is made of it? Else a rewrite brought it in, or a type."""
    from onnx import ModelProto, defs  # most results are loaded

    data = source.read_bytes()
    opset = next((o.version for o in ModelProto.FromString(data).opset_import if o.domain in ("", "ai.onnx")), 0)
    every = (name for name in (op, *_MADE_OF.get(op, ())) if call_of(name) in data)
    return any(defs.get_schema(name, opset).since_version < version for name in every)


def _lacks(error: str) -> tuple[str, int] | None:
    """The operator that onnxruntime says it does not have, and of which version."""
    found = _UNIMPLEMENTED.search(error)
    return (found[1] or found[3], int(found[2] or found[4])) if found else None


def missing(error: str) -> str:
    """`onnxruntime does not implement RandomNormalLike of opset 22 for its types`, if that is its error; else empty."""
    lacks = _lacks(error)
    return f"onnxruntime does not implement {lacks[0]} of opset {lacks[1]} for its types" if lacks else ""
