"""Engines that run a model file: onnxruntime with optimizations off, or onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class OnnxRuntime:
    """onnxruntime on CPU. With its default level the original would be folded too, and a comparison prove nothing.

    Memory reuse is off because its planner is worse than quadratic on deep graphs; arena and prepacking are off
    because they cost more than the one or two runs they would speed up.
    """

    name = "onnxruntime"

    def __init__(self, model: str | bytes, optimize: bool = False, stateful: bool = False) -> None:
        """`stateful`: runs leave traces (training BatchNormalization writes into initializers): one session each."""
        import onnxruntime as rt

        options = rt.SessionOptions()
        if not optimize:
            options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_mem_reuse = False
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the parent needs that core
        self._open: Callable[[], Any] = lambda: rt.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._session = self._open()
        self._stateful = stateful

    @property
    def outputs(self) -> list[str]:
        return [o.name for o in self._session.get_outputs()]

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        session = self._open() if self._stateful else self._session
        return list(session.run(None, feeds))


class Reference:
    """onnx's ReferenceEvaluator: slow, but knows every operator and opset that onnx knows."""

    name = "reference"

    def __init__(self, model: str | bytes) -> None:
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator(model if isinstance(model, bytes) else str(Path(model)))

    @property
    def outputs(self) -> list[str]:
        return list(self._evaluator.output_names)

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            results: Sequence[Any] = self._evaluator.run(None, feeds)
        return list(results)


def reason(error: BaseException) -> str:
    """The first line of a runtime's error, short enough for one line of ours."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].removeprefix("[ONNXRuntimeError] : ")[:300]
