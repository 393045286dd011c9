"""Two files compared, as the optimizer compares its results, or as far as the options go."""

from __future__ import annotations

from pathlib import Path

from onnxopt.errors import file_path
from onnxopt.verification.options import VerifyOptions
from onnxopt.verification.records import Verification
from onnxopt.verification.verifier import Verifier


def verify(original: str | Path, result: str | Path, options: VerifyOptions | None = None) -> Verification:
    """Compare two model files: same inputs, onnxruntime with graph optimizations off, every output.

    On the two sets of inputs that the optimizer checks its results with; where `options` name cases, data, a provider
    or dims, as `onnxopt verify` does: a `Comparison`. Raises what `compare_files` raises then, and ModelError
    for a file that is no model: that is no verdict on one.
    """
    original, result = file_path(original), file_path(result)
    if options is not None and options.thorough:
        from onnxopt.verification.comparison import compare_files

        return compare_files(original, result, options)
    from onnxopt.verification.interface import read  # numpy comes with it

    skeleton, _ = read(original), read(result)
    with Verifier(original, options, foreign=True) as verifier:
        verifier.describe(skeleton.proto, skeleton.values)
        verifier.submit(result)
        return verifier.finish()
