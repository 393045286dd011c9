"""The verifier (judge): compares two model files. Shares only the readers of messages and bytes with the optimizer.

Defined here: verdict words, all that a run without verification imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onnxopt.startup import lazy

if TYPE_CHECKING:
    from onnxopt.verification.job import VerifyOptions
    from onnxopt.verification.records import Verification
    from onnxopt.verification.verifier import Verifier, let_in, verify

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

# Lazy: the worker needs no `verifier`, and runs without verification need no options and no records.
_HOMES: Final = {"job": ("VerifyOptions",), "verifier": ("Verifier", "let_in", "verify")}
__getattr__ = lazy(__name__, {**_HOMES, "records": ("Verification",)})

# Verdicts. The first five accept a result.
EQUAL: Final = "equal"  # bitwise
VERIFIED: Final = "verified"  # within the accumulated rounding of a single pass through the network
IN_PIECES: Final = "verified in pieces"  # outputs differ by more, but no piece does
WITHIN_NOISE: Final = "within rounding noise"  # rounding alone changes the original as much; no cutpoints
INCONCLUSIVE: Final = "inconclusive"  # agrees, but the cases prove little
UNVERIFIED: Final = "not verified"  # no comparison was possible
# Agrees, but does not load with onnxruntime's default optimizations.
LOADS_PLAIN: Final = "loads without optimizations only"
DIFFERENT: Final = "different"
UNLOADED: Final = " cannot be loaded"  # message of a file refused by the runtime, followed by the reason
PROVEN: Final = (EQUAL, VERIFIED, IN_PIECES)  # accepted by `--strict`
AGREES: Final = (*PROVEN, WITHIN_NOISE, INCONCLUSIVE)
REFUSED: Final = (LOADS_PLAIN, DIFFERENT)  # refused under all options
