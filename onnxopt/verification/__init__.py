"""The verifier (judge): compares two model files. Shares only the readers of messages and bytes with the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxopt.startup import lazy
from onnxopt.verification.options import (
    AGREES,
    DIFFERENT,
    EQUAL,
    IN_PIECES,
    INCONCLUSIVE,
    LOADS_PLAIN,
    PROVEN,
    UNVERIFIED,
    VERIFIED,
    WITHIN_NOISE,
    VerifyOptions,
)

if TYPE_CHECKING:
    from onnxopt.verification.files import verify
    from onnxopt.verification.missing import let_in
    from onnxopt.verification.records import Verification
    from onnxopt.verification.verifier import Verifier

__all__ = [
    "AGREES",
    "DIFFERENT",
    "EQUAL",
    "INCONCLUSIVE",
    "IN_PIECES",
    "LOADS_PLAIN",
    "PROVEN",
    "UNVERIFIED",
    "VERIFIED",
    "WITHIN_NOISE",
    "Verification",
    "Verifier",
    "VerifyOptions",
    "let_in",
    "verify",
]

# Lazy: the worker needs no `verifier`, and runs without verification need no records.
__getattr__ = lazy(
    __name__,
    {"verifier": ("Verifier",), "files": ("verify",), "records": ("Verification",), "missing": ("let_in",)},
)
