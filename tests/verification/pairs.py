"""Pairs of models, and the verdict of verification on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from onnxopt.verification import Verification, Verifier, VerifyOptions, verify
from onnxopt.verification.programs.foreign import read_skeleton
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.runner import Runner
from onnxopt.verification.records import AND
from tests.samples import parsed


def with_constants(text: str, constants: Mapping[str, Any]) -> ModelProto:
    """Return a model from text, with initializers for names that the text reads."""
    model = parsed(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(c), name) for name, c in constants.items())
    return model


def verdict(
    folder: Path, a: ModelProto | str, b: ModelProto | str, options: VerifyOptions | None = None
) -> Verification:
    _save(folder, a, b)
    return verify(folder / "a.onnx", folder / "b.onnx", options)


def own_check(folder: Path, a: ModelProto | str, b: ModelProto | str) -> Verification:
    """Return the verdict of the optimizer's own check."""
    _save(folder, a, b)
    with Verifier(folder / "a.onnx") as verifier:
        verifier.submit(folder / "b.onnx")
        return verifier.finish()


def gaps(found: Verification) -> list[str]:
    """Return the coverage gaps of a verdict, without the evidence against each."""
    assert found.pieces is not None, found.message
    return [gap.partition(AND)[0] for gap in found.pieces.unseen]


def opened(path: str | Path, label: str, tell: Callable[[str], None] = lambda state: None) -> Runner:
    """Return a runner of parts of a file."""
    return Runner(Program(read_skeleton(str(path))), label=label, tell=tell)


def _save(folder: Path, a: ModelProto | str, b: ModelProto | str) -> None:
    for name, model in (("a", a), ("b", b)):
        onnx.save(parsed(model) if isinstance(model, str) else model, folder / f"{name}.onnx")
