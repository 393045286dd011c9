"""Entry point for comparing two model files."""

from __future__ import annotations

from pathlib import Path

from onnxopt.errors import file_path
from onnxopt.verification.options import VerifyOptions
from onnxopt.verification.records import Verification
from onnxopt.verification.verifier import Verifier


def verify(original: str | Path, result: str | Path, options: VerifyOptions | None = None) -> Verification:
    """Compare two model files on the same inputs, in onnxruntime with graph optimizations off.

    Uses the optimizer's own cases. If `options` name cases, data, a provider or dims, returns a `Comparison` as
    `onnxopt verify` does. Raises ModelError for an invalid model file, and the errors of `compare_files`.
    """
    original, result = file_path(original), file_path(result)
    if options is not None and options.thorough:
        from onnxopt.verification.comparison import compare_files

        return compare_files(original, result, options)
    from onnxopt.verification.interface import read  # imports numpy

    skeleton, _ = read(original), read(result)
    with Verifier(original, options, foreign=True) as verifier:
        verifier.describe(skeleton.proto, skeleton.values)
        verifier.submit(result)
        return verifier.finish()
