"""ONNX's node tests of the standard's operators, made once per process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper


class Case(NamedTuple):
    """A model with its inputs, and the type and shape of one output."""

    name: str
    model: ModelProto
    feeds: dict[str, Any]
    outputs: list[Any]


def _empty_pool(padded: Any, x_shape: Sequence[int], kernel: object, strides: object, out_shape: Sequence[int],
                *others: object, **more: object) -> Any:  # fmt: skip
    """Replaces a pool by one without numbers: pooling in Python takes three quarters of the time."""
    return np.zeros([*x_shape[:2], *out_shape], padded.dtype)


@cache
def _collected() -> list[Any]:
    """Returns onnx's cases, made when their modules are imported."""
    import onnx.backend.test.case.base
    import onnx.reference.ops._op_list  # noqa: F401  the evaluator's pools stay what they are

    with (
        warnings.catch_warnings(),
        patch("onnx.reference.ops.op_pool_common.pool", _empty_pool),
        patch("onnx.backend.test.case.base.process_snippet", lambda *_: ("", "")),  # of the documentation
    ):
        warnings.simplefilter("ignore")  # of onnx's own generators
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(""))


def models() -> list[ModelProto]:
    """Of all of them."""
    return [case.model for case in _collected()]


@cache
def cases() -> list[Case]:
    """Returns the cases that contain their inputs."""

    def arrays(values: Any) -> list[Any]:
        return [numpy_helper.to_array(v) if isinstance(v, TensorProto) else v for v in values]

    found = []
    for case in _collected():
        names = [i.name for i in case.model.graph.input]
        for inputs, outputs in case.data_sets[:1]:
            if len(inputs) == len(names):
                found.append(
                    Case(case.name, case.model, dict(zip(names, arrays(inputs), strict=True)), arrays(outputs))
                )
    return found
