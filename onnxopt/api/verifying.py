"""`onnxopt.verify`: the command `onnxopt verify A B` as a function."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from onnxopt.api.files import input_files, model_file, name_of
from onnxopt.api.keywords import refuse
from onnxopt.arguments import kind
from onnxopt.plaintext import an
from onnxopt.verification import VerifyOptions, files
from onnxopt.verification.records import Comparison

if TYPE_CHECKING:
    from onnxopt.api.files import AnyModel
    from onnxopt.verification import Verification


def verify(original: AnyModel, result: AnyModel, options: VerifyOptions | None = None, **settings: Any) -> Verification:
    """Compare two model files or ModelProtos: same inputs, onnxruntime with graph optimizations off, every output.

    The fields of VerifyOptions are keywords, such as `rtol=1e-3`; values of `inputs` are arrays or .npy files. The
    default inputs are the optimizer's own. With cases, datasets, a provider or dims, the comparison is that of
    `onnxopt verify`, and the result a `Comparison`. `.ok` is true if both compute the same.

    Raises ModelError for an invalid model, UsageError for models with different inputs or outputs, TypeError for an
    unknown keyword.
    """
    refuse("verify", settings, [f.name for f in fields(VerifyOptions)])
    if not isinstance(options, VerifyOptions | None):
        raise TypeError(f"verify() takes VerifyOptions as its third argument, not {an(kind(options))}")
    with ExitStack() as stack:
        a, b = (stack.enter_context(model_file(model)) for model in (original, result))
        options = replace(options or VerifyOptions(), **settings)
        given = stack.enter_context(input_files(options.inputs, "inputs"))
        found = files.verify(a, b, replace(options, inputs=given))
        if isinstance(found, Comparison):
            found.a, found.b = name_of(a), name_of(b)
        return found
