"""`onnxopt.bisect`: the command `onnxopt bisect IN` as a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from onnxopt import bisection
from onnxopt.api.files import model_file
from onnxopt.api.keywords import refuse
from onnxopt.api.settings import Settings, make_options
from onnxopt.io import blaming
from onnxopt.verification import VerifyOptions

if TYPE_CHECKING:
    from onnxopt.api.files import AnyModel
    from onnxopt.bisection import Finding


def bisect(
    model: AnyModel,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    verify_dims: Mapping[str, int] | None = None,
    custom_op_libraries: Sequence[str | os.PathLike[str]] = (),
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
    **settings: Unpack[Settings],
) -> Finding:
    """Find the rewrite with which the optimized model differs from the original, and the smallest model with the fault.

    `settings`: settings of `optimize` for passes and changes of the model. `progress` is called with each step of the
    search. Raises UsageError if the result does not differ, the error of a failing pass, and TypeError for an unknown
    keyword.
    """
    refuse("bisect", settings, Settings.__annotations__)
    options = make_options(**settings)
    with model_file(model) as source, blaming(source):
        judging = VerifyOptions(
            rtol,
            atol,
            seed,
            limit=options.limits.memory,
            dims=dict(verify_dims or {}),
            custom_op_libraries=custom_op_libraries,
        )
        return bisection.bisect(source, options, options.judging(judging), progress)
