"""Operators missing in the installed onnxruntime: a result that cannot run is not thereby wrong."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from onnxopt.verification.options import DIFFERENT, UNVERIFIED
from onnxopt.verification.runtime import UNREGISTERED

if TYPE_CHECKING:
    from onnxopt.verification.records import Verification

_UNIMPLEMENTED: Final = re.compile(r"to find kernel for (\w+)\((\d+)\)|not find an implementation for (\w+)\((\d+)\)")


UNREGISTERED_HINT: Final = "--custom-op-library FILE brings a kernel, a plugin's declare_reference a function"


def let_in(verdict: Verification, domains: Collection[str] = ()) -> Verification:
    """Set UNVERIFIED if onnxruntime does not load the result because of operators of `domains`."""
    if verdict.status != DIFFERENT or verdict.cases:
        return verdict
    foreign = next((d for d in domains if f"{d}:" in verdict.message and UNREGISTERED in verdict.message), None)
    if foreign is not None:
        verdict.status = UNVERIFIED
        verdict.message = f"onnxruntime does not know the operators of {foreign}, which --allow-domain lets in"
        verdict.hint = UNREGISTERED_HINT
    return verdict


def missing(error: str) -> str:
    """Return a sentence naming the operator missing according to an error of onnxruntime; "" for other errors."""
    found = _UNIMPLEMENTED.search(error)
    if found is None:
        return ""
    return f"onnxruntime does not implement {found[1] or found[3]} of opset {found[2] or found[4]} for its types"
