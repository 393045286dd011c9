"""The judge: compares two files, and shares no code with what rewrites them."""

from onnxopt.verification.records import (
    AGREES,
    DIFFERENT,
    EQUAL,
    IN_PIECES,
    INCONCLUSIVE,
    PROVEN,
    UNVERIFIED,
    VERIFIED,
    WITHIN_NOISE,
    CaseRecord,
    OutputRecord,
    Pieces,
    Place,
    Side,
    Verification,
    VerifyOptions,
)
from onnxopt.verification.verifier import Verifier, verify

__all__ = [
    "AGREES",
    "DIFFERENT",
    "EQUAL",
    "INCONCLUSIVE",
    "IN_PIECES",
    "PROVEN",
    "UNVERIFIED",
    "VERIFIED",
    "WITHIN_NOISE",
    "CaseRecord",
    "OutputRecord",
    "Pieces",
    "Place",
    "Side",
    "Verification",
    "Verifier",
    "VerifyOptions",
    "verify",
]
